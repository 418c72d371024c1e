//! Several gateway processes on one Redis: in no span of the window's length is more admitted than the limit.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::busy::{PeriodTooShort, with_period_from};
use crate::support::client::{Client, wait_for_count};
use crate::support::clock;
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;

const WINDOW: Duration = Duration::from_secs(1);

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three nodes that share a Redis, and a client of each.
struct Nodes {
    redis: Redis,
    clients: Vec<Client>,
    _nodes: Vec<Node>,
    site: Site,
}

impl Nodes {
    async fn start(limit: u32) -> Self {
        Self::with_window(limit, 1).await
    }

    async fn with_window(limit: u32, seconds: u32) -> Self {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(limit);
        // A busy machine is no slow store: no node decides alone here.
        let site = site.window_seconds(seconds).redis(&redis).gateway("redis_timeout_ms", 20_000).write();
        let token = site.token("acme", "tests");
        // What the clock on a node's wall says changes nothing.
        let library = clock::library();
        let library = library.to_str().expect("a path of the system's");
        let clock = |offset| [("LD_PRELOAD", library), ("FAKETIME", offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        let mut nodes = vec![
            Node::spawn(&site.config_path),
            Node::spawn_in(&site.config_path, &clock("+3d")),
            Node::spawn_in(&site.config_path, &clock("-2h")),
        ];
        let hours = |node: &mut Node| {
            let said = node.wait_for_log(PATIENCE, |line| {
                let (_, rest) = line.split_once(r#""timestamp":""#)?;
                rest.split_once('"')?.0.parse::<jiff::Timestamp>().ok()
            });
            said.expect("a line has a time").duration_since(jiff::Timestamp::now()).as_hours()
        };
        assert!(hours(&mut nodes[1]) > 70 && hours(&mut nodes[2]) < 0, "the clocks are right");
        for node in &mut nodes {
            wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        }
        let clients = nodes.iter().map(|node| node.client().to(&site.host("acme")).with(&token)).collect();
        Self { redis, clients, _nodes: nodes, site }
    }
}

/// Follows the log in Redis, which holds each admission, stamped by the server, for longer than a window.
struct Follower {
    connection: redis::Connection,
    window: String,
    last: Vec<[u8; 8]>,
    stamps: Vec<u64>,
}

impl Follower {
    fn look(&mut self) {
        let log: Vec<u8> = redis::cmd("GET").arg(&self.window).query(&mut self.connection).unwrap();
        let log = log.as_chunks::<8>().0.to_vec();
        // The head has left since the last look, and the rest stands at the beginning now.
        let left = (0..=self.last.len()).find(|left| log.starts_with(&self.last[*left..])).expect("nothing fits last");
        let new = &log[self.last.len() - left..];
        self.stamps.extend(new.iter().map(|entry| u64::from(u32::from_be_bytes(entry[..4].try_into().unwrap()))));
        self.last = log;
    }
}

#[tokio::test]
async fn no_window_has_more_than_the_limit_whatever_the_nodes_and_their_clocks() {
    const LIMIT: usize = 12;
    const CALLERS: u64 = 12;
    let nodes = Nodes::start(LIMIT as u32).await;
    // At least so long, and until enough were admitted to tell.
    let (end, count) = (Instant::now() + WINDOW * 4, Cell::new(0));
    let is_over = || {
        assert!(Instant::now() < end + PATIENCE, "only {} were admitted", count.get());
        Instant::now() >= end && count.get() >= 3 * LIMIT
    };
    let callers = (0..CALLERS).map(async |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let mut admitted = Vec::new();
        while !is_over() {
            let client = &nodes.clients[random.random_range(0..3)];
            let sent = Instant::now();
            let answer = client.get("/api/v1/nothing").send().await;
            if answer.status == 404 {
                admitted.push((sent, Instant::now()));
                count.set(count.get() + 1);
            } else {
                assert_eq!(answer.status, 429);
            }
            // Now at once, now a pause: bursts at the end of a window and at the beginning of the next.
            let pause = if random.random_range(0..3) == 0 { random.random_range(0..400) } else { 3 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        admitted
    });
    let follow = async {
        let (connection, window) = (nodes.redis.connect(), nodes.site.window_key("acme").await);
        let mut follower = Follower { connection, window, last: Vec::new(), stamps: Vec::new() };
        while !is_over() {
            follower.look();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        follower
    };
    let (admitted, mut follower) = tokio::join!(join_all(callers), follow);
    follower.look();

    // What Redis holds: by its clock, in whole milliseconds, so that two that are a window apart may be a little less.
    let (stamps, window) = (&follower.stamps, WINDOW.as_millis() as u64);
    let crowded = stamps.windows(LIMIT + 1).find(|stamps| stamps[LIMIT].wrapping_sub(stamps[0]) <= window);
    assert_eq!(crowded, None);
    // It holds all of it.
    let mut admitted: Vec<(Instant, Instant)> = admitted.concat();
    assert_eq!(admitted.len(), stamps.len());
    // And by the clock of the callers, without a look at Redis: what was sent and answered within a window.
    admitted.sort();
    for (start, _) in &admitted {
        let within = admitted.iter().filter(|(sent, answered)| sent >= start && *answered < *start + WINDOW).count();
        assert!(within <= LIMIT, "{within} in one window");
    }
}

#[tokio::test]
async fn in_a_burst_each_place_is_given_once() {
    const LIMIT: u64 = 60;
    // On so slow a machine that places come free again meanwhile, another time with a longer window.
    with_period_from(1, async |seconds| {
        let nodes = Nodes::with_window(LIMIT as u32, seconds).await;
        // Over one connection each, which are open already: 80 handshakes would take longer than all else.
        let clients: Vec<_> = nodes.clients.iter().map(|client| client.over(Protocol::Http2)).collect();
        for client in &clients {
            assert_eq!(
                client.with("fg_x").get("/api/v1/nothing").send().await.number("x-ratelimit-remaining"),
                Some(LIMIT)
            );
        }
        let began = Instant::now();
        let answers = join_all((0..80).map(|n| clients[n % 3].get("/api/v1/nothing").send())).await;
        if began.elapsed() >= Duration::from_secs(seconds.into()) {
            return Err(PeriodTooShort);
        }
        let admitted = answers.iter().filter(|answer| answer.status == 404);
        let mut left: Vec<_> = admitted.map(|answer| answer.number("x-ratelimit-remaining").unwrap()).collect();
        left.sort_unstable();
        assert_eq!(left, (0..LIMIT).collect::<Vec<_>>());
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_waits_for_retry_after_is_admitted_on_any_node() {
    const LIMIT: usize = 3;
    let nodes = Nodes::start(LIMIT as u32).await;
    for round in 0..3 {
        // At once, since one after the other may take so long that none is refused.
        let mut attempts = 0..10;
        let wait = loop {
            assert!(attempts.next().is_some(), "no request is refused");
            let calls = (0..4 * LIMIT).map(|n| nodes.clients[n % 3].get("/api/v1/nothing").send());
            let answers = join_all(calls).await;
            let refused = answers.iter().filter(|answer| answer.status == 429);
            if let Some(wait) = refused.filter_map(|answer| answer.number("retry-after")).max() {
                break wait;
            }
        };
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let answer = nodes.clients[round].get("/api/v1/nothing").send().await;
        assert_eq!(answer.status, 404, "after {wait} s");
    }
}
