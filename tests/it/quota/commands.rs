//! What a request costs Redis.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::Instant;

use formgate::tenant::token::PresentedToken;

use crate::support::client::Client;
use crate::support::fixture::{Engine, Site};
use crate::support::redis::Redis;

/// What Redis runs each second for each node, whatever the clients do, apart from the checks of the connection and of
/// missed token changes (PING, GET); with room to spare.
const BACKGROUND: u64 = 4;

/// Counts the commands of everybody else.
struct Counter<'a>(&'a Redis, Instant);

impl<'a> Counter<'a> {
    fn start(redis: &'a Redis) -> Self {
        redis.run::<()>(&["CONFIG", "RESETSTAT"]);
        Self(redis, Instant::now())
    }

    /// How often each command was called.
    fn calls(&self) -> Vec<(String, u64)> {
        let statistics: String = self.0.run(&["INFO", "commandstats"]);
        let call = |line: &str| {
            let (command, values) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = values.split_once(',')?.0.parse().ok()?;
            // The test's own connections say who they are and reset the statistics.
            let ours = command == "info" || command == "config|resetstat" || command.starts_with("client|");
            (!ours).then(|| (command.to_owned(), calls))
        };
        statistics.lines().filter_map(call).collect()
    }

    /// Asserts that there were fewer than twenty, or no more than the background makes in a long time.
    fn assert_few(&self) {
        let calls = self.calls();
        let counted = calls.iter().filter(|(name, _)| !["ping", "get"].contains(&name.as_str()));
        let total: u64 = counted.map(|(_, calls)| calls).sum();
        assert!(total < (BACKGROUND * (self.1.elapsed().as_secs() + 1)).max(20), "{calls:?} in {:?}", self.1.elapsed());
    }
}

/// Hears what scripts call. The figures of [`Counter`] also hold what nodes ask for in the background.
struct Monitor<'a>(&'a Redis, BufReader<TcpStream>);

impl<'a> Monitor<'a> {
    fn start(redis: &'a Redis) -> Self {
        Self(redis, redis.monitor())
    }

    /// The commands of scripts until now, in lower case; of `getrange` also the two ends.
    fn calls(&mut self) -> Vec<String> {
        self.0.run::<()>(&["ECHO", "until now"]);
        let lines = self.1.by_ref().lines().map(|line| line.expect("Redis goes on"));
        let lines = lines.take_while(|line| !line.contains("\"until now\""));
        let call = |line: String| {
            let mut words = line.split_once(" lua] ")?.1.split("\" \"").map(|word| word.trim_matches('"'));
            let command = words.next()?.to_lowercase();
            Some(if command == "getrange" {
                format!("{command} {}", words.skip(1).collect::<Vec<_>>().join(" "))
            } else {
                command
            })
        };
        lines.filter_map(call).collect()
    }
}

fn site(redis: &Redis, limit: u32) -> Site {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(limit).redis(redis);
    // The limiter of bad tokens is not what is tested here.
    let limits: toml::Table = "bad_tokens_burst = 10000".parse().expect("TOML");
    site.gateway("redis_timeout_ms", 5000).gateway("limits", limits).write()
}

/// How often a command was called.
fn of(calls: &[(String, u64)], command: &str) -> u64 {
    calls.iter().find(|(name, _)| name == command).map_or(0, |(_, calls)| *calls)
}

/// A thousand requests, twenty at a time; the status of each.
async fn thousand(clients: impl Iterator<Item = Client>) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut clients = clients.take(1000).peekable();
    while clients.peek().is_some() {
        let calls =
            clients.by_ref().take(20).map(|client| async move { client.get("/api/v1/form").send().await.status });
        let answered = futures_util::future::join_all(calls).await;
        statuses.extend(answered.into_iter().map(|status| status.as_u16()));
    }
    statuses
}

#[tokio::test]
async fn a_thousand_refusals_cost_it_next_to_nothing() {
    let redis = Redis::start();
    let site = site(&redis, 5);
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(client.get("/api/v1/form").send().await.status, status);
    }
    let counter = Counter::start(&redis);
    let statuses = thousand(std::iter::repeat(client)).await;
    assert!(statuses.iter().all(|status| *status == 429), "{statuses:?}");
    counter.assert_few();
}

#[tokio::test]
async fn a_thousand_invalid_tokens_cost_it_next_to_nothing() {
    let redis = Redis::start();
    let site = site(&redis, 60);
    let node = site.start();
    let client = node.client().to(&site.host("acme"));
    let same = PresentedToken::generate().expose().to_owned();
    let counter = Counter::start(&redis);
    let tokens = (0..).map(|n| match n % 3 {
        0 => "fg_mistyped".to_owned(),
        1 => same.clone(),
        _ => PresentedToken::generate().expose().to_owned(),
    });
    let statuses = thousand(tokens.map(|token| client.with(&token))).await;
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    counter.assert_few();
    let answer = client.with(&site.token("acme", "tests")).get("/api/v1/form").send().await;
    assert_eq!(answer.number("x-ratelimit-remaining"), Some(59), "none of them spent anything");
}

