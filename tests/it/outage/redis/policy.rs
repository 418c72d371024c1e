//! What `on_redis_failure` decides while Redis is away.

use super::scene::Scene;

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
