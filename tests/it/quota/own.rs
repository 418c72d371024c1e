//! Budgets that tokens have of their own: exact, within that of the account, and shared by the nodes.

use std::time::Duration;

use crate::support::client::{Client, wait_for_count};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// What an answer says of the budget: its status, the limit and what remains of it, and whose budget is spent.
type Told = (u16, u64, u64, Option<String>);

async fn told(client: &Client) -> Told {
    let answer = client.get("/api/v1/form").send().await;
    let number = |name| answer.number(name).expect("a header of the budget");
    let limit = (answer.status == 429).then(|| answer.json()["limit"].as_str().expect("whose").to_owned());
    (answer.status.as_u16(), number("x-ratelimit-limit"), number("x-ratelimit-remaining"), limit)
}

fn spent(limit: u64, of: &str) -> Told {
    (429, limit, 0, Some(of.to_owned()))
}

/// Nodes of one account with a limit of 12, and a token with a budget of 5.
struct Nodes {
    site: Site,
    nodes: Vec<Node>,
    limited: String,
    other: String,
}

impl Nodes {
    async fn start(engine: Engine, redis: Option<&Redis>, count: usize) -> Self {
        let site = Site::new().tenant("acme", engine).requests_per_minute(12);
        let site = match redis {
            Some(redis) => site.redis(redis).gateway("redis_timeout_ms", 20_000).write(),
            None => site.write(),
        };
        let limited = site.limited_token("acme", "limited", &["--requests-per-minute", "5"]);
        let other = site.token("acme", "other");
        let mut nodes: Vec<_> = (0..count).map(|_| site.start()).collect();
        if redis.is_some() {
            for node in &mut nodes {
                wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
            }
        }
        Self { site, nodes, limited, other }
    }

    fn client(&self, node: usize, token: &str) -> Client {
        self.nodes[node % self.nodes.len()].client().to(&self.site.host("acme")).with(token)
    }

    /// Spends both budgets, at each node in turn.
    async fn spend_both(&self) {
        for left in (0..5).rev() {
            assert_eq!(told(&self.client(left, &self.limited)).await, (200, 5, left as u64, None));
        }
        for node in 0..4 {
            assert_eq!(told(&self.client(node, &self.limited)).await, spent(5, "token"));
        }
        // What was refused spent nothing of the account.
        for left in (0..7).rev() {
            assert_eq!(told(&self.client(left, &self.other)).await, (200, 12, left as u64, None));
        }
        for node in 0..4 {
            assert_eq!(told(&self.client(node, &self.other)).await, spent(12, "account"));
        }
    }
}

on_both_databases! {
    async fn a_budget_of_its_own_ends_before_that_of_the_account_on_one_node(engine: Engine) {
        Nodes::start(engine, None, 1).await.spend_both().await;
    }

    async fn a_budget_of_its_own_is_shared_by_the_nodes(engine: Engine) {
        let redis = Redis::start();
        Nodes::start(engine, Some(&redis), 2).await.spend_both().await;
    }
}

#[tokio::test]
async fn the_headers_show_the_budget_that_is_nearer_to_its_end() {
    let redis = Redis::start();
    let nodes = Nodes::start(Engine::Sqlite, Some(&redis), 2).await;
    for left in (7..12).rev() {
        assert_eq!(told(&nodes.client(0, &nodes.other)).await, (200, 12, left, None));
    }
    for (own, account) in [(4, 6), (3, 5)] {
        let _: u64 = account;
        assert_eq!(told(&nodes.client(1, &nodes.limited)).await, (200, 5, own, None));
    }
    for left in (2..5).rev() {
        assert_eq!(told(&nodes.client(0, &nodes.other)).await, (200, 12, left, None));
    }
    // Now that of the account is nearer.
    assert_eq!(told(&nodes.client(1, &nodes.limited)).await, (200, 12, 1, None));
    assert_eq!(told(&nodes.client(0, &nodes.other)).await, (200, 12, 0, None));
    // It is refused by the account, which spends nothing of its own.
    for node in 0..4 {
        assert_eq!(told(&nodes.client(node, &nodes.limited)).await, spent(12, "account"));
    }
    let own: Vec<u8> = redis.run(&["GET", &format!("{}:token:1", nodes.site.window_key("acme").await)]);
    assert_eq!(own.len(), 3 * 8, "three requests");
}

#[tokio::test]
async fn both_budgets_are_spent_and_the_one_that_is_spent_for_longer_is_named() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3).write();
    let (first, second) =
        (site.limited_token("acme", "first", &["--requests-per-minute", "1"]), site.token("acme", "second"));
    let node = site.start();
    let client = |token: &str| node.client().to(&site.host("acme")).with(token);
    // The request of the second token leaves the account's window first.
    assert_eq!(told(&client(&second)).await, (200, 3, 2, None));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(told(&client(&first)).await, (200, 1, 0, None));
    assert_eq!(told(&client(&second)).await, (200, 3, 0, None));
    assert_eq!(told(&client(&first)).await, spent(1, "token"));
    assert_eq!(told(&client(&second)).await, spent(3, "account"));
}

#[tokio::test]
async fn a_budget_of_its_own_outlives_redis() {
    let mut redis = Redis::start();
    let mut nodes = Nodes::start(Engine::Sqlite, Some(&redis), 1).await;
    for left in [4, 3] {
        assert_eq!(told(&nodes.client(0, &nodes.limited)).await, (200, 5, left, None));
    }
    redis.kill();
    wait_for_count(nodes.nodes[0].operator_address(), "formgate_redis_up", 0).await;
    for left in [2, 1, 0] {
        assert_eq!(
            told(&nodes.client(0, &nodes.limited)).await,
            (200, 5, left, None),
            "the node goes on from what it admitted"
        );
    }
    assert_eq!(told(&nodes.client(0, &nodes.limited)).await, spent(5, "token"));
    assert_eq!(told(&nodes.client(0, &nodes.other)).await, (200, 12, 6, None));
}

#[tokio::test]
async fn a_budget_above_a_lowered_one_of_the_account_ends_with_that() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(12).write();
    let token = site.limited_token("acme", "limited", &["--requests-per-minute", "10"]);
    let site = site.requests_per_minute(2).write();
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(told(&client).await, (200, 2, 1, None));
    assert_eq!(told(&client).await, (200, 2, 0, None));
    assert_eq!(told(&client).await, spent(2, "account"));
}

#[tokio::test]
async fn whoever_waits_as_long_as_it_is_told_is_admitted() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(4).window_seconds(2).redis(&redis);
    let site = site.gateway("redis_timeout_ms", 20_000).write();
    let token = site.limited_token("acme", "limited", &["--requests-per-minute", "2"]);
    let mut node = site.start();
    wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
    let client = node.client().to(&site.host("acme")).with(&token);
    let mut refusals = 0;
    for _ in 0..12 {
        let answer = client.get("/api/v1/form").send().await;
        if answer.status == 429 {
            refusals += 1;
            tokio::time::sleep(Duration::from_secs(answer.number("retry-after").expect("a wait"))).await;
            assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        }
    }
    assert!(refusals >= 2, "{refusals}");
}
