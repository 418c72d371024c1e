//! Several gateway processes on one Redis: in no span of the window's length is more admitted than the limit.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::client::Client;
use crate::support::clock;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;

const WINDOW: Duration = Duration::from_secs(1);

/// Three nodes that share a Redis, and a client of each.
struct Nodes {
    redis: Redis,
    clients: Vec<Client>,
    _nodes: Vec<Node>,
    site: Site,
}

impl Nodes {
    fn start(limit: u32) -> Self {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(limit);
        // A busy machine is no slow store: no node decides alone here.
        let site = site.window_seconds(1).redis(&redis).gateway("redis_timeout_ms", 20_000).write();
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
            let said = node.wait_for_log(WINDOW, |line| {
                let (_, rest) = line.split_once(r#""timestamp":""#)?;
                rest.split_once('"')?.0.parse::<jiff::Timestamp>().ok()
            });
            said.expect("a line has a time").duration_since(jiff::Timestamp::now()).as_hours()
        };
        assert!(hours(&mut nodes[1]) > 70 && hours(&mut nodes[2]) < 0, "the clocks are right");
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
    let nodes = Nodes::start(LIMIT as u32);
    let end = Instant::now() + WINDOW * 4;
    let callers = (0..CALLERS).map(async |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let mut admitted = Vec::new();
        while Instant::now() < end {
            let client = &nodes.clients[random.random_range(0..3)];
            let sent = Instant::now();
            let answer = client.get("/api/v1/nothing").send().await;
            if answer.status == 404 {
                admitted.push((sent, Instant::now()));
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
        while Instant::now() < end {
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
    assert!(admitted.len() >= 3 * LIMIT, "only {} were admitted", admitted.len());
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
    let nodes = Nodes::start(LIMIT as u32);
    for client in &nodes.clients {
        assert_eq!(
            client.with("fg_x").get("/api/v1/nothing").send().await.number("x-ratelimit-remaining"),
            Some(LIMIT)
        );
    }
    // On so slow a machine that places come free again meanwhile, another time.
    for _ in 0..5 {
        let began = Instant::now();
        let answers = join_all((0..80).map(|n| nodes.clients[n % 3].get("/api/v1/nothing").send())).await;
        let took = began.elapsed();
        tokio::time::sleep(WINDOW + Duration::from_millis(50)).await;
        if took < WINDOW {
            let admitted = answers.iter().filter(|answer| answer.status == 404);
            let mut left: Vec<_> = admitted.map(|answer| answer.number("x-ratelimit-remaining").unwrap()).collect();
            left.sort_unstable();
            assert_eq!(left, (0..LIMIT).collect::<Vec<_>>());
            return;
        }
    }
    panic!("no burst took less than {WINDOW:?}");
}

#[tokio::test]
async fn a_client_that_waits_for_retry_after_is_admitted_on_any_node() {
    let nodes = Nodes::start(3);
    for round in 0..3 {
        let mut wait = None;
        for n in 0.. {
            let answer = nodes.clients[n % 3].get("/api/v1/nothing").send().await;
            if answer.status == 429 {
                wait = answer.number("retry-after");
                break;
            }
        }
        tokio::time::sleep(Duration::from_secs(wait.unwrap())).await;
        let answer = nodes.clients[round].get("/api/v1/nothing").send().await;
        assert_eq!(answer.status, 404, "after {wait:?} s");
    }
}
