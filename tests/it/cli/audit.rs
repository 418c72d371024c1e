//! `formgate audit list | verify`: every change by a command is a row, and no row can be changed or lost unnoticed.

use std::thread;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// The rows of the log, the newest first.
fn listed(site: &Site, filter: &[&str]) -> Vec<Value> {
    let output = site.run(&[&["audit", "list", "--tenant", "acme", "--json"], filter].concat(), b"");
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    output.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

fn actions(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["action"].as_str().expect("a text")).collect()
}

/// The exit code and the output of `audit verify`.
fn verify(site: &Site) -> (i32, String) {
    let output = site.run(&["audit", "verify", "--tenant", "acme"], b"");
    (output.code, format!("{}{}", output.stdout, output.stderr))
}

/// A site whose log has three rows.
fn three_tokens(engine: Engine) -> Site {
    let site = Site::new().tenant("acme", engine).write();
    for name in ["first", "second", "third"] {
        create_token(&site, name);
    }
    site
}

/// Creates a token by the command, whose rows of the log these tests read.
fn create_token(site: &Site, name: &str) -> String {
    let created = site.run(&["token", "create", "--tenant", "acme", "--name", name], b"");
    assert_eq!(created.code, 0, "{created:?}");
    created.stdout.trim_end().to_owned()
}

/// SHA-256 of the salt and the value of a column of row 2, as SQL.
async fn commitment(site: &Site, engine: Engine, column: &str) -> String {
    let database = Database::connect(site.database_url("acme")).await;
    let salt =
        if engine == Engine::Sqlite { format!("hex({column}_salt)") } else { format!("encode({column}_salt, 'hex')") };
    let salt = database.text(&format!("SELECT {salt} FROM audit_log WHERE id = 2")).await;
    let value = database.text(&format!("SELECT coalesce({column}, '') FROM audit_log WHERE id = 2")).await;
    database.close().await;
    let salt = hex(&salt);
    let digest: String =
        Sha256::digest([&salt[..], value.as_bytes()].concat()).iter().map(|byte| format!("{byte:02x}")).collect();
    if engine == Engine::Sqlite { format!("X'{digest}'") } else { format!("'\\x{digest}'") }
}

/// The bytes that hexadecimal digits stand for.
fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("they are digits"))
        .collect()
}

/// Runs statements with the triggers of the log out of the way, as an administrator of the database can.
async fn tamper(site: &Site, engine: Engine, statements: &str) {
    let database = Database::connect(site.database_url("acme")).await;
    let (before, after) = match engine {
        Engine::Sqlite => (
            "DROP TRIGGER IF EXISTS audit_log_is_not_updated; DROP TRIGGER IF EXISTS audit_log_is_not_deleted_from;",
            "",
        ),
        _ => ("ALTER TABLE audit_log DISABLE TRIGGER USER;", "; ALTER TABLE audit_log ENABLE TRIGGER USER"),
    };
    database.execute(&format!("{before}{statements}{after}")).await;
    database.close().await;
}

