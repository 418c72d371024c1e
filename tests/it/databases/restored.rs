//! Rows that `pg_restore --data-only --disable-triggers` writes into a migrated database, and the schema of one tenant, as
//! deploy/backup.md describes it.

use std::process::Command;

use serde_json::json;

use crate::api::submission::NOTHING_WRONG;
use crate::api::world::World;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::folder;
use crate::support::postgres::{Postgres, find_client};

pub(super) fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(find_client(program)).args(arguments).output().expect("Postgres is installed");
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

fn site(database: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", database)).write();
    site.migrate();
    site
}

#[tokio::test]
async fn the_data_of_another_database_is_found_in_one_that_was_migrated() {
    let (from, to) = (Postgres::database(), Postgres::database());
    let original = site(&from);
    original.import("acme", &World::new(71, 0, 60).ndjson());
    let token = original.token("acme", "tests");
    // Forms and submissions refer to rows of their own table, in any order of the rows: plain `--data-only` fails.
    Postgres::execute_in(
        &from,
        "INSERT INTO forms (id, name) VALUES (990001, 'Parent'), (990002, 'Child'); UPDATE forms SET parent_id = 990001 WHERE id = 990002; UPDATE forms SET name = 'Moved behind its child' WHERE id = 990001",
    );
    // Where forms were in the tree has numbers of the old log, which the new one does not have.
    for parent in ["NULL", "990001"] {
        assert_eq!(original.run(&["reindex", "--tenant", "acme"], b"").code, 0);
        Postgres::execute_in(&from, &format!("UPDATE forms SET parent_id = {parent} WHERE id = 990002"));
    }
    assert_eq!(original.run(&["reindex", "--tenant", "acme"], b"").code, 0);
    let dump = folder::of_this_run().join("data-only.dump");
    let dump = dump.to_str().expect("the temporary folder has a UTF-8 name");
    let left_out = ["_sqlx_migrations", "database_identity", "change_state", "change_stamps", "form_placements"]
        .map(|table| format!("--exclude-table={table}"));
    let left_out = left_out.each_ref().map(String::as_str);
    run("pg_dump", &[&["--data-only", "--format=custom"], &left_out[..], &["--file", dump, &from]].concat());

    let restored = site(&to);
    Postgres::execute_in(&to, "TRUNCATE groups CASCADE; DELETE FROM audit_state");
    run("pg_restore", &["--data-only", "--disable-triggers", "--exit-on-error", "--dbname", &to, dump]);
    let nodes = [original.start(), restored.start()];
    let clients = nodes.each_ref().map(|node| node.client().to(&original.host("acme")).with(&token));
    assert_same(&clients).await;
    // Before and after formgate knows that the triggers were disabled.
    let written = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (990001, 990001, 'info', '2024-05-01Z', '2024-05-01Z'); INSERT INTO forms (id, name) VALUES (990003, 'New')";
    for database in [&from, &to] {
        Postgres::execute_in(database, written);
    }
    assert_same(&clients).await;
    let warned = restored.run(&["check"], b"");
    assert!(warned.stdout.contains("does not fire for replicated rows"), "{warned:?}");
    let done = restored.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!((done.code, done.stdout.as_str()), (0, NOTHING_WRONG), "{done:?}");
    assert!(done.stderr.contains("restored "), "{done:?}");
    assert_same(&clients).await;
    let again = restored.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!((again.code, again.stdout.as_str(), again.stderr.as_str()), (0, NOTHING_WRONG, ""));
    let verified = restored.run(&["audit", "verify", "--tenant", "acme"], b"");
    assert_eq!(verified.code, 0, "the log goes on after that of the dump: {verified:?}");

    // The numbers of the log go on after those of the dump.
    let changed = "UPDATE submissions SET status = 'denied' WHERE id = 990001";
    Postgres::execute_in(&to, changed);
    let feed = clients[1].get("/api/v1/submission/changes?limit=500").send().await;
    assert_eq!(feed.status, 200, "{feed:?}");
    let last = feed.json()["data"].as_array().and_then(|data| data.last().cloned()).expect("there are changes");
    assert_eq!((&last["id"], &last["submission"]["status"]), (&json!("sub_990001"), &json!("denied")));

    // Moves of forms are noticed.
    let read = async |from: &str| {
        let target = format!("/api/v1/submission/changes?forms=990001&limit=500{from}");
        clients[1].get(&target).send().await
    };
    let loaded = read("").await;
    let from = format!("&cursor={}", loaded.json()["meta"]["cursor"].as_str().expect("a cursor"));
    assert_eq!(read(&from).await.status, 200);
    Postgres::execute_in(&to, "UPDATE forms SET parent_id = NULL WHERE id = 990002");
    assert_eq!(read(&from).await.status, 410);
}

