//! A Redis that may evict keys is used, and reported everywhere an operator looks.

use super::scene::Scene;
use crate::support::client::{operator_get, wait_for_count};
use crate::support::redis::Redis;

#[tokio::test]
async fn a_redis_that_may_evict_budgets_is_reported() {
    let redis = Redis::start();
    redis.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let mut scene = Scene::before_redis_answers(redis, 100, "local");
    let operator = scene.node.operator_address();
    wait_for_count(operator, "formgate_redis_evicts", 1).await;
    assert_eq!(scene.call().await.status, 200);
    let readiness = operator_get(operator, "/readyz").await;
    assert_eq!(readiness.status, 200);
    let redis = readiness.json()["parts"]["redis"].as_str().expect("a state").to_owned();
    assert!(redis.contains("maxmemory-policy"), "{redis}");
    assert_eq!(scene.said(r#""policy":"allkeys-lru""#), 1, "{}", scene.node.log());
    let checked = scene.site.run(&["check"], b"");
    assert_eq!(checked.code, 0, "{checked:?}");
    let warning = "warning: Redis may evict budgets, since its maxmemory-policy is allkeys-lru: set it to noeviction\n";
    assert!(checked.stdout.contains(warning), "{checked:?}");
}

#[tokio::test]
async fn a_redis_that_forbids_info_serves() {
    let redis = Redis::start();
    redis.run::<()>(&["ACL", "SETUSER", "default", "-info"]);
    let mut scene = Scene::before_redis_answers(redis, 100, "deny");
    scene.wait_until_redis_is(true).await;
    assert_eq!(scene.count(200, 5).await, 5);
    assert_eq!(operator_get(scene.node.operator_address(), "/readyz").await.json()["parts"]["redis"], "ok");
}
