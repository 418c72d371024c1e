//! What an export costs: said beforehand, spent at once or not at all, of the account's budget and of the token's own.

use super::{PATH, export, get, many};
use crate::support::client::{Client, wait_for_count};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// Three requests' worth.
const SUBMISSIONS: i64 = 20_500;

struct Scene {
    site: Site,
    node: Node,
    token: String,
}

impl Scene {
    async fn start(engine: Engine, redis: Option<&Redis>, limit: u32, submissions: i64) -> Self {
        let site = Site::new().tenant("acme", engine).requests_per_minute(limit);
        let site = match redis {
            Some(redis) => site.redis(redis).gateway("redis_timeout_ms", 20_000).write(),
            None => site.write(),
        };
        site.import("acme", &many(1..submissions + 1, "x"));
        let token = site.token("acme", "tests");
        let mut node = site.start();
        if redis.is_some() {
            wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        }
        Self { site, node, token }
    }

    fn client(&self, token: &str) -> Client {
        self.node.client().to(&self.site.host("acme")).with(token)
    }

    fn limited(&self, limit: u32) -> Client {
        self.client(&self.site.limited_token("acme", "limited", &["--requests-per-minute", &limit.to_string()]))
    }
}

/// What is left after a request that spends one.
async fn left(client: &Client) -> u64 {
    client.get("/api/v1/form").send().await.number("x-ratelimit-remaining").expect("a rate header")
}

/// The cost that HEAD says.
async fn cost(client: &Client, parameters: &str) -> Option<u64> {
    let answer = client.head(&format!("{PATH}?format=ndjson{parameters}")).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.number("formgate-cost")
}

on_both_databases! {
    async fn an_export_spends_a_request_for_every_ten_thousand_rows(engine: Engine) {
        let scene = Scene::start(engine, None, 60, SUBMISSIONS).await;
        let client = scene.client(&scene.token);
        assert_eq!(left(&client).await, 59);
        assert_eq!(cost(&client, "").await, Some(3));
        assert_eq!(left(&client).await, 57);
        let answer = get(&client, "").send().await;
        assert_eq!((answer.number("formgate-cost"), answer.number("x-ratelimit-remaining")), (Some(3), Some(54)));
        let exported = super::Exported::read(&answer);
        assert_eq!(exported.rows.len(), 20_500);
        // What is left of it costs less, and so does a form, or nothing that changed.
        assert_eq!(cost(&client, &format!("&after=10600&as_of={}", exported.cursor)).await, Some(1));
        assert_eq!(cost(&client, "&form=2").await, Some(1));
        assert_eq!(cost(&client, &format!("&since={}", exported.cursor)).await, Some(1));
        let filtered = client.post(&format!("{PATH}?format=ndjson")).json(&serde_json::json!({"statuses": ["pending"]}));
        let filtered = super::Exported::read(&filtered.send().await);
        assert_eq!((filtered.cost, filtered.rows.len() as i64), (2, SUBMISSIONS - SUBMISSIONS / 3));
    }
}

/// With a limit of 5, the export costs 2; a token with 3 of its own pays 1.
async fn too_few_are_refused(redis: Option<&Redis>) {
    let scene = Scene::start(Engine::Sqlite, redis, 5, SUBMISSIONS).await;
    let client = scene.client(&scene.token);
    let limited = scene.limited(4);
    assert_eq!(cost(&limited, "").await, Some(2), "half of what the token may spend");
    assert_eq!(cost(&client, "").await, Some(2));
    assert_eq!(left(&limited).await, 2, "of 4");
    assert_eq!(left(&client).await, 1, "of 5");
    // The last one is given back.
    for _ in 0..3 {
        let answer = get(&client, "").send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (429, Some(1)), "{answer:?}");
        let refusal = answer.json();
        assert_eq!((&refusal["message"], &refusal["limit"]), (&"Too Many Attempts.".into(), &"account".into()));
        assert!(answer.number("retry-after").is_some_and(|wait| (1..=60).contains(&wait)), "{answer:?}");
        let answer = get(&limited, "").send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (429, Some(1)), "{answer:?}");
    }
    assert_eq!(left(&limited).await, 0, "the last one of the account");
    assert_eq!(get(&client, "").send().await.status, 429);
}

#[tokio::test]
async fn an_export_that_too_little_is_left_for_spends_nothing_on_one_node() {
    too_few_are_refused(None).await;
}

#[tokio::test]
async fn an_export_that_too_little_is_left_for_spends_nothing_with_redis() {
    too_few_are_refused(Some(&Redis::start())).await;
}

#[tokio::test]
async fn the_budget_of_a_token_is_spent_with_that_of_the_account() {
    let redis = Redis::start();
    for redis in [None, Some(&redis)] {
        let scene = Scene::start(Engine::Sqlite, redis, 1000, SUBMISSIONS).await;
        let (client, limited) = (scene.client(&scene.token), scene.limited(6));
        let answer = get(&limited, "").send().await;
        assert_eq!((answer.number("formgate-cost"), answer.number("x-ratelimit-limit")), (Some(3), Some(6)));
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(3));
        assert_eq!(left(&client).await, 996);
        assert_eq!(left(&limited).await, 2);
        let answer = get(&limited, "").send().await;
        assert_eq!((answer.status.as_u16(), &answer.json()["limit"]), (429, &"token".into()), "{answer:?}");
        assert_eq!((left(&limited).await, left(&client).await), (1, 993));
    }
}

/// A log of more than 640 requests is kept another way.
#[tokio::test]
async fn places_are_taken_together_in_a_long_window_too() {
    let redis = Redis::start();
    let scene = Scene::start(Engine::Sqlite, Some(&redis), 700, SUBMISSIONS).await;
    let client = scene.client(&scene.token);
    for _ in 0..23 {
        let calls = (0..30).map(|_| client.get("/api/v1/me").send());
        assert!(futures_util::future::join_all(calls).await.iter().all(|answer| answer.status == 200));
    }
    assert_eq!(left(&client).await, 9);
    assert_eq!(export(&client, "").await.cost, 3);
    assert_eq!(export(&client, "").await.cost, 3);
    assert_eq!(left(&client).await, 2);
    for _ in 0..2 {
        let answer = get(&client, "").send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (429, Some(2)), "{answer:?}");
    }
    let me = client.get("/api/v1/me").send().await;
    assert_eq!((me.number("x-ratelimit-remaining"), me.json()["usage"][0]["requests"].as_u64()), (Some(1), Some(699)));
}