/// Asserts that two accounts find and count the same.
async fn assert_same(clients: &[Client; 2]) {
    for filter in [json!({}), json!({"search": "an"}), json!({"search": "ing"}), json!({"labels": [1]})] {
        let found = clients.each_ref().map(async |client| {
            let answer = client.post("/api/v1/submission").json(&filter).send().await;
            assert_eq!(answer.status, 200, "{filter}: {answer:?}");
            answer.json()
        });
        let [original, restored] = found;
        assert_eq!(original.await, restored.await, "{filter}");
    }
    for path in ["/api/v1/form", "/api/v1/group"] {
        let [original, restored] = clients.each_ref().map(async |client| client.get(path).send().await.json());
        assert_eq!(original.await, restored.await, "{path}");
    }
}

/// The tenant is back at its dump, while another tenant of the database is served over the same connection.
#[tokio::test]
async fn the_schema_of_one_tenant_is_restored_next_to_another_tenant() {
    let database = Postgres::database();
    let site = ["acme", "globex"].into_iter().fold(Site::new(), |site, slug| {
        let url = format!("{database}?schema={slug}");
        site.tenant_with(slug, Engine::Sqlite, |tenant| tenant.set("database", url))
    });
    let site = site.databases("max_shared_connections", 1).requests_per_minute(100_000).write();
    site.migrate();
    let world = World::new(71, 0, 60);
    for slug in ["acme", "globex"] {
        site.import(slug, &world.ndjson());
    }
    let tokens = ["acme", "globex"].map(|slug| site.token(slug, "tests"));
    let node = site.start();
    let [acme, globex] = [0, 1].map(|n: usize| node.client().to(&site.host(["acme", "globex"][n])).with(&tokens[n]));
    let list = async |client: &Client| {
        let answer = client.post("/api/v1/submission").json(&json!({"search": "an"})).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["data"].clone()
    };
    let before = list(&acme).await;
    let dump = folder::of_this_run().join("schema.dump");
    let dump = dump.to_str().expect("the temporary folder has a UTF-8 name");
    // Dropping the schema below would otherwise drop the extension, and with it the other tenant's index.
    let extension = "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_trgm'";
    assert_eq!(Database::connect(&database).await.texts(extension).await, ["public"]);
    run("pg_dump", &["--format=custom", "--schema=acme", "--file", dump, "--dbname", &database]);

    Postgres::execute_in(&database, "DELETE FROM acme.answers; ALTER SCHEMA acme RENAME TO acme_damaged");
    assert_eq!(list(&globex).await, before);
    run("pg_restore", &["--exit-on-error", "--dbname", &database, dump]);
    Postgres::execute_in(&database, "DROP SCHEMA acme_damaged CASCADE");
    assert_eq!((list(&acme).await, list(&globex).await), (before.clone(), before));
    // The triggers of the restored schema note what is written, whatever the search path is.
    Postgres::execute_in(&database, "DELETE FROM acme.submissions");
    assert_eq!(list(&acme).await, json!([]));
    assert_ne!(list(&globex).await, json!([]));
}
