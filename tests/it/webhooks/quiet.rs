//! Webhooks of accounts that nobody has called since the node started: it knows their subscriptions nevertheless.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use toml::{Table, Value};

use super::scene::{LIMIT, Scene, envelope, received};
use crate::support::client::operator_count;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::receiver::{Act, Receiver};

/// How many accounts there are. A round of inspections leaves at least 0.1 s between two of them.
const ACCOUNTS: usize = 200;

/// When the first round of inspections ended; the start of the task before that.
const INSPECTED: &str = r#"formgate_task_last_success_timestamp_seconds{task="databases"}"#;

/// Writes a configuration with copies of the first account next to the one of a site.
fn add_copies(scene: &Scene, copies: impl Iterator<Item = (String, String)>) -> std::path::PathBuf {
    let mut root: Table = fs::read_to_string(&scene.site.config_path).unwrap().parse().unwrap();
    let Value::Array(tenants) = root.get_mut("tenant").unwrap() else { panic!("tenants are a list") };
    let first = tenants[0].as_table().unwrap().clone();
    for (slug, database) in copies {
        let mut tenant = first.clone();
        tenant.insert("address".into(), scene.site.host(&slug).into());
        tenant.insert("slug".into(), slug.into());
        tenant.insert("database".into(), database.into());
        tenants.push(tenant.into());
    }
    let path = scene.site.folder().join("copies.toml");
    fs::write(&path, root.to_string()).unwrap();
    path
}

fn copy(file: &Path, name: &str) -> (String, String) {
    let copy = file.with_file_name(format!("{name}.db"));
    fs::copy(file, &copy).unwrap();
    (name.to_owned(), format!("sqlite:{}", copy.display()))
}

#[tokio::test]
async fn they_do_not_wait_for_a_round_of_inspections_after_a_start() {
    let mut scene =
        Scene::with(Engine::Sqlite, |webhooks| _ = webhooks.insert("sweep_seconds".into(), 3600.into())).await;
    let receiver = Receiver::always(Act::status(204)).await;
    scene.subscribe(&receiver, "submission.created", None).await;
    assert_eq!(scene.nodes[0].stop(LIMIT).await, 0);
    let url = scene.site.database_url("acme").to_owned();
    // Moves the log into the file, which is then all there is.
    scene.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    let file = Path::new(url.strip_prefix("sqlite:").unwrap());
    let copies: Vec<_> = (1..ACCOUNTS).map(|account| copy(file, &format!("copy-{account}"))).collect();
    let mut node = Node::spawn(&add_copies(&scene, copies.iter().cloned()));
    let began = operator_count(node.operator_address(), INSPECTED).await;
    scene.insert(1, 1, "x").await;
    for (_, url) in &copies {
        let database = Database::connect(url).await;
        let at = scene.at(1);
        database
            .execute(&format!(
                "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) \
                 VALUES (1, 1, 'pending', {at}, {at}, FALSE)"
            ))
            .await;
        database.close().await;
    }
    let requests = received(&receiver, ACCOUNTS).await;
    assert_eq!(operator_count(node.operator_address(), INSPECTED).await, began, "the round has not ended");
    let accounts: BTreeSet<String> = requests.iter().map(|request| envelope(request)["account"].to_string()).collect();
    assert_eq!(accounts.len(), ACCOUNTS);
}

on_both_databases! {
    async fn what_was_written_while_no_node_ran_is_sent_after_a_start(engine: Engine) {
        let mut scene = Scene::with(engine, |webhooks| _ = webhooks.insert("sweep_seconds".into(), 3600.into())).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.nodes[0].kill();
        scene.nodes.clear();
        scene.insert(1, 1, "x").await;
        scene.start_another_node();
        received(&receiver, 1).await;
        scene.insert(2, 1, "x").await;
        received(&receiver, 2).await;
    }
}
