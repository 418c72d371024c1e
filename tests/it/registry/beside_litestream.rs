//! Litestream next to a node that opens and closes files all the time, with the configuration of the repository: no request and
//! no write of a product fails, and what Litestream restores is what the file has.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use http::Method;
use rand::RngExt;
use serde_json::json;
use toml::Table;

use super::scene::{Scene, client};
use crate::support::client::{Client, operator_count};
use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::litestream::Litestream;
use crate::support::process::python;

/// How long it goes on; `FORMGATE_LITESTREAM_SECONDS` has it go on for longer.
const SECONDS: u64 = 12;

/// The accounts. While one is called, files of others are closed.
const ACCOUNTS: [&str; 3] = ["acme", "globex", "initech"];

/// Prints the differences of two files: every row of every table but Litestream's.
const COMPARE: &str = "
import sqlite3, sys
def rows(path):
    lines = sqlite3.connect(path).iterdump()
    return [line for line in lines if '_litestream_' not in line]
one, other = map(rows, sys.argv[1:])
assert len(one) > 100, len(one)
sys.exit(f'{set(one) ^ set(other)}'[:2000] if one != other else 0)
";

async fn call_now_and_then(api: Client, until: Instant) -> u32 {
    let mut calls = 0;
    while Instant::now() < until {
        let [times, pause] = [rand::rng().random_range(1..12), rand::rng().random_range(50..2_500)];
        for _ in 0..times {
            let name = format!("Group {}", calls % 7);
            let members = [json!({ "email": format!("user{calls}@acme.example") })];
            let put = api.put("/api/v1/group").json(&json!({ "name": name, "members": members })).send().await;
            assert!([200, 201].contains(&put.status.as_u16()), "{put:?}");
            let found = api.post("/api/v1/submission").json(&json!({ "search": "änswer" })).send().await;
            assert_eq!(found.status, 200, "{found:?}");
            calls += 2;
        }
        // Mostly for long enough that the file is closed.
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    calls
}

async fn write_now_and_then(url: String, until: Instant) -> i64 {
    let mut last = 0;
    while Instant::now() < until {
        let product = Database::connect(&url).await;
        let [times, pause] = [rand::rng().random_range(1..12), rand::rng().random_range(50..2_500)];
        for _ in 0..times {
            last += 1;
            let insert = format!(
                "BEGIN;
                 INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({last}, 1, 'pending', 0, 0);
                 INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({last}, 1, 'Änswer {last}', 0);
                 COMMIT"
            );
            product.execute(&insert).await;
        }
        product.close().await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    last
}

/// Loads a label into each account.
fn load(scene: &Scene) {
    let file = scene.folder().join("label.ndjson");
    fs::write(&file, r#"{"type":"label","id":7,"name":"Urgent","shared":false}"#).expect("a file can be written");
    for slug in ACCOUNTS {
        scene.succeed(&["import", "--tenant", slug, &file.display().to_string()]);
    }
}

fn compare(file: &Path, restored: &Path) {
    let output =
        Command::new(python()).args(["-c", COMPARE]).args([file, restored]).output().expect("there is a Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_closes_and_opens_files_next_to_litestream_and_nothing_fails() {
    let mut databases = Table::new();
    databases.insert("sqlite_idle_seconds".into(), 1.into());
    let scene = Scene::new(Engine::Sqlite).gateway("databases", databases);
    let accounts = scene.folder().join("accounts");
    let mut litestream = Litestream::replicating(&accounts, &scene.folder().join("litestream"));
    let mut node = scene.start(0);
    let seconds = env::var("FORMGATE_LITESTREAM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let (mut tokens, until) = (BTreeMap::new(), Instant::now() + Duration::from_secs(seconds));
    let url = |slug: &str| format!("sqlite:{}", accounts.join(format!("{slug}.db")).display());
    for slug in ACCOUNTS {
        let mut tenant = scene.tenant(slug);
        tenant["database"] = url(slug).into();
        tenant["requests_per_minute"] = json!(100_000);
        let put = format!("/v1/tenants/{slug}?migrate=1&wait=60&token=tests");
        let added = scene.call(0, Method::PUT, &put, Some(&tenant)).await;
        assert_eq!(added.status, 201, "{added:?}");
        tokens.insert(slug, added.body["token"]["token"].as_str().expect("a token").to_owned());
        let product = Database::connect(&url(slug)).await;
        product
            .execute(
                "INSERT INTO forms (id, name) VALUES (1, 'Leave');
                 INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (1, 1, 1, 'e', 'Why', 'text')",
            )
            .await;
        product.close().await;
    }
    let calls = ACCOUNTS.map(|slug| tokio::spawn(call_now_and_then(client(&node, slug, &tokens[slug]), until)));
    let writes = ACCOUNTS.map(|slug| tokio::spawn(write_now_and_then(url(slug), until)));
    // A restart of Litestream in the middle, as by an upgrade.
    tokio::time::sleep(Duration::from_secs(seconds / 2)).await;
    tokio::task::block_in_place(|| litestream.restart());
    // A load ends with a checkpoint, which Litestream's reading keeps from being whole.
    tokio::task::block_in_place(|| load(&scene));
    for done in calls {
        assert!(done.await.expect("no request fails") > 0);
    }
    for done in writes {
        assert!(done.await.expect("no write fails") > 0);
    }
    let address = node.operator_address();
    let opened = operator_count(address, r#"formgate_database_connections_opened_total{database="sqlite"}"#).await;
    assert!(opened > 2 * ACCOUNTS.len() as u64, "files were closed and opened again: {opened}");
    let locked = operator_count(address, r#"formgate_database_failures_total{reason="locked"}"#).await;
    assert_eq!(locked, 0);
    drop(node);
    for slug in ACCOUNTS {
        let (file, restored) =
            (accounts.join(format!("{slug}.db")), scene.folder().join(format!("{slug}-restored.db")));
        tokio::task::block_in_place(|| litestream.restore_newest(&file, &restored));
        compare(&file, &restored);
    }
}
