//! Tokens that expire, and tokens that are replaced: refused at their instant on every node, though nodes cache them.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::Value;

use crate::support::busy::{PeriodTooShort, with_period_from};
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

/// Until when a node accepted a token.
struct Accepted {
    /// When the last call that it accepted was sent; none if it accepted none.
    last_sent: Option<Timestamp>,
    /// When the call that it refused was answered.
    refused: Timestamp,
}

impl Accepted {
    /// Calls a node until it refuses a token.
    async fn by(node: &Node, site: &Site, token: &str) -> Self {
        let (began, mut last_sent) = (Instant::now(), None);
        loop {
            let sent = Timestamp::now();
            match status(node, site, token).await {
                200 => last_sent = Some(sent),
                other => {
                    assert_eq!(other, 401);
                    return Self { last_sent, refused: Timestamp::now() };
                }
            }
            assert!(began.elapsed() < Duration::from_secs(120), "still accepted");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asserts that a token was accepted up to an instant. If a node did not even get a call before it, the token ended too
    /// soon for this machine.
    fn assert_ended_at(nodes: &[Self], end: Timestamp) -> Result<(), PeriodTooShort> {
        for Self { last_sent, refused } in nodes {
            assert!(*refused >= end, "refused at {refused}, before {end}");
            let last_sent = last_sent.ok_or(PeriodTooShort)?;
            assert!(last_sent < end, "sent at {last_sent} and accepted, after {end}");
        }
        Ok(())
    }
}

on_both_databases! {
    async fn an_expired_token_is_refused_at_its_instant_on_every_node(engine: Engine) {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", engine).redis(&redis).requests_per_minute(100_000).write();
        let nodes = [site.start(), site.start()];
        with_period_from(3, async |seconds| {
            let expires = format!("{seconds}s");
            let create = ["token", "create", "--tenant", "acme", "--name", "short", "--expires", &expires];
            let output = site.run(&create, b"");
            assert_eq!((output.code, output.stderr.as_str()), (0, ""));
            let token = output.stdout.trim_end();

            // Both nodes have it in their cache long before.
            let accepted = join_all(nodes.iter().map(|node| Accepted::by(node, &site, token))).await;
            let tokens = listed(&site);
            let expires_at = tokens.last().expect("it is listed")["expires_at"].as_str().expect("an expiry");
            Accepted::assert_ended_at(&accepted, expires_at.parse().expect("an instant"))?;
            for node in &nodes {
                let missing = node.client().to(&site.host("acme")).get("/api/v1/me").header("x-request-id", "same");
                let (missing, expired) =
                    (missing.send().await, call(node, &site, token).header("x-request-id", "same").send().await);
                assert_eq!((expired.status, &expired.body), (missing.status, &missing.body), "like every other bad token");
            }
            Ok(())
        })
        .await;
    }

    async fn a_rotation_refuses_no_request_until_the_overlap_ends(engine: Engine) {
        let redis = Redis::start();
        with_period_from(3, async |seconds| {
            let site = Site::new().tenant("acme", engine).redis(&redis).requests_per_minute(100_000).write();
            let old = site.token("acme", "zapier");
            let nodes = [site.start(), site.start()];
            for node in &nodes {
                assert_eq!(status(node, &site, &old).await, 200);
            }
            let overlap = format!("{seconds}s");
            let rotated = site.run_in_thread(&["token", "rotate", "1", "--tenant", "acme", "--overlap", &overlap]).await;
            assert_eq!(rotated.code, 0, "{}", rotated.stderr);
            let new = rotated.stdout.trim_end();
            assert_eq!(rotated.stdout, format!("{new}\n"), "only the value");
            for node in &nodes {
                assert_eq!(status(node, &site, new).await, 200, "at once");
            }
            let accepted = join_all(nodes.iter().map(|node| Accepted::by(node, &site, &old))).await;
            let tokens = listed(&site);
            assert_eq!(tokens[1]["replaces"], 1);
            assert_eq!(tokens[1]["name"], "zapier");
            let until = tokens[0]["expires_at"].as_str().expect("an expiry");
            Accepted::assert_ended_at(&accepted, until.parse().expect("an instant"))?;
            for node in &nodes {
                assert_eq!(status(node, &site, new).await, 200);
            }
            Ok(())
        })
        .await;
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
