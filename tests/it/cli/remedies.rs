//! What fixes a failure: every command says the same, once, and nothing of the log is mixed into it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::support::child;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::process::{Output, formgate_held_by_permissions, formgate_with_environment};
use crate::support::redis::Redis;

/// A report on one line: borders and line breaks are those of a terminal.
pub(super) fn said(output: &Output) -> String {
    format!("{}\n{}", output.stdout, output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that every command that opens a tenant's database fails with a cause, said once, and a remedy.
pub(super) fn assert_all_say(site: &Site, cause: &str, remedy: &str) {
    for command in [
        &["check"][..],
        &["explain", "acme.example.test"],
        &["token", "list", "--tenant", "acme"],
        &["token", "create", "--tenant", "acme", "--name", "x"],
        &["import", "--tenant", "acme", "/dev/null"],
        &["reindex", "--tenant", "acme"],
    ] {
        let output = site.run(command, b"");
        assert_eq!(output.code, 1, "{command:?}: {output:?}");
        let said = said(&output);
        assert_eq!(said.matches(cause).count(), 1, "{cause:?} once by {command:?}: {said}");
        assert!(said.contains(remedy), "{remedy:?} by {command:?}: {said}");
        for noise in ["at line", "error: error", "error returned from database", "\"level\""] {
            assert!(!said.contains(noise), "{noise:?} by {command:?}: {said}");
        }
    }
}

on_both_databases! {
    async fn every_command_says_what_fixes_a_database_that_was_never_migrated(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).write();
        if engine == Engine::Sqlite {
            fs::write(site.folder().join("acme.db"), b"").expect("the site's folder can be written");
        }
        assert_all_say(&site, "at schema version 0", "formgate migrate --tenant acme");
    }

    async fn a_database_of_a_newer_version_is_served_with_a_warning(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let database = Database::connect(site.database_url("acme")).await;
        let row = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)";
        database.execute(&format!("{row} VALUES (4711, 'later', true, '', 0)")).await;
        database.close().await;
        for command in [&["check"][..], &["migrate"]] {
            let output = site.run(command, b"");
            assert_eq!(output.code, 0, "{output:?}");
            assert!(said(&output).contains("schema version 4711, and this program knows versions up to"), "{output:?}");
        }
        let explained = site.run(&["explain", "acme.example.test"], b"");
        assert!(explained.code == 0 && explained.stdout.contains("schema version 4711"), "{explained:?}");
    }
}

#[test]
fn a_missing_sqlite_file_is_reported_with_its_path_and_the_command_that_creates_it() {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, Tenant::unmigrated).write();
    let file = site.folder().join("acme.db");
    assert_all_say(
        &site,
        "unable to open database file",
        &format!("`{}` does not exist: `formgate migrate --tenant acme` creates it", file.display()),
    );
    assert!(!file.exists(), "looking creates nothing");
}

#[test]
fn an_inaccessible_sqlite_file_is_reported_with_its_owner_and_mode() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let file = site.folder().join("acme.db");
    let config = site.config_path.to_str().expect("the temporary folder has a UTF-8 name");
    for (mode, right) in [(0o000, "may not read it"), (0o400, "may not write it")] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("the file is ours");
        for command in [&["explain", "acme.example.test"][..], &["token", "create", "--tenant", "acme", "--name", "x"]]
        {
            let output = formgate_held_by_permissions(&[command, &["--config", config]].concat());
            if output.code == 0 || !said(&output).contains("acme.db") {
                // What only reads may be able to.
                assert_eq!((mode, command[0]), (0o400, "explain"), "{output:?}");
                continue;
            }
            let expected = format!("`{}` belongs to ", file.display());
            let said = said(&output);
            assert!(said.contains(&expected) && said.contains(&format!("(mode {mode:04o})")), "{said}");
            assert!(said.contains(right) && said.contains("chown "), "{said}");
        }
    }
}

#[tokio::test]
async fn a_refusal_by_postgres_is_reported_once_with_its_code_and_the_remedy() {
    let site =
        |url: String| Site::new().tenant_with("acme", Engine::Postgres, |tenant| tenant.set("database", url)).write();
    let url = Engine::Postgres.database(std::path::Path::new(""), "");
    let (server, _) = url.rsplit_once('/').expect("a URL has a path");
    assert_all_say(&site(format!("{server}/nonesuch")), "(SQLSTATE 3D000)", "create the database");
    let stranger = url.replace("postgres@", "nobody:marker-7f3a@");
    assert_all_say(&site(stranger), "role \"nobody\" does not exist (SQLSTATE 28000)", "pg_hba.conf");
    let nowhere = child::free_port();
    assert_all_say(
        &site(format!("postgres://postgres@127.0.0.1:{nowhere}/x")),
        "Connection refused",
        &format!("nothing listens at 127.0.0.1:{nowhere}"),
    );
}

#[tokio::test]
async fn a_missing_trigram_index_is_reported() {
    let site = Site::new().tenant("acme", Engine::Postgres).write();
    assert!(!said(&site.run(&["check"], b"")).contains("warning"));
    let database = Database::connect(site.database_url("acme")).await;
    database.execute("DROP EXTENSION pg_trgm CASCADE").await;
    database.close().await;
    for command in [&["check"][..], &["explain", "acme.example.test"]] {
        let output = site.run(command, b"");
        let said = said(&output);
        assert!(output.code == 0 && said.contains("CREATE EXTENSION pg_trgm"), "{said}");
        assert!(said.contains("then `formgate migrate --tenant acme`"), "{said}");
    }
    assert_eq!(site.run(&["migrate", "--tenant", "acme"], b"").code, 0);
    assert!(!said(&site.run(&["check"], b"")).contains("warning"), "the remedy works");
}

#[test]
fn commands_print_no_log_lines_unless_requested() {
    let site = Site::new().tenant("acme", Engine::Sqlite).redis(Redis::shared()).write();
    site.token("acme", "tests");
    let config = site.config_path.to_str().expect("the temporary folder has a UTF-8 name");
    for command in [
        &["check", "--deep"][..],
        &["explain", "acme.example.test"],
        &["token", "list", "--tenant", "acme", "--json"],
        &["import", "--tenant", "acme", "/dev/null"],
    ] {
        let quiet = site.run(command, b"");
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{command:?}");
        assert!(!quiet.stdout.contains("\"level\""), "{command:?}: {}", quiet.stdout);
    }
    let asked = [&["explain", "acme.example.test"][..], &["--config", config]].concat();
    let loud = formgate_with_environment(&asked, &[("FORMGATE_LOG", "info")]);
    assert!(loud.stderr.contains("answers; budgets are shared"), "{loud:?}");
}

#[test]
fn a_faulty_configuration_is_reported_by_every_command_as_check_does() {
    let site =
        Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("timezone", "Europe/Pariss")).write();
    let reported = site.run(&["check"], b"").stdout;
    let (first, _) = reported.split_once("\n\n").unwrap_or((&reported, ""));
    for command in [&["serve"][..], &["migrate"], &["token", "list", "--tenant", "acme"], &["explain", "x"]] {
        let output = site.run(command, b"");
        assert_eq!((output.code, output.stderr.trim_end()), (1, first.trim_end()), "{command:?}");
    }
}