#[tokio::test]
async fn any_other_request_costs_it_one_script() {
    any_request_costs_one_script(500, &["evalsha", "time", "get", "set", "append", "pttl"]).await;
    any_request_costs_one_script(5000, &["evalsha", "time", "get", "set", "append", "pttl"]).await;
}

/// Requests of a token with a budget of its own cost one script each too, and those of others nothing more than before.
#[tokio::test]
async fn a_budget_of_a_token_costs_no_second_call() {
    let redis = Redis::start();
    let site = site(&redis, 500);
    let node = site.start();
    let limited = site.limited_token("acme", "limited", &["--requests-per-minute", "100"]);
    let other = site.token("acme", "other");
    for (token, gets, appends) in [(&limited, 3, 2), (&other, 1, 1)] {
        let client = node.client().to(&site.host("acme")).with(token);
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        let counter = Counter::start(&redis);
        let mut monitor = Monitor::start(&redis);
        for _ in 0..10 {
            assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        }
        let calls = monitor.calls();
        let count = |command: &str| calls.iter().filter(|call| *call == command).count();
        assert_eq!((count("get"), count("append")), (10 * gets, 10 * appends), "{calls:?}");
        assert_eq!(of(&counter.calls(), "evalsha"), 10);
    }
}

#[tokio::test]
async fn a_thousand_refusals_by_a_budget_of_a_token_cost_it_next_to_nothing() {
    let redis = Redis::start();
    let site = site(&redis, 60);
    let node = site.start();
    let token = site.limited_token("acme", "limited", &["--requests-per-minute", "2"]);
    let client = node.client().to(&site.host("acme")).with(&token);
    for status in [200, 200, 429] {
        assert_eq!(client.get("/api/v1/form").send().await.status, status);
    }
    let counter = Counter::start(&redis);
    let statuses = thousand(std::iter::repeat(client)).await;
    assert!(statuses.iter().all(|status| *status == 429), "{statuses:?}");
    // A look at the account's window once in a second.
    counter.assert_few();
}

/// Requests to an account with this limit cost one script each, which uses no other commands than these.
async fn any_request_costs_one_script(limit: u32, scripts: &[&str]) {
    let redis = Redis::start();
    let site = site(&redis, limit);
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    assert_eq!(client.get("/api/v1/form").send().await.status, 200);
    let counter = Counter::start(&redis);
    for path in ["/api/v1/form", "/api/v1/me", "/api/v1/nothing", "/api/v1/submission/x"].repeat(10) {
        client.get(path).send().await;
    }
    let calls = counter.calls();
    assert_eq!(of(&calls, "evalsha"), 40, "{calls:?}");
    let others: Vec<_> = calls.iter().filter(|(name, _)| !scripts.contains(&name.as_str())).collect();
    // What was counted is published behind.
    assert!(others.iter().all(|(name, _)| ["ping", "hset", "pexpire"].contains(&&**name)), "{calls:?}");
}

#[tokio::test]
async fn a_long_log_is_never_read_whole() {
    const LIMIT: u32 = 5000;
    let redis = Redis::start();
    let site = site(&redis, LIMIT);
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    let statuses = thousand(std::iter::repeat(client.clone())).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    for (path, times, reports) in
        [("/api/v1/form", 1001, false), ("/api/v1/me", 1002, true), ("/api/v1/form", 1003, false)]
    {
        let mut monitor = Monitor::start(&redis);
        let answer = client.get(path).send().await;
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(u64::from(LIMIT) - times));
        let calls = monitor.calls();
        let of = |command: &str| calls.iter().filter(|call| call.split(' ').next() == Some(command)).count();
        // What is got whole is the tally: to report it, and to write it anew, which happens now and then.
        let is_whole = reports || of("set") > 0;
        assert_eq!((of("get"), of("append")), (usize::from(is_whole), 1), "{calls:?}");
        // No range of it is longer than a few entries.
        let ranges = calls.iter().filter_map(|call| call.strip_prefix("getrange "));
        let lengths: Vec<i64> = ranges
            .map(|range| {
                let (from, to) = range.split_once(' ').expect("a range has two ends");
                to.parse::<i64>().expect("a number") - from.parse::<i64>().expect("a number") + 1
            })
            .collect();
        assert!(!lengths.is_empty() && lengths.iter().all(|length| *length <= 256), "{calls:?}");
    }
}
