//! A database of an unreleased version is refused and left as it is, and its plain tables are loaded into a new one.

use std::fs;
use std::process::Command;

use serde_json::json;

use super::remedies::{assert_all_say, said};
use crate::api::submission::NOTHING_WRONG;
use crate::api::world::{World, ZONE};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::postgres::find_client;

const REFUSED: &str = "an unreleased version of formgate created the tables of the database";

/// Makes a migrated database look like one of an unreleased version, which had 17 migrations.
async fn age(url: &str) {
    let database = Database::connect(url).await;
    database.execute("DELETE FROM _sqlx_migrations").await;
    let row = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) ";
    let rows = "SELECT n, 'of an unreleased version', true, '', 0 FROM numbers";
    let numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 17) ";
    database.execute(&format!("{numbers}{row}{rows}")).await;
    if url.starts_with("sqlite:") {
        // Everything is in the file from now on, also while an earlier connection is still open.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    }
    database.close().await;
}

/// Everything in a database: the file, or a dump.
fn content(url: &str) -> Vec<u8> {
    let Some(file) = url.strip_prefix("sqlite:") else {
        // Newer minor versions begin and end a dump with a random word.
        let dump = run("pg_dump", &["--dbname", url]);
        return dump.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n").into();
    };
    let log = fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
    assert_eq!(log, 0, "everything is in the file");
    fs::read(file).expect("it is there")
}

fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(find_client(program)).args(arguments).output().expect("Postgres is installed");
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it is UTF-8")
}

/// The tables that a remedy names.
fn tables<'r>(remedy: &'r str, before: &str, between: &str) -> Vec<&'r str> {
    let (_, named) = remedy.split_once(before).unwrap_or_else(|| panic!("{before:?} in {remedy}"));
    named.split_once(')').expect("it ends").0.split(between).map(str::trim).collect()
}

on_both_databases! {
    async fn a_database_of_an_unreleased_version_is_refused_and_can_be_moved(engine: Engine) {
        let world = World::new(23, 0, 80);
        let with_zone = |tenant: Tenant| tenant.set("timezone", ZONE);
        let old = Site::new().tenant_with("acme", engine, with_zone).write();
        old.import("acme", &world.ndjson());
        let old_token = old.token("acme", "tests");
        age(old.database_url("acme")).await;
        let before = content(old.database_url("acme"));

        let refused = old.run(&["migrate"], b"");
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
        let remedy = said(&refused);
        assert!(remedy.contains(REFUSED), "{remedy}");
        assert!(remedy.contains("Tokens, subscriptions and the audit log are in no plain table"), "{remedy}");
        for finish in [&["migrate", "--finish"][..], &["migrate", "--tenant", "acme"]] {
            assert_eq!(said(&old.run(finish, b"")), remedy);
        }
        assert_all_say(&old, REFUSED, "run `formgate migrate --tenant acme`, and");
        let node = old.start();
        let client = node.client().to(&old.host("acme")).with(&old_token);
        assert_eq!(client.get("/api/v1/form").send().await.status, 503);
        drop(node);
        assert_eq!(content(old.database_url("acme")), before, "nothing was changed");

        // The steps of src/store/README.md.
        let new_url = engine.empty_database(old.folder(), "new");
        let moved = Site::new().tenant_with("acme", engine, |tenant| with_zone(tenant).set("database", new_url)).write();
        let dump = old.folder().join("plain.sql");
        let dump = dump.to_str().expect("the temporary folder has a UTF-8 name");
        if engine == Engine::Postgres {
            let named = tables(&remedy, "pg_dump --data-only -t ", " -t ");
            let named = named.iter().flat_map(|table| ["-t", table]);
            let url = old.database_url("acme");
            run("pg_dump", &["--data-only"].into_iter().chain(named).chain(["--file", dump, "--dbname", url]).collect::<Vec<_>>());
        }
        let migrated = moved.run(&["migrate"], b"");
        assert!(migrated.stdout.starts_with("acme: from version 0 to "), "{migrated:?}");
        match old.database_url("acme").strip_prefix("sqlite:") {
            None => {
                let load = ["--single-transaction", "--command=DELETE FROM groups", "--file", dump];
                let arguments = [&["--no-psqlrc", "--set=ON_ERROR_STOP=1"], &load[..], &[moved.database_url("acme")]];
                run("psql", &arguments.concat());
            }
            Some(file) => {
                let database = Database::connect(moved.database_url("acme")).await;
                database.execute(&format!("ATTACH '{file}' AS old")).await;
                let mut copy = "BEGIN; DELETE FROM groups; ".to_owned();
                for table in tables(&remedy, "by ATTACH and INSERT … SELECT (", ",") {
                    copy += &format!("INSERT INTO {table} SELECT * FROM old.{table}; ");
                }
                database.execute(&(copy + "COMMIT")).await;
                database.close().await;
            }
        }

        let token = moved.token("acme", "tests");
        let node = moved.start();
        let client = node.client().to(&moved.host("acme")).with(&token);
        let mut filters = vec![json!({}), json!({"sortBy": "created_at"}), json!({"search": "an"})];
        filters.extend((1..=5).flat_map(|id| [json!({"labels": [id]}), json!({"forms": [id]})]));
        world.assert_found(&client, filters).await;
        assert_eq!(client.with(&old_token).get("/api/v1/form").send().await.status, 401, "tokens are not moved");
        let repaired = moved.run_in_thread(&["reindex", "--tenant", "acme"]).await;
        assert_eq!(repaired.stdout, NOTHING_WRONG, "{repaired:?}");
    }
}
