//! A cluster that loses one master without a replica: accounts on the other masters don't notice.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scene::TIME_LIMIT;
use crate::support::client::{Client, operator_get, wait_for_count};
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;
use crate::support::redis_group::Cluster;

/// How long the shard is away.
const AWAY: Duration = Duration::from_secs(4);

/// Far longer than a shard takes to be back.
const LIMIT: Duration = Duration::from_secs(30);

/// What the log says when a shard goes away.
const GONE: &str = "Redis shard unreachable";

async fn status(client: &Client) -> u16 {
    client.get("/api/v1/form").send().await.status.as_u16()
}

/// Breaks the second master and mends it. The policy is to deny, so that the status shows what decided.
async fn outlive(break_master: impl FnOnce(&mut Redis), mend: impl FnOnce(&mut Redis)) {
    let slugs: Vec<String> = (0..12).map(|n| format!("tenant{n}")).collect();
    let mut cluster = Cluster::start("{tenant0}");
    cluster.serve_without_all_slots();
    let site = slugs.iter().fold(Site::new(), |site, slug| site.tenant(slug, Engine::Sqlite));
    let time_limit = i64::try_from(TIME_LIMIT.as_millis()).expect("a short time");
    let site = site.gateway("redis_timeout_ms", time_limit).gateway("on_redis_failure", "deny");
    let site = site.gateway("redis_cluster", cluster.urls()).requests_per_minute(100_000).write();
    let mut node = site.start();
    let operator = node.operator_address();
    wait_for_count(operator, "formgate_redis_up", 1).await;
    wait_for_count(operator, "formgate_redis_shards_down", 0).await;
    let (lost, kept): (Vec<_>, Vec<_>) = slugs.iter().partition(|slug| cluster.place_of(&format!("{{{slug}}}")) == 1);
    let [lost, kept] = [lost, kept].map(|slugs| {
        let client = |slug: &String| node.client().to(&site.host(slug)).with(&site.token(slug, "tests"));
        slugs.into_iter().map(client).collect::<Vec<_>>()
    });
    assert!(!lost.is_empty() && kept.len() > 2, "{} and {} of them", lost.len(), kept.len());
    for client in lost.iter().chain(&kept) {
        assert_eq!(status(client).await, 200);
    }
    let before = node.count_lines(GONE);

    break_master(&mut cluster.masters[1]);
    // The others don't need it to learn the script again.
    for other in [0, 2] {
        cluster.masters[other].run::<()>(&["SCRIPT", "FLUSH"]);
    }
    let broken = Instant::now();
    while broken.elapsed() < AWAY {
        let refused = join_all(lost.iter().map(status));
        let served = join_all(kept.iter().map(status));
        let (refused, served) = tokio::join!(refused, served);
        assert!(refused.iter().all(|status| *status == 503), "{refused:?}");
        assert!(served.iter().all(|status| *status == 200), "{served:?}, {:?} after it broke", broken.elapsed());
    }
    wait_for_count(operator, "formgate_redis_shards_down", 1).await;
    wait_for_count(operator, "formgate_redis_up", 1).await;
    let readiness = operator_get(operator, "/readyz").await;
    assert_eq!((readiness.status.as_u16(), &readiness.json()["parts"]["redis"]), (200, &"1 shard is away".into()));

    mend(&mut cluster.masters[1]);
    let mended = Instant::now();
    for client in &lost {
        while status(client).await != 200 {
            assert!(mended.elapsed() < LIMIT, "the shard is not back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    wait_for_count(operator, "formgate_redis_shards_down", 0).await;
    assert_eq!(node.count_lines(GONE), before + 1, "{}", node.log());
}

#[tokio::test]
async fn a_master_that_dies() {
    outlive(Redis::kill, Redis::restart).await;
}

#[tokio::test]
async fn a_master_that_hangs() {
    outlive(|master| master.signal("STOP"), |master| master.signal("CONT")).await;
}
