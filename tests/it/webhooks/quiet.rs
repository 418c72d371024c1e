//! Webhooks of accounts that nobody has called since the node started: it knows their subscriptions nevertheless.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use formgate::store::{DatabaseLocation, HasSubscriptions, Store};
use toml::{Table, Value};

use super::scene::{LIMIT, Scene, envelope, received, without_delivery};
use crate::support::client::{operator_count, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::receiver::{Act, Receiver};

/// How many accounts there are. A round of inspections leaves at least 0.1 s between two of them.
const ACCOUNTS: usize = 200;

/// When the first round of inspections ended; the start of the task before that.
const INSPECTED: &str = r#"formgate_task_last_success_timestamp_seconds{task="databases"}"#;

/// How many tenants are watched.
const WATCHED: &str = "formgate_webhook_tenants_watched";

/// How many SQLite connections are open to serve.
const OPEN_SQLITE: &str = r#"formgate_database_connections{database="sqlite",state="open"}"#;

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

/// Inserts a submission, as another program would.
async fn write(scene: &Scene, url: &str) {
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
        write(&scene, url).await;
    }
    let requests = received(&receiver, ACCOUNTS).await;
    assert_eq!(operator_count(node.operator_address(), INSPECTED).await, began, "the round has not ended");
    let accounts: BTreeSet<String> = requests.iter().map(|request| envelope(request)["account"].to_string()).collect();
    assert_eq!(accounts.len(), ACCOUNTS);
}

#[tokio::test]
async fn only_those_with_something_to_send_stay_open_after_a_start() {
    /// So old is a file's last change that the next one is sure to change its metadata.
    const OLD: Duration = Duration::from_secs(4);
    let mut scene =
        Scene::with(Engine::Sqlite, |webhooks| _ = webhooks.insert("sweep_seconds".into(), 3600.into())).await;
    let receiver = Receiver::always(Act::status(204)).await;
    scene.subscribe(&receiver, "submission.created", None).await;
    assert_eq!(scene.nodes[0].stop(LIMIT).await, 0);
    scene.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    let url = scene.site.database_url("acme").to_owned();
    let file = Path::new(url.strip_prefix("sqlite:").unwrap());
    let copies = ["quiet-1", "quiet-2", "quiet-3", "unsubscribed", "written"].map(|name| copy(file, name));
    let [quiet, _, _, (_, unsubscribed), (_, written)] = &copies;
    let database = Database::connect(unsubscribed).await;
    database.execute("DELETE FROM subscriptions").await;
    database.close().await;
    write(&scene, written).await;
    for url in copies.iter().map(|(_, url)| url).chain([&url]) {
        let is_old = |path: &str| fs::metadata(path).unwrap().modified().unwrap().elapsed().is_ok_and(|age| age > OLD);
        while !is_old(url.strip_prefix("sqlite:").unwrap()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    let mut node = Node::spawn(&add_copies(&scene, copies.iter().cloned()));
    let operator = node.operator_address();
    wait_for_count(operator, WATCHED, 5).await;
    let requests = received(&receiver, 1).await;
    assert_eq!(envelope(&requests[0])["account"], "written");
    let open = operator_count(operator, OPEN_SQLITE).await;
    assert!((1..=2).contains(&open), "a reader and a writer of one file, not {open}");

    write(&scene, &quiet.1).await;
    let requests = received(&receiver, 2).await;
    assert_eq!(envelope(&requests[1])["account"], "quiet-1");
    assert_eq!(operator_count(operator, WATCHED).await, 5);
}

on_both_databases! {
    async fn subscriptions_are_at_rest_only_if_there_is_nothing_to_do_for_them(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let url = scene.site.database_url("acme");
        let store = Store::open(&DatabaseLocation::parse(url, "/".as_ref()).unwrap(), 1).await.unwrap();
        let found = async || store.has_subscriptions().await.unwrap();
        assert_eq!(found().await, HasSubscriptions::No);
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        store.events_ahead().await.unwrap();
        assert_eq!(found().await, HasSubscriptions::AtRest);

        scene.insert(1, 1, "x").await;
        assert_eq!(found().await, HasSubscriptions::Yes, "it has no number yet");
        let unreleased = "SELECT count(*) FROM change_state WHERE released_seq < last_seq";
        while store.events_ahead().await.unwrap().ready.is_empty() || scene.database.integers(unreleased).await != [0] {
            assert_eq!(found().await, HasSubscriptions::Yes, "it is not due yet");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(found().await, HasSubscriptions::Yes, "it is due");
        let at_rest = "UPDATE subscriptions SET event = 'submission.created', state = 'active', form_id = NULL, \
                         position = (SELECT last_seq FROM change_state), leased_until = NULL, next_attempt_at = NULL";
        let at = scene.at(1);
        for change in [
            "state = 'failing'",
            "position = NULL",
            "position = 0",
            "position = position + 1",
            "event = 'submission.deleted', form_id = 1",
            &format!("leased_until = {at}"),
            &format!("next_attempt_at = {at}"),
        ] {
            scene.execute(at_rest).await;
            assert_eq!(found().await, HasSubscriptions::AtRest, "{change}");
            scene.execute("INSERT INTO form_notes (form_id) VALUES (1)").await;
            assert_eq!(found().await, HasSubscriptions::AtRest, "{change}");
            scene.execute(&format!("UPDATE subscriptions SET {change}")).await;
            assert_eq!(found().await, HasSubscriptions::Yes, "{change}");
        }
        scene.execute("UPDATE subscriptions SET state = 'paused'").await;
        assert_eq!(found().await, HasSubscriptions::AtRest, "nothing is sent");
        scene.execute(at_rest).await;
        scene.execute("INSERT INTO webhook_events (subscription_id, seq, submission_id) SELECT id, 1, 1 FROM subscriptions").await;
        assert_eq!(found().await, HasSubscriptions::Yes, "an event was set aside");
        store.close().await;
    }

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
