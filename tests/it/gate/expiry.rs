//! Tokens that expire, and tokens that are replaced: refused at their instant on every node, though nodes cache them.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::support::client::Call;
use crate::support::fixture::{Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

fn listed(site: &Site) -> Vec<Value> {
    let output = site.run(&["token", "list", "--tenant", "acme", "--json"], b"");
    serde_json::from_str(&output.stdout).expect("a JSON array")
}

fn call(node: &Node, site: &Site, token: &str) -> Call {
    node.client().to(&site.host("acme")).with(token).get("/api/v1/me")
}

async fn status(node: &Node, site: &Site, token: &str) -> u16 {
    call(node, site, token).send().await.status.as_u16()
}

/// Waits until a node refuses a token, and returns when the last call that it accepted was sent.
async fn last_accepted(node: &Node, site: &Site, token: &str) -> Timestamp {
    let (began, mut accepted) = (Instant::now(), Timestamp::now());
    loop {
        let sent = Timestamp::now();
        match status(node, site, token).await {
            200 => accepted = sent,
            other => {
                assert_eq!(other, 401);
                return accepted;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(30), "still accepted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

on_both_databases! {
    async fn an_expired_token_is_refused_at_its_instant_on_every_node(engine: Engine) {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", engine).redis(&redis).requests_per_minute(100_000).write();
        let nodes = [site.start(), site.start()];
        let output = site.run(&["token", "create", "--tenant", "acme", "--name", "short", "--expires", "6s"], b"");
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        let token = output.stdout.trim_end();
        let expires_at: Timestamp = listed(&site)[0]["expires_at"].as_str().expect("an expiry").parse().expect("an instant");

        // Both nodes have it in their cache long before.
        let accepted = tokio::join!(last_accepted(&nodes[0], &site, token), last_accepted(&nodes[1], &site, token));
        for accepted in [accepted.0, accepted.1] {
            assert!(accepted < expires_at, "accepted at {accepted}, after {expires_at}");
            let early = expires_at.duration_since(accepted);
            assert!(early.as_millis() < 1000, "the last call that was accepted is {early:?} before the expiry");
        }
        for node in &nodes {
            let missing = node.client().to(&site.host("acme")).get("/api/v1/me").header("x-request-id", "same");
            let (missing, expired) =
                (missing.send().await, call(node, &site, token).header("x-request-id", "same").send().await);
            assert_eq!((expired.status, &expired.body), (missing.status, &missing.body), "like every other bad token");
        }
    }

    async fn a_rotation_refuses_no_request_until_the_overlap_ends(engine: Engine) {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", engine).redis(&redis).requests_per_minute(100_000).write();
        let old = site.token("acme", "zapier");
        let nodes = [site.start(), site.start()];
        for node in &nodes {
            assert_eq!(status(node, &site, &old).await, 200);
        }
        let rotated = site.run_in_thread(&["token", "rotate", "1", "--tenant", "acme", "--overlap", "4s"]).await;
        assert_eq!(rotated.code, 0, "{}", rotated.stderr);
        let new = rotated.stdout.trim_end();
        assert_eq!(rotated.stdout, format!("{new}\n"), "only the value");
        let tokens = listed(&site);
        assert_eq!(tokens[1]["replaces"], 1);
        assert_eq!(tokens[1]["name"], "zapier");
        let until: Timestamp = tokens[0]["expires_at"].as_str().expect("an expiry").parse().expect("an instant");

        for node in &nodes {
            assert_eq!(status(node, &site, new).await, 200, "at once");
            assert_eq!(status(node, &site, &old).await, 200, "during the overlap");
        }
        let accepted = tokio::join!(last_accepted(&nodes[0], &site, &old), last_accepted(&nodes[1], &site, &old));
        for accepted in [accepted.0, accepted.1] {
            let early = until.duration_since(accepted).as_millis();
            assert!((1..1000).contains(&early), "accepted until {early} ms before the end of the overlap");
        }
        for node in &nodes {
            assert_eq!(status(node, &site, new).await, 200);
        }
    }

    async fn the_last_use_is_stored_with_its_route_and_network(engine: Engine) {
        let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).write();
        let (used, lost) = (site.token("acme", "used"), site.token("acme", "lost"));
        let mut node = site.start();
        assert_eq!(status(&node, &site, &used).await, 200);
        let missing = node.client().to(&site.host("acme")).with(&lost).get("/api/v1/nowhere").send().await;
        assert_eq!(missing.status, 404);
        assert_eq!(node.stop(Duration::from_secs(10)).await, 0);
        let tokens = listed(&site);
        let last = |at: usize| (tokens[at]["last_used_route"].clone(), tokens[at]["last_used_network"].clone());
        assert_eq!(last(0), ("GET /me".into(), "127.0.0.0/24".into()));
        assert_eq!(last(1), ("none".into(), "127.0.0.0/24".into()), "a request counts as a use whatever its outcome");
    }
}
