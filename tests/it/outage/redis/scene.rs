//! One node on a Redis that is about to fail, and callers who go on meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::support::answer::Answer;
use crate::support::client::{Client, operator_count, wait_for_count};
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// The store's time limit here. Longer than a pause of a busy machine, so that this is not taken for a slow store.
pub(super) const TIME_LIMIT: Duration = Duration::from_millis(1500);

/// How many calls to Redis may be in flight when it fails: four on a connection, of which there are two. Others don't wait.
pub(super) const CALLS: u64 = 2 * 4;

/// What the log says when the store goes away.
pub(super) const GONE: &str = "; applying on_redis_failure = ";

/// What it says when the store is there.
pub(super) const BACK: &str = "answers; budgets are shared";

/// How long callers wait for so many answers on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with one tenant.
pub(super) struct Scene {
    pub(super) redis: Redis,
    pub(super) node: Node,
    /// Calls with a token of the tenant.
    pub(super) client: Client,
    pub(super) site: Site,
}

impl Scene {
    /// A node whose tenant may make `limit` requests a minute, with a policy for when Redis fails.
    pub(super) async fn new(limit: u32, policy: &str) -> Self {
        let mut scene = Self::before_redis_answers(Redis::start(), limit, policy);
        scene.wait_until_redis_is(true).await;
        scene
    }

    /// The same, without waiting for Redis.
    pub(super) fn before_redis_answers(redis: Redis, limit: u32, policy: &str) -> Self {
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(limit).redis(&redis);
        let time_limit = i64::try_from(TIME_LIMIT.as_millis()).expect("a short time");
        let site = site.gateway("redis_timeout_ms", time_limit).gateway("on_redis_failure", policy).write();
        let token = site.token("acme", "tests");
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        Self { redis, node, client, site }
    }

    /// One request.
    pub(super) async fn call(&self) -> Answer {
        self.client.get("/api/v1/form").send().await
    }

    /// How many of so many requests, one after the other, are answered with a status.
    pub(super) async fn count(&self, status: u16, requests: u32) -> u32 {
        let mut count = 0;
        for _ in 0..requests {
            count += u32::from(self.call().await.status == status);
        }
        count
    }

    /// Waits until the gauge says whether Redis answers.
    pub(super) async fn wait_until_redis_is(&mut self, up: bool) {
        wait_for_count(self.node.operator_address(), "formgate_redis_up", up.into()).await;
    }

    /// How many calls to Redis took the whole time limit.
    pub(super) async fn timeouts(&mut self) -> u64 {
        failures(self.node.operator_address(), "timeout").await
    }

    /// How often the log says something.
    pub(super) fn said(&mut self, text: &str) -> usize {
        self.node.log().lines().filter(|line| line.contains(text)).count()
    }
}

/// How many calls of a node to Redis failed for a reason.
pub(super) async fn failures(operator: SocketAddr, reason: &str) -> u64 {
    operator_count(operator, &format!(r#"formgate_redis_failures_total{{reason="{reason}"}}"#)).await
}

/// Callers who go on without a pause until they are told to stop.
pub(super) struct Callers {
    stop: Arc<AtomicBool>,
    /// How many answers each has.
    answered: Vec<Arc<AtomicU64>>,
    callers: Vec<JoinHandle<Vec<(u16, Duration)>>>,
}

impl Callers {
    /// Starts so many.
    pub(super) fn start(count: usize, client: &Client) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let answered: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let call = |answered: &Arc<AtomicU64>| {
            let (client, stop, answered) = (client.clone(), Arc::clone(&stop), Arc::clone(answered));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let answer = client.get("/api/v1/form").send().await;
                    answers.push((answer.status.as_u16(), began.elapsed()));
                    answered.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answers
            })
        };
        Self { callers: answered.iter().map(call).collect(), answered, stop }
    }

    /// Waits until each of them has so many more answers.
    pub(super) async fn wait_for_more(&self, answers: u64) {
        let count = || self.answered.iter().map(|answered| answered.load(Ordering::Relaxed));
        let (before, began): (Vec<u64>, _) = (count().collect(), Instant::now());
        while count().zip(&before).any(|(now, before)| now < before + answers) {
            assert!(began.elapsed() < PATIENCE, "a caller is not answered");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops them; the status of each answer, and how long it took.
    pub(super) async fn stop(self) -> Vec<(u16, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut answers = Vec::new();
        for caller in self.callers {
            answers.extend(caller.await.expect("no caller panics"));
        }
        answers
    }

    /// How long the slowest answer took.
    pub(super) fn slowest(answers: &[(u16, Duration)]) -> Duration {
        answers.iter().map(|(_, took)| *took).max().expect("there were answers")
    }
}

/// A caller of a node that has no Redis, and waits for the machine only.
pub(super) struct Undisturbed {
    callers: Callers,
    _node: Node,
    _site: Site,
}

impl Undisturbed {
    pub(super) fn start() -> Self {
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000).write();
        let token = site.token("acme", "tests");
        let node = site.start();
        let callers = Callers::start(1, &node.client().to(&site.host("acme")).with(&token));
        Self { callers, _node: node, _site: site }
    }

    /// Stops it, and holds the slowest answer of others against its own: one that took `longest` more waited for the store.
    pub(super) async fn explains(self, slowest: Duration, longest: Duration) {
        let own = Callers::slowest(&self.callers.stop().await);
        let limit = longest + own;
        assert!(slowest < limit, "an answer took {slowest:?}; {own:?} without Redis");
    }
}
