//! How many requests of an account are admitted, whatever node they come to.

use std::time::{Duration, Instant};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::busy::{PeriodTooShort, with_period_from};
use crate::support::client::{Client, operator_count, wait_for_count};
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;
use futures_util::future::join_all;
use http::Method;

const ME: &str = "/api/v1/me";

/// Generous: what counts is what Redis decides, however busy the machine is.
const PATIENT: i64 = 10_000;

async fn call(caller: &Client) -> Answer {
    caller.get(ME).send().await
}

fn remaining(answer: &Answer) -> Option<u64> {
    answer.number("x-ratelimit-remaining")
}

/// A node that has found its Redis.
async fn on_redis(site: Site, redis: &Redis) -> Acme {
    let mut acme = Acme::of(site.redis(redis).gateway("redis_timeout_ms", PATIENT));
    wait_for_count(acme.node.operator_address(), "formgate_redis_up", 1).await;
    acme
}

/// Waits as long as the answer says.
async fn wait_for_retry_after(refusal: &Answer) {
    tokio::time::sleep(Duration::from_secs(refusal.number("retry-after").expect("a 429 says how long"))).await;
}

#[tokio::test]
async fn sixty_requests_are_admitted_and_the_next_gets_a_retry_after() {
    let acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite));
    let caller = acme.caller();
    for left in (0..60).rev() {
        let answer = call(&caller).await;
        assert_eq!((answer.status.as_u16(), remaining(&answer)), (200, Some(left)));
        assert_eq!((answer.number("x-ratelimit-limit"), answer.number("retry-after")), (Some(60), None));
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let answer = call(&caller.over(protocol)).await;
        assert_eq!((answer.status.as_u16(), remaining(&answer)), (429, Some(0)));
        assert_eq!(answer.number("x-ratelimit-limit"), Some(60));
        assert!((1..=60).contains(&answer.number("retry-after").expect("a number of seconds")), "{answer:?}");
        assert_eq!(answer.json()["message"], "Too Many Attempts.");
    }
    let other = acme.site.token("acme", "other");
    assert_eq!(call(&caller.with(&other)).await.status, 429, "all tokens share the budget");
    let stranger = acme.stranger().get(ME).send().await;
    assert_eq!((stranger.status.as_u16(), remaining(&stranger)), (401, Some(0)), "a 401 tells what is left");
}

#[tokio::test]
async fn all_that_passed_the_token_check_spends_one_and_nothing_else_spends() {
    let acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite));
    let caller = acme.caller();
    let calls = [
        (caller.get(ME), 200),
        (caller.head(ME), 200),
        (caller.get("/api/v1/nowhere"), 404),
        (caller.get("/api/v1/submission/sub_1"), 404),
        (caller.delete(ME), 405),
        (caller.post("/api/v1/submission").body("no JSON"), 422),
        (caller.post("/api/v1/submission").body(vec![b' '; 1024 * 1024 + 1]).fresh(), 413),
        (caller.method(Method::OPTIONS, ME), 405),
    ];
    for (spent, (call, status)) in (1..).zip(calls) {
        let answer = call.send().await;
        assert_eq!((answer.status.as_u16(), remaining(&answer)), (status, Some(60 - spent)));
    }
    for (call, status) in [
        (acme.stranger().get(ME), 401),
        (caller.with("fg_wrong").get(ME), 401),
        (caller.get("/"), 404),
        (caller.get(ME).header("x-long", &"x".repeat(40_000)), 431),
    ] {
        let answer = call.send().await;
        assert_eq!((answer.status.as_u16(), remaining(&answer)), (status, Some(52)));
    }
    let nobody = caller.get(ME).host("nobody.example.test").server_name("acme.example.test").send().await;
    assert_eq!(nobody.status, 404);
    assert_eq!(remaining(&call(&caller).await), Some(51));
}

