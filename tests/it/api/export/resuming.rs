//! An export that broke off is resumed at any node, and nothing of it is held.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use serde_json::Value;

use super::{Exported, PATH, bulky, export, get, id_of, lines};
use crate::api::changes::follower::{Follower, all_submissions};
use crate::support::client::{Client, operator_count, wait_for_count};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// How many submissions of how many bytes are more than a node and the sockets hold.
pub(super) const SUBMISSIONS: i64 = 4_000;
pub(super) const BYTES: usize = 5_000;

/// Until something is noticed, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Begins an export and reads some bytes of it. Returns the lines, the cursor, and what is left unread.
pub(super) async fn begin(
    client: &Client,
    parameters: &str,
    bytes: usize,
) -> (Vec<Value>, String, hyper::body::Incoming) {
    let response = get(client, parameters).begin().await;
    assert_eq!(response.status(), 200, "{response:?}");
    let cursor = response.headers()["formgate-cursor"].to_str().unwrap().to_owned();
    let (mut body, mut read) = (response.into_body(), Vec::new());
    while read.len() < bytes {
        let frame = body.frame().await.expect("more of the body").expect("more of the body");
        read.extend_from_slice(&frame.into_data().expect("data"));
    }
    (lines(&read), cursor, body)
}

/// Waits until no connection to a database is in use.
async fn wait_until_idle(node: &mut Node, engine: Engine) {
    let database = if engine == Engine::Sqlite { "sqlite" } else { "postgres" };
    let since = Instant::now();
    loop {
        let of = |state: &str| format!("formgate_database_connections{{database=\"{database}\",state=\"{state}\"}}");
        let address = node.operator_address();
        let (open, idle) = (operator_count(address, &of("open")).await, operator_count(address, &of("idle")).await);
        if open > 0 && open == idle {
            return;
        }
        assert!(since.elapsed() < SOON, "{open} are open, and {idle} of them idle");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The first export that is not refused with 409.
pub(super) async fn export_soon(client: &Client, parameters: &str) -> Exported {
    let since = Instant::now();
    loop {
        let answer = get(client, parameters).send().await;
        if answer.status != 409 {
            return Exported::read(&answer);
        }
        assert!(answer.number("retry-after") >= Some(1) && since.elapsed() < SOON, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

on_both_databases! {
    async fn an_export_of_a_killed_node_is_resumed_by_another_one(engine: Engine) {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", engine).requests_per_minute(1000).redis(&redis);
        let site = site.gateway("redis_timeout_ms", 20_000).write();
        site.import("acme", &bulky(1..SUBMISSIONS, BYTES));
        let token = site.token("acme", "tests");
        let mut nodes = [site.start(), site.start()];
        for node in &mut nodes {
            wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        }
        let [first, second] = [&nodes[0], &nodes[1]].map(|node| node.client().to(&site.host("acme")).with(&token));
        let (mut rows, cursor, body) = begin(&first, "", 2_000_000).await;
        nodes[0].kill();
        drop(body);
        let database = crate::support::database::Database::connect(site.database_url("acme")).await;
        // One that was sent, one that was not, and one that changes.
        database.execute("DELETE FROM answers WHERE submission_id IN (1, 3000); DELETE FROM submissions WHERE id IN (1, 3000); UPDATE submissions SET status = 'back' WHERE id IN (2, 3001)").await;
        let last = rows.last().expect("some rows")["id"].as_str().unwrap().to_owned();
        let rest = export_soon(&second, &format!("&after={last}&as_of={cursor}")).await;
        assert_eq!(rest.cursor, cursor);
        assert!(id_of(&rest.rows[0]) > id_of(rows.last().unwrap()));
        rows.extend(rest.rows);
        assert!(rows.iter().map(id_of).is_sorted_by(|one, next| one < next));
        let copy = rows.into_iter().map(|row| (row["id"].as_str().unwrap().to_owned(), row)).collect();
        let mut follower = Follower::from(&second, "limit=500", copy, &cursor);
        assert_eq!(follower.catch_up().await.len(), 4);
        let expected = export_soon(&second, "").await.copy();
        assert_eq!(follower.copy.len(), expected.len());
        assert!(follower.copy == expected, "the parts and the feed are the state");
    }

    async fn a_client_that_is_gone_holds_nothing(engine: Engine) {
        let site = Site::new().tenant("acme", engine).requests_per_minute(1000).write();
        site.import("acme", &bulky(1..SUBMISSIONS, BYTES));
        let token = site.token("acme", "tests");
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let (rows, cursor, body) = begin(&client, "", 1_000_000).await;
        assert_eq!(get(&client, "").send().await.status, 409);
        // It holds no connection meanwhile: nothing of the database is in use.
        wait_until_idle(&mut node, engine).await;
        drop(body);
        let last = rows.last().unwrap()["id"].as_str().unwrap().to_owned();
        let rest = export_soon(&client, &format!("&after={last}&as_of={cursor}")).await;
        assert_eq!(rows.len() + rest.rows.len(), usize::try_from(SUBMISSIONS - 1).unwrap());
        assert_eq!((rest.cursor, rest.snapshot.as_str()), (cursor, "range"));
        wait_for_count(node.operator_address(), "formgate_memory_reserved_bytes", 0).await;
        assert_eq!(operator_count(node.operator_address(), "formgate_answers_cut_total{by=\"client\"}").await, 1);
    }

    async fn an_export_since_a_cursor_is_resumed_too(engine: Engine) {
        let (account, _) = super::filled(engine, 1..30, "x");
        let database = account.database().await;
        let before = export(&account.client, "").await;
        database.execute("UPDATE submissions SET status = 'back' WHERE id % 2 = 0; DELETE FROM answers WHERE submission_id = 21; DELETE FROM submissions WHERE id = 21").await;
        let whole = export(&account.client, &format!("&since={}", before.cursor)).await;
        let ids: Vec<i64> = whole.rows.iter().map(id_of).collect();
        assert_eq!(ids, (1..30).filter(|id| id % 2 == 0 || *id == 21).collect::<Vec<_>>());
        database.execute("UPDATE submissions SET status = 'info' WHERE id = 28").await;
        let parameters = format!("&since={}&after=sub_16&as_of={}", before.cursor, whole.cursor);
        let rest = export(&account.client, &parameters).await;
        assert_eq!(rest.cursor, whole.cursor);
        assert_eq!(rest.rows.iter().map(id_of).collect::<Vec<_>>(), [18, 20, 21, 22, 24, 26, 28]);
        let mut copy = before.copy();
        whole.apply_to(&mut copy);
        rest.apply_to(&mut copy);
        let mut follower = Follower::from(&account.client, "", copy, &rest.cursor);
        assert_eq!(follower.catch_up().await, [("updated".to_owned(), "sub_28".to_owned())]);
        assert_eq!(follower.copy, all_submissions(&account.client, &serde_json::json!({})).await);
        let head = account.client.head(&format!("{PATH}?format=ndjson{parameters}")).send().await;
        assert_eq!(head.header("formgate-cursor"), Some(&*whole.cursor));
    }
}
