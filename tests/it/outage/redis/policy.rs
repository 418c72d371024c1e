//! What `on_redis_failure` decides while Redis is away.

use super::scene::Scene;
use crate::support::client::{operator_count, wait_for_count};
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;

/// What this node admitted while Redis was there counts when it is not.
#[tokio::test]
async fn a_node_that_decides_alone_knows_what_it_admitted_before() {
    let mut scene = Scene::new(10, "local").await;
    assert_eq!(scene.count(200, 4).await, 4);
    scene.redis.kill();
    assert_eq!(scene.count(200, 9).await, 6);
    let refused = scene.call().await;
    assert_eq!((refused.status.as_u16(), refused.number("x-ratelimit-remaining")), (429, Some(0)));
    assert!((1..=61).contains(&refused.number("retry-after").unwrap()), "{refused:?}");
    assert_eq!(refused.json()["usage"][0]["requests"], 10, "{refused:?}");
}

#[tokio::test]
async fn a_node_that_denies_says_when_to_come_back() {
    let mut scene = Scene::new(10, "deny").await;
    assert_eq!(scene.count(200, 4).await, 4);
    scene.redis.kill();
    assert_eq!(scene.count(503, 5).await, 5);
    let denied = scene.call().await;
    assert!(denied.number("retry-after") >= Some(1), "{denied:?}");
    assert_eq!(denied.number("x-ratelimit-limit"), Some(10), "{denied:?}");
    let unauthenticated = scene.client.with("fg_x").get("/api/v1/form").send().await;
    assert_eq!(unauthenticated.status, 401);
}

#[tokio::test]
async fn a_node_that_allows_has_no_limit() {
    let mut scene = Scene::new(10, "allow").await;
    assert_eq!(scene.count(200, 4).await, 4);
    scene.redis.kill();
    assert_eq!(scene.count(200, 30).await, 30);
    assert_eq!(scene.call().await.number("x-ratelimit-remaining"), Some(0));
    let unauthenticated = scene.client.with("fg_x").get("/api/v1/form").send().await;
    assert_eq!(unauthenticated.status, 401);
}

/// A window that is known to be full stays full, whatever the policy: only time empties it.
#[tokio::test]
async fn a_full_window_stays_full_when_redis_goes() {
    let mut scene = Scene::new(5, "allow").await;
    assert_eq!((scene.count(200, 5).await, scene.count(429, 1).await), (5, 1));
    scene.redis.kill();
    assert_eq!(scene.count(429, 5).await, 5);
}

/// A busy machine keeps Redis, or the node, from the processor for some tenths of a second while Redis is well. That happens
/// here for a known time. If it happens for longer, another time.
#[tokio::test]
async fn a_moment_without_an_answer_does_not_make_a_node_decide_alone() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(1000).redis(&redis).write();
    let mut node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    let operator = node.operator_address();
    let decided = async |by: &str| {
        operator_count(operator, &format!(r#"formgate_rate_decisions_total{{by="{by}",decision="admitted"}}"#)).await
    };
    let mut calls = 0;
    while decided("shared").await < 5 {
        assert!(calls < 20, "{} of {calls} decided alone", decided("local").await);
        wait_for_count(operator, "formgate_redis_up", 1).await;
        redis.run::<()>(&["CLIENT", "PAUSE", "200", "ALL"]);
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        calls += 1;
    }
}
