//! The master dies under load, and another takes its place.

use std::time::{Duration, Instant};

use toml::{Table, Value};

use super::scene::{Callers, TIME_LIMIT, Undisturbed};
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;
use crate::support::redis_group::{Cluster, MASTER, Sentinels};

/// Noticing and electing takes a second or two on a quiet machine; the nodes add less than one.
const FAILOVER: Duration = Duration::from_secs(15);

/// Kills the master under two nodes with a key of the configuration. Their policy is to deny, so that a status tells what
/// decided.
async fn outlive(key: &str, value: impl Into<Value>, master: &mut Redis) {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
    let time_limit = i64::try_from(TIME_LIMIT.as_millis()).expect("a short time");
    let site = site.gateway("redis_timeout_ms", time_limit).gateway("on_redis_failure", "deny");
    let site = site.gateway(key, value).write();
    let token = site.token("acme", "tests");
    let nodes = [site.start(), site.start()];
    let clients = [0, 1].map(|n: usize| nodes[n].client().to(&site.host("acme")).with(&token));
    let undisturbed = Undisturbed::start();
    let callers = clients.each_ref().map(|client| Callers::start(3, client));
    tokio::time::sleep(Duration::from_millis(200)).await;

    master.kill();
    let killed = Instant::now();
    while clients[0].get("/api/v1/form").send().await.status != 503 {
        assert!(killed.elapsed() < FAILOVER, "nobody noticed");
    }
    for client in &clients {
        while client.get("/api/v1/form").send().await.status != 200 {
            assert!(killed.elapsed() < FAILOVER, "the shared window is not back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut slowest = Duration::ZERO;
    for callers in callers {
        let answers = callers.stop().await;
        assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
        slowest = slowest.max(Callers::slowest(&answers));
    }
    undisturbed.explains(slowest).await;
    // It is one window again, and word of tokens gets through.
    let mut left = Vec::new();
    for n in [0, 1, 0, 1] {
        left.extend(clients[n].get("/api/v1/form").send().await.number("x-ratelimit-remaining"));
    }
    assert!(left.windows(2).all(|pair| pair[0] == pair[1] + 1), "{left:?}");
    assert_eq!(site.run(&["token", "revoke", "--tenant", "acme", "1"], b"").stderr, "token 1 is revoked\n");
    let revoked = Instant::now();
    for client in &clients {
        while client.get("/api/v1/form").send().await.status != 401 {
            assert!(revoked.elapsed() < Duration::from_secs(2), "the token is still accepted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
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
