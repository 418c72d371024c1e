//! What others do to a Redis that answers: forget the scripts, and write where the windows are.

use std::time::Duration;

use super::scene::{GONE, Scene};
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;

#[tokio::test]
async fn a_script_that_was_forgotten_is_sent_again() {
    let mut scene = Scene::new(100, "deny").await;
    for left in (70..100).rev() {
        if left % 10 == 0 {
            scene.redis.run::<()>(&["SCRIPT", "FLUSH"]);
        }
        let answer = scene.call().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(left)));
    }
    assert_eq!(scene.said(GONE), 0);
}

/// One connection carries all calls. Redis takes no new one here, so that the one that stands by has to carry on.
#[tokio::test]
async fn a_connection_that_is_closed_costs_one_request_at_most() {
    let mut scene = Scene::new(100_000, "deny").await;
    let mut operator = scene.redis.connect();
    let mut run =
        |command: &[&str]| -> String { redis::cmd(command[0]).arg(&command[1..]).query(&mut operator).unwrap() };
    // The operator's, and two of the node.
    while run(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run(&["CONFIG", "SET", "maxclients", "1"]);
    let carries = loop {
        assert_eq!(scene.count(200, 10).await, 10);
        let clients = run(&["CLIENT", "LIST", "TYPE", "normal"]);
        let carry: Vec<_> = clients.lines().filter(|client| client.contains(" cmd=evalsha ")).collect();
        assert!(carry.len() < 2, "{clients}");
        // A moment ago, it may have been tried whether it is there.
        if let [carries] = carry[..] {
            break carries.split([' ', '=']).nth(1).expect("an id").to_owned();
        }
    };
    run(&["CLIENT", "KILL", "ID", &carries]);
    let admitted = scene.count(200, 50).await;
    assert!(admitted >= 49, "{admitted} of 50");
    assert_eq!(scene.said(GONE), 0);
}

/// It is one account's, so the policy decides for that account, and the others don't notice.
#[tokio::test]
async fn a_window_that_is_no_text_concerns_its_account_alone() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite);
    let site = site.requests_per_minute(100).redis(&redis).gateway("redis_timeout_ms", 1000);
    let site = site.gateway("on_redis_failure", "deny").write();
    let mut node = site.start();
    let [acme, globex] =
        ["acme", "globex"].map(|slug| node.client().to(&site.host(slug)).with(&site.token(slug, "tests")));
    let window = site.window_key("acme").await;
    redis.run::<()>(&["HSET", &window, "a", "b"]);
    for left in (90..100).rev() {
        assert_eq!(acme.get("/api/v1/form").send().await.status, 503);
        let answer = globex.get("/api/v1/form").send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(left)));
    }
    assert!(!node.log().contains(GONE));
    redis.run::<()>(&["DEL", &window]);
    assert_eq!(acme.get("/api/v1/form").send().await.number("x-ratelimit-remaining"), Some(99));
}

#[tokio::test]
async fn a_text_that_is_no_window_is_replaced() {
    let scene = Scene::new(10, "deny").await;
    let window = scene.site.window_key("acme").await;
    scene.redis.run::<()>(&["SET", &window, "somebody else's"]);
    assert_eq!(scene.call().await.number("x-ratelimit-remaining"), Some(9));
}

/// Eight bytes a piece, it looks like a window, and a full one. It shuts an account out for one window at most.
#[tokio::test]
async fn a_text_that_looks_like_a_window_is_outlived() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(5).window_seconds(1);
    let site = site.redis(&redis).gateway("redis_timeout_ms", 5000).write();
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    let window = site.window_key("acme").await;
    // Half of the texts are from the past, whatever the time is, and half from the future.
    for first in ["\u{1}", "A"] {
        redis.run::<()>(&["SET", &window, &format!("{first}AAAAAAA").repeat(10)]);
        let answer = client.get("/api/v1/form").send().await;
        if answer.status == 429 {
            tokio::time::sleep(Duration::from_secs(answer.number("retry-after").unwrap())).await;
            assert_eq!(client.get("/api/v1/form").send().await.status, 200, "after {first:?}");
        }
    }
}