on_both_databases! {
    async fn every_change_by_a_command_is_a_row_and_reading_is_none(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        assert_eq!(verify(&site), (0, "acme: the audit log is intact: 0 rows\n".to_owned()));
        let token = create_token(&site, "Zapier");
        assert_eq!(site.run(&["token", "rotate", "1", "--tenant", "acme", "--overlap", "0s"], b"").code, 0);
        assert_eq!(site.run(&["token", "revoke", "2", "--tenant", "acme"], b"").code, 0);
        let user = r#"{"type":"user","id":7,"email":"ana@example.com","name":"Ana"}"#;
        assert_eq!(site.run(&["import", "--tenant", "acme", "-"], user.as_bytes()).code, 0);
        assert_eq!(site.run(&["reindex", "--tenant", "acme"], b"").code, 0);
        assert_eq!(site.run(&["changes", "reset", "--tenant", "acme"], b"").code, 0);
        let rows = listed(&site, &[]);
        let written = ["changes.reset", "reindex", "import", "token.revoke", "token.rotate", "token.create"];
        assert_eq!(actions(&rows), written);
        assert_eq!(rows.iter().map(|row| row["id"].as_i64().unwrap()).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1]);
        for row in &rows {
            assert_eq!((&row["source"], &row["network"]), (&"command".into(), &Value::Null), "{row}");
            assert_eq!(row["actor"], rows[0]["actor"], "{row}");
            assert!(!row["actor"].as_str().unwrap().is_empty(), "{row}");
            assert!(!row.to_string().contains(&token[8..]), "no value of a token: {row}");
        }
        assert_eq!((&rows[5]["subject"], &rows[5]["details"]["name"]), (&"token 1".into(), &"Zapier".into()));
        assert_eq!((&rows[4]["subject"], &rows[4]["details"]["replaces"]), (&"token 2".into(), &1.into()));
        assert_eq!(rows[2]["details"]["lines"], 1, "{}", rows[2]);

        for read in [&["token", "list"][..], &["audit", "list"], &["webhook", "list"], &["audit", "verify"]] {
            assert_eq!(site.run(&[read, &["--tenant", "acme"]].concat(), b"").code, 0, "{read:?}");
        }
        assert_eq!(site.run(&["token", "revoke", "2", "--tenant", "acme"], b"").code, 0, "it is revoked already");
        assert_eq!(listed(&site, &[]).len(), 6);
        assert_eq!(verify(&site), (0, "acme: the audit log is intact: 6 rows\n".to_owned()));
        let table = site.run(&["audit", "list", "--tenant", "acme"], b"").stdout;
        assert!(table.starts_with("ID  AT") && table.lines().count() == 7, "{table}");
    }

    async fn work_whose_row_can_not_be_written_is_not_done(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let database = Database::connect(site.database_url("acme")).await;
        let epoch = async || database.text("SELECT CAST(epoch AS text) FROM change_state").await;
        let before = epoch().await;
        database.execute("DELETE FROM audit_state").await;
        let line = "{\"type\":\"user\",\"id\":7,\"email\":\"ana@example.com\",\"name\":\"Ana\"}\n";
        assert_eq!(site.run(&["import", "-", "--tenant", "acme"], line.as_bytes()).code, 1);
        assert_eq!(database.integers("SELECT count(*) FROM users").await, [0]);
        assert_eq!(site.run(&["changes", "reset", "--tenant", "acme"], b"").code, 1);
        assert_eq!(epoch().await, before);
        database.close().await;
    }

    async fn changes_of_a_subscription_are_rows_without_its_url(engine: Engine) {
        let site = three_tokens(engine);
        let database = Database::connect(site.database_url("acme")).await;
        let subscription = "INSERT INTO subscriptions (target_url, event, secret, created_at, position) SELECT \
                            'https://hooks.example.com/marker-in-path', 'submission.created', 'whsec_x', at, 0 FROM audit_log \
                            WHERE id = 1";
        database.execute(subscription).await;
        database.close().await;
        for command in [&["pause"][..], &["resume"], &["rotate"], &["replay", "--failed"]] {
            let output = site.run(&[&["webhook"], command, &["1", "--tenant", "acme"]].concat(), b"");
            assert_eq!(output.code, 0, "{command:?}: {}", output.stderr);
        }
        assert_eq!(site.run(&["webhook", "pause", "9", "--tenant", "acme"], b"").code, 1, "there is no such subscription");
        let rows = listed(&site, &[]);
        let written = ["webhook.replay", "webhook.rotate", "webhook.resume", "webhook.pause"];
        assert_eq!(actions(&rows)[..4], written);
        assert_eq!(rows.len(), 7);
        for row in &rows[..4] {
            assert_eq!((&row["subject"], &row["details"]["target"]), (&"webhook hook_1".into(), &"hooks.example.com".into()));
            assert!(!row.to_string().contains("marker-in-path") && !row.to_string().contains("whsec"), "{row}");
        }
    }

    async fn a_list_is_filtered_by_actor_action_and_time(engine: Engine) {
        let site = three_tokens(engine);
        assert_eq!(site.run(&["token", "revoke", "1", "--tenant", "acme"], b"").code, 0);
        let actor = listed(&site, &[])[0]["actor"].as_str().unwrap().to_owned();
        let second = listed(&site, &[])[2]["at"].as_str().unwrap().to_owned();
        assert_eq!(listed(&site, &["--actor", &actor]).len(), 4);
        assert_eq!(listed(&site, &["--actor", "no such actor"]).len(), 0);
        assert_eq!(actions(&listed(&site, &["--action", "token.revoke"])), ["token.revoke"]);
        assert_eq!(listed(&site, &["--since", &second]).len(), 3);
        assert_eq!(listed(&site, &["--until", &second]).len(), 2);
        assert_eq!(listed(&site, &["--since", &second, "--until", &second]).len(), 1);
        assert_eq!(listed(&site, &["--since", "2020-01-01"]).len(), 4);
        assert_eq!(listed(&site, &["--until", "2020-01-01"]).len(), 0);
        let output = site.run(&["audit", "list", "--tenant", "acme", "--since", "yesterday"], b"");
        assert_eq!((output.code, output.stdout.as_str()), (1, ""));
        assert!(output.stderr.contains("`yesterday` is neither a day"), "{}", output.stderr);
    }

    async fn the_database_refuses_to_change_or_delete_a_row(engine: Engine) {
        let site = three_tokens(engine);
        let database = Database::connect(site.database_url("acme")).await;
        let mut refused = vec!["UPDATE audit_log SET actor = 'eve' WHERE id = 1", "DELETE FROM audit_log WHERE id = 3"];
        if engine != Engine::Sqlite {
            refused.push("TRUNCATE audit_log");
        }
        for statement in refused {
            let error = database.try_execute(statement).await.expect_err(statement).to_string();
            assert!(error.contains("rows of audit_log are only added"), "{statement}: {error}");
        }
        database.close().await;
        assert_eq!(verify(&site).0, 0);
    }

    async fn a_changed_row_is_found(engine: Engine) {
        for column in ["actor = 'eve'", "subject = 'token 9'", "details = '{}'", "network = '192.0.2.0/24'", "action = 'x'"] {
            let site = three_tokens(engine);
            tamper(&site, engine, &format!("UPDATE audit_log SET {column} WHERE id = 2")).await;
            let (code, text) = verify(&site);
            assert_eq!((code, text.as_str()), (1, "error: acme: row 2 of the audit log was changed\n"), "{column}");
        }
    }

    async fn a_value_can_be_erased_and_nothing_else(engine: Engine) {
        let site = three_tokens(engine);
        for column in ["actor", "subject", "details"] {
            let commitment = commitment(&site, engine, column).await;
            tamper(&site, engine, &format!("UPDATE audit_log SET {column} = '', {column}_salt = {commitment} WHERE id = 2")).await;
            assert_eq!(verify(&site), (0, "acme: the audit log is intact: 3 rows\n".to_owned()), "{column}");
        }
        tamper(&site, engine, "UPDATE audit_log SET actor = 'eve' WHERE id = 2").await;
        assert_eq!(verify(&site), (1, "error: acme: row 2 of the audit log was changed\n".to_owned()));
        let commitment = commitment(&site, engine, "subject").await;
        tamper(&site, engine, &format!("UPDATE audit_log SET actor = '', subject_salt = {commitment} WHERE id = 2")).await;
        assert_eq!(verify(&site), (1, "error: acme: row 2 of the audit log was changed\n".to_owned()));
    }

    async fn a_missing_row_is_found_also_at_the_end(engine: Engine) {
        for (deleted, missing) in [("id = 1", 1), ("id = 2", 2), ("id = 3", 3), ("id > 1", 2), ("id > 0", 1)] {
            let site = three_tokens(engine);
            tamper(&site, engine, &format!("DELETE FROM audit_log WHERE {deleted}")).await;
            let (code, text) = verify(&site);
            assert_eq!(code, 1, "{deleted}");
            assert_eq!(text, format!("error: acme: row {missing} of the audit log is missing\n"), "{deleted}");
        }
    }

    async fn a_log_of_which_nothing_is_left_is_not_intact(engine: Engine) {
        let missing = "row 1 of the audit log is missing";
        let endless = "the end of the audit log is missing: the table audit_state is empty";
        let empty = if engine == Engine::Sqlite { "X''" } else { "''" };
        for (tampering, found) in [
            ("DELETE FROM audit_log; DELETE FROM audit_state".to_owned(), endless),
            ("DELETE FROM audit_state".to_owned(), endless),
            (format!("DELETE FROM audit_log; UPDATE audit_state SET last_id = 0, digest = {empty}"), missing),
        ] {
            let site = three_tokens(engine);
            tamper(&site, engine, &tampering).await;
            assert_eq!(verify(&site), (1, format!("error: acme: {found}\n")), "{tampering}");
        }
    }

    async fn an_end_that_was_deleted_is_restored_and_a_row_says_so(engine: Engine) {
        let site = three_tokens(engine);
        tamper(&site, engine, "DELETE FROM audit_state").await;
        assert_eq!(site.run(&["token", "create", "--tenant", "acme", "--name", "late"], b"").code, 1, "its row can't be added");
        let mended = site.run(&["reindex", "--tenant", "acme"], b"");
        assert_eq!(mended.code, 0, "{mended:?}");
        let end = "the end of the audit log, behind the last row that is left";
        assert!(mended.stdout.trim_end().ends_with(end), "{mended:?}");
        assert_eq!(verify(&site), (0, "acme: the audit log is intact: 4 rows\n".to_owned()));
        site.token("acme", "late");
        let again = site.run(&["reindex", "--tenant", "acme"], b"");
        assert!(again.code == 0 && !again.stdout.contains("audit log"), "{again:?}");
        let rows = listed(&site, &[]);
        assert_eq!(actions(&rows)[..3], ["reindex", "token.create", "reindex"]);
        let outcome = rows[2]["details"]["outcome"].as_str().expect("a text");
        assert!(outcome.ends_with(end), "{outcome}");
    }

    async fn a_row_that_formgate_did_not_write_is_found(engine: Engine) {
        let copied = |id: &str| {
            format!(
                "INSERT INTO audit_log (id, at, actor, source, action, subject, details, digest) \
                 SELECT {id}, at, actor, source, action, subject, details, digest FROM audit_log WHERE id = 3"
            )
        };
        for (id, found) in [("4", "row 4 of the audit log was changed"), ("0", "row 0 of the audit log was not written by formgate")] {
            let site = three_tokens(engine);
            tamper(&site, engine, &copied(id)).await;
            assert_eq!(verify(&site), (1, format!("error: acme: {found}\n")), "{id}");
        }
    }

    async fn two_programs_that_write_at_once_both_succeed(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        thread::scope(|scope| {
            for program in 0..2 {
                let site = &site;
                scope.spawn(move || {
                    for number in 0..10 {
                        let name = format!("{program}-{number}");
                        let output = site.run(&["token", "create", "--tenant", "acme", "--name", &name], b"");
                        assert_eq!(output.code, 0, "{}", output.stderr);
                    }
                });
            }
        });
        assert_eq!(verify(&site), (0, "acme: the audit log is intact: 20 rows\n".to_owned()));
        let mut names: Vec<_> = listed(&site, &[]).iter().map(|row| row["details"]["name"].to_string()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 20, "each has one row");
    }
}