/// The window is longer on a machine that takes longer for the requests in it.
async fn a_window_opens_again(redis: Option<&Redis>) {
    with_period_from(1, async |seconds| {
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3).window_seconds(seconds);
        let acme = match redis {
            Some(redis) => on_redis(site, redis).await,
            None => Acme::of(site),
        };
        let caller = acme.caller().over(Protocol::Http2);
        let began = Instant::now();
        let mut admitted = Vec::new();
        for _ in 0..3 {
            admitted.push(remaining(&call(&caller).await));
        }
        let refusal = call(&caller).await;
        // Those that come before the window opens spend nothing, and don't keep it shut.
        let early = join_all((0..20).map(|_| call(&caller))).await;
        if began.elapsed() >= Duration::from_secs(seconds.into()) {
            return Err(PeriodTooShort);
        }
        assert_eq!(admitted, [Some(2), Some(1), Some(0)]);
        assert!(refusal.status == 429 && early.iter().all(|answer| answer.status == 429), "{refusal:?}, {early:?}");
        wait_for_retry_after(&refusal).await;
        assert_eq!(call(&caller).await.status, 200, "after waiting as long as told");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_waits_for_retry_after_is_admitted() {
    a_window_opens_again(None).await;
}

#[tokio::test]
async fn a_client_that_waits_for_retry_after_is_admitted_by_the_shared_window() {
    a_window_opens_again(Some(&Redis::start())).await;
}

#[tokio::test]
async fn budgets_are_each_accounts_own() {
    let redis = Redis::start();
    for acme in [Acme::of(two_accounts()), on_redis(two_accounts(), &redis).await] {
        let globex = acme.node.client().to(&acme.site.host("globex")).with(&acme.site.token("globex", "tests"));
        for left in [1, 0] {
            assert_eq!(remaining(&call(&acme.caller()).await), Some(left));
        }
        assert_eq!(call(&acme.caller()).await.status, 429);
        for left in [2, 1, 0] {
            let answer = call(&globex).await;
            assert_eq!((answer.number("x-ratelimit-limit"), remaining(&answer)), (Some(3), Some(left)));
        }
        assert_eq!(call(&globex).await.status, 429);
    }
}

fn two_accounts() -> Site {
    Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("requests_per_minute", 2)).tenant_with(
        "globex",
        Engine::Sqlite,
        |tenant| tenant.set("requests_per_minute", 3),
    )
}

#[tokio::test]
async fn of_three_hundred_requests_at_once_over_two_nodes_exactly_the_limit_is_admitted() {
    let redis = Redis::start();
    let acme = on_redis(Site::new().tenant("acme", Engine::Sqlite), &redis).await;
    let mut second = acme.site.start();
    wait_for_count(second.operator_address(), "formgate_redis_up", 1).await;
    let callers = [acme.caller(), second.client().to(&acme.host()).with(&acme.token)];
    let over = [Protocol::Http1, Protocol::Http2];
    for (caller, protocol) in callers.iter().flat_map(|caller| over.map(|protocol| (caller, protocol))) {
        // The HTTP/2 connection that the requests share; nothing is spent.
        let stranger = caller.with("nobody's").over(protocol).get(ME).send().await;
        assert_eq!((stranger.status.as_u16(), remaining(&stranger)), (401, Some(60)));
    }
    let calls = (0..300).map(|turn| {
        // Half of them over HTTP/1.1 would be 150 handshakes; a tenth is enough of both.
        let protocol = if turn % 10 < 1 { Protocol::Http1 } else { Protocol::Http2 };
        callers[turn % 2].over(protocol).get(ME).send()
    });
    let answers = join_all(calls).await;
    let (admitted, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((admitted.len(), refused.len()), (60, 240));
    assert!(refused.iter().all(|answer| answer.status == 429 && remaining(answer) == Some(0)));
    let mut left: Vec<_> = admitted.into_iter().filter_map(remaining).collect();
    left.sort_unstable();
    assert_eq!(left, (0..60).collect::<Vec<_>>(), "each number once over both nodes");
}

#[tokio::test]
async fn a_flood_over_the_limit_costs_the_shared_store_nothing() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3);
    let mut acme = on_redis(site, &redis).await;
    let operator = acme.node.operator_address();
    let caller = acme.caller().over(Protocol::Http2);
    for status in [200, 200, 200, 429] {
        assert_eq!(call(&caller).await.status, status);
    }
    let (before, since) = (redis.commands(), Instant::now());
    for answer in join_all((0..100).map(|_| call(&caller))).await {
        assert_eq!((answer.status.as_u16(), remaining(&answer)), (429, Some(0)));
    }
    // A node looks several times a second whether its connections are alive and whether tokens changed, and we ask how many
    // commands there were.
    let (spent, seconds) = (redis.commands() - before, since.elapsed().as_secs());
    assert!(spent <= 20 + 5 * seconds, "{spent} commands for 100 refusals in {seconds} s");
    let by_memory = r#"formgate_rate_decisions_total{by="memory",decision="refused"}"#;
    assert_eq!(operator_count(operator, by_memory).await, 100);
}
