//! One export of an account at a time over all nodes, and a few on a node.

use std::time::{Duration, Instant};

use super::resuming::{BYTES, SUBMISSIONS, begin, export_soon};
use super::{bulky, get};
use crate::support::client::wait_for_count;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::redis::Redis;

on_both_databases! {
    async fn a_second_export_of_an_account_is_refused_by_every_node_until_the_first_one_ends(engine: Engine) {
        let mut redis = Redis::start();
        let site = Site::new().tenant("acme", engine).requests_per_minute(1000).redis(&redis);
        let site = site.gateway("redis_timeout_ms", 5_000).write();
        site.import("acme", &bulky(1..SUBMISSIONS, BYTES));
        let token = site.token("acme", "tests");
        let mut nodes = [site.start(), site.start()];
        for node in &mut nodes {
            wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        }
        let clients = [&nodes[0], &nodes[1]].map(|node| node.client().to(&site.host("acme")).with(&token));
        let (_, _, body) = begin(&clients[0], "", 1).await;
        // For longer than a lease lasts that is not renewed.
        let since = Instant::now();
        let mut refused = 0;
        while since.elapsed() < Duration::from_secs(7) {
            for client in &clients {
                let before = client.get("/api/v1/me").send().await.number("x-ratelimit-remaining").unwrap();
                let answer = get(client, "").send().await;
                assert_eq!(answer.status, 409, "{answer:?}");
                assert!(answer.number("retry-after") >= Some(1));
                assert_eq!(answer.number("x-ratelimit-remaining"), Some(before - 1), "it spends one");
                // HEAD needs no turn.
                assert_eq!(client.head(&format!("{}?format=ndjson", super::PATH)).send().await.status, 200);
                refused += 1;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(refused > 10);
        drop(body);
        for client in &clients {
            assert_eq!(export_soon(client, "").await.rows.len() as i64, SUBMISSIONS - 1);
        }
        // Without Redis, each node decides alone.
        redis.kill();
        for node in &mut nodes {
            wait_for_count(node.operator_address(), "formgate_redis_up", 0).await;
        }
        let (_, _, first) = begin(&clients[0], "", 1).await;
        assert_eq!(get(&clients[0], "").send().await.status, 409);
        let (_, _, second) = begin(&clients[1], "", 1).await;
        drop((first, second));
    }
}

#[tokio::test]
async fn a_node_sends_a_few_exports_at_once_and_refuses_others_with_503() {
    let names = ["a", "b", "c", "d", "e"];
    let mut site = Site::new();
    for name in names {
        site = site.tenant(name, Engine::Sqlite);
    }
    let site = site.requests_per_minute(1000).write();
    let lines = bulky(1..SUBMISSIONS, BYTES);
    for name in names {
        site.import(name, &lines);
    }
    let node = site.start();
    let clients = names.map(|name| node.client().to(&site.host(name)).with(&site.token(name, "tests")));
    let mut open = Vec::new();
    for client in &clients[..4] {
        open.push(begin(client, "", 1).await);
    }
    let answer = get(&clients[4], "").send().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["message"].as_str()),
        (503, Some("Too many exports are being sent"))
    );
    assert!(answer.number("retry-after") >= Some(1));
    assert_eq!(get(&clients[0], "").send().await.status, 409, "the account has one");
    // Others are served meanwhile.
    assert_eq!(clients[0].post("/api/v1/submission").send().await.status, 200);
    open.pop();
    let since = Instant::now();
    while get(&clients[4], "&form=2").send().await.status == 503 {
        assert!(since.elapsed() < Duration::from_secs(30), "the place is not given back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
