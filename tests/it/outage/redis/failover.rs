//! The master dies under load, and another takes its place.

use std::time::{Duration, Instant};

use toml::{Table, Value};

use super::scene::{Callers, Undisturbed, failures};
use crate::support::client::wait_for_count;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;
use crate::support::redis_group::{Cluster, MASTER, Sentinels};
use crate::support::revocation::assert_heard;

/// Far less than a failover takes, so that requests meet it.
const TIME_LIMIT: i64 = 300;

/// The longest that Redis may hold up an answer. A node that was too busy to read what Redis says waits for it again.
const LONGEST: Duration = Duration::from_millis(4500);

/// Noticing and electing takes a second or two on a quiet machine; the nodes add less than one.
const FAILOVER: Duration = Duration::from_secs(60);

/// How many calls of a node to Redis failed, in any way that an outage makes them fail.
async fn failed_calls(node: &mut Node) -> u64 {
    let operator = node.operator_address();
    let mut count = 0;
    for reason in ["down", "timeout", "connection"] {
        count += failures(operator, reason).await;
    }
    count
}

/// Kills the master under two nodes with a key of the configuration. Their policy is to deny, so that a status tells what
/// decided.
async fn outlive(key: &str, value: impl Into<Value>, master: &mut Redis) {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
    let site = site.gateway("redis_timeout_ms", TIME_LIMIT).gateway("on_redis_failure", "deny");
    let site = site.gateway(key, value).write();
    let token = site.token("acme", "tests");
    let mut nodes = [site.start(), site.start()];
    for node in &mut nodes {
        wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        wait_for_count(node.operator_address(), "formgate_redis_shards_down", 0).await;
    }
    let clients = [0, 1].map(|n: usize| nodes[n].client().to(&site.host("acme")).with(&token));
    let undisturbed = Undisturbed::start();
    let callers = clients.each_ref().map(|client| Callers::start(3, client));
    for callers in &callers {
        callers.wait_for_more(5).await;
    }

    let mut before = Vec::new();
    for node in &mut nodes {
        before.push(failed_calls(node).await);
    }
    master.kill();
    let killed = Instant::now();
    for (node, before) in nodes.iter_mut().zip(before) {
        while failed_calls(node).await == before {
            assert!(killed.elapsed() < FAILOVER, "a node did not notice");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for client in &clients {
        while client.get("/api/v1/form").send().await.status != 200 {
            assert!(killed.elapsed() < FAILOVER, "the shared window is not back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for callers in &callers {
        callers.wait_for_more(20).await;
    }
    let mut slowest = Duration::ZERO;
    for callers in callers {
        let answers = callers.stop().await;
        assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
        slowest = slowest.max(Callers::slowest(&answers));
    }
    undisturbed.explains(slowest, LONGEST).await;
    // It is one window again, unless a call takes a busy machine longer than the time limit. And word of tokens gets through.
    let mut attempts = 0..20;
    loop {
        let mut left = Vec::new();
        for n in [0, 1, 0, 1] {
            left.extend(clients[n].get("/api/v1/form").send().await.number("x-ratelimit-remaining"));
        }
        if left.len() == 4 && left.windows(2).all(|pair| pair[0] == pair[1] + 1) {
            break;
        }
        assert!(attempts.next().is_some(), "{left:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_heard(&site, &clients, &[]).await;
}

#[tokio::test]
async fn sentinels_name_another_master() {
    let mut sentinels = Sentinels::start("secret");
    let mut table = Table::new();
    table.insert("sentinels".into(), sentinels.urls().into());
    table.insert("master".into(), MASTER.into());
    table.insert("password".into(), "secret".into());
    outlive("redis_sentinel", table, &mut sentinels.master).await;
}

#[tokio::test]
async fn a_cluster_promotes_a_replica() {
    let mut cluster = Cluster::start("{acme}");
    let urls = cluster.urls();
    outlive("redis_cluster", urls, &mut cluster.masters[0]).await;
}
