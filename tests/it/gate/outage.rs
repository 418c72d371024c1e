//! What becomes of requests while Redis does not answer, and after.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::{operator_count, wait_for_count};
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;

/// How long a node may take until it is back at the shared window, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// How many calls to Redis a node has in flight at once, at most: four on each of two connections.
const CALLS: u64 = 2 * 4;

const LIMIT: u32 = 5;

/// A node with a policy for when Redis fails.
fn with_policy(redis: &Redis, policy: Option<&str>) -> Acme {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(LIMIT).redis(redis);
    // A Redis on a busy machine takes longer than the default now and then.
    let site = site.gateway("redis_timeout_ms", 1500);
    Acme::of(match policy {
        Some(policy) => site.gateway("on_redis_failure", policy),
        None => site,
    })
}

/// The same, whose requests the shared window has decided so far; one of them is spent.
async fn served_with_policy(redis: &Redis, policy: Option<&str>) -> Acme {
    let mut acme = with_policy(redis, policy);
    wait_for_count(acme.node.operator_address(), "formgate_redis_up", 1).await;
    assert_eq!(call(&acme).await.status, 200);
    acme
}

async fn call(acme: &Acme) -> Answer {
    acme.caller().get("/api/v1/me").send().await
}

/// Asserts that requests did not wait for Redis one after the other: only calls that were in flight when it failed may have.
async fn assert_prompt(acme: &mut Acme) {
    let operator = acme.node.operator_address();
    let waited = operator_count(operator, r#"formgate_redis_failures_total{reason="timeout"}"#).await;
    assert!(waited <= CALLS, "{waited} calls to Redis took the whole time limit");
}

async fn decided_by_the_store(acme: &mut Acme) -> u64 {
    let operator = acme.node.operator_address();
    let admitted = operator_count(operator, r#"formgate_rate_decisions_total{by="shared",decision="admitted"}"#).await;
    admitted + operator_count(operator, r#"formgate_rate_decisions_total{by="shared",decision="refused"}"#).await
}

/// Calls until the store decides again.
async fn comes_back(acme: &mut Acme) {
    let (before, since) = (decided_by_the_store(acme).await, Instant::now());
    while decided_by_the_store(acme).await == before {
        assert!(since.elapsed() < BACK_WITHIN, "the store is back, and this node does not ask it");
        call(acme).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn by_default_a_node_limits_alone_until_the_store_is_back() {
    let mut redis = Redis::start();
    let mut acme = served_with_policy(&redis, None).await;
    redis.kill();
    for left in (0..u64::from(LIMIT) - 1).rev() {
        let answer = call(&acme).await;
        // What it admitted while the store answered counts too.
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(left)));
    }
    let refusal = call(&acme).await;
    assert_eq!(refusal.status, 429);
    assert!((1..=60).contains(&refusal.number("retry-after").expect("a number of seconds")));
    assert_prompt(&mut acme).await;
    redis.restart();
    comes_back(&mut acme).await;
}

#[tokio::test]
async fn with_deny_requests_are_refused_until_the_store_is_back() {
    let mut redis = Redis::start();
    let mut acme = served_with_policy(&redis, Some("deny")).await;
    redis.kill();
    for _ in 0..2 * LIMIT {
        let answer = call(&acme).await;
        assert_eq!((answer.status.as_u16(), answer.json()), (503, json!({"message": "Service Unavailable"})));
        assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
    }
    let stranger = acme.stranger().get("/api/v1/me").send().await;
    assert_eq!(stranger.status, 401, "a token is asked for first");
    assert_prompt(&mut acme).await;
    redis.restart();
    comes_back(&mut acme).await;
    assert_eq!(call(&acme).await.status, 200);
}

#[tokio::test]
async fn with_allow_requests_are_let_through_until_the_store_is_back() {
    let mut redis = Redis::start();
    let mut acme = served_with_policy(&redis, Some("allow")).await;
    redis.kill();
    for _ in 0..2 * LIMIT {
        assert_eq!(call(&acme).await.status, 200, "past the limit of {LIMIT}, too");
    }
    assert_prompt(&mut acme).await;
    redis.restart();
    comes_back(&mut acme).await;
}

#[tokio::test]
async fn a_store_that_hangs_makes_no_request_hang() {
    let mut redis = Redis::start();
    let mut acme = served_with_policy(&redis, Some("allow")).await;
    redis.signal("STOP");
    let answers = futures_util::future::join_all((0..20).map(|_| call(&acme))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    for _ in 0..20 {
        assert_eq!(call(&acme).await.status, 200);
    }
    assert_prompt(&mut acme).await;
    redis.signal("CONT");
    comes_back(&mut acme).await;
}

#[tokio::test]
async fn a_node_starts_without_its_store_and_finds_it_later() {
    let mut redis = Redis::start();
    redis.kill();
    let mut acme = with_policy(&redis, None);
    assert_eq!(call(&acme).await.status, 200);
    redis.restart();
    comes_back(&mut acme).await;
}
