//! Connections that all requests share, and the circuit breaker in front of them.
//!
//! A checkout from a pool would cost each request an extra round trip and leave one command in flight per connection;
//! on a shared connection, requests are pipelined. All calls use the first open connection, so that Redis reads and
//! answers several at once; the next connection is a standby. A connection that fails is closed immediately, and its
//! own task reopens it; until then its calls fail without waiting. If Redis hangs, the requests that wait at that time
//! pay the time limit once: the first timeout closes every connection. A new connection is probed with a script that
//! writes, because a full Redis, a replica or a user without rights accepts reads and refuses what a window needs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rand::RngExt;
use redis::RedisResult;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::client::{RedisClient, RedisConnection, cause_of};
use super::eviction;
use super::refusals::{BackgroundCall, Refusals, is_refusal};
use super::shards::Shards;
use crate::config::OnRedisFailure;
use crate::deadline::{Timer, within};
use crate::metrics::{Metrics, RedisMetrics};

/// Number of connections.
///
/// Larger: all but one are unused. Smaller: with one, no request can be admitted between losing and reopening it.
const CONNECTIONS: usize = 2;

/// How long opening a connection may take.
///
/// Larger: a host that drops packets delays the next attempt. Smaller: a distant Redis with TLS is never reached.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// The backoff between attempts to open a connection.
///
/// Larger: the shared window returns later after Redis does, by at most the last value. Smaller: more attempts while
/// Redis is down.
const BACKOFF: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];

/// How often a quiet connection is pinged, so that a lost connection is noticed before a request uses it.
///
/// Larger: more requests meet a lost connection. Smaller: Redis answers more pings.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// How many time limits a call may take in all if this node was too busy to read the answer.
///
/// Larger: on an overloaded node, a Redis that hangs is noticed later. Smaller: an overloaded node closes its
/// connections although Redis answers.
const MAX_WAITS: u32 = 10;

/// Number of timers kept for later calls. About as many calls are usually in flight; in a cluster there are more, one
/// per request.
///
/// Larger: unused timers take memory. Smaller: calls create timers more often.
const MAX_TIMERS: usize = 8;

/// How often the eviction policy is checked.
///
/// Larger: a changed setting is noticed later. Smaller: Redis answers more INFO commands.
const EVICTION_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The key and the script of the probe: it writes as a window does, and the key expires after a second.
const PROBE_KEY: &str = "formgate:probe";
const PROBE_SCRIPT: &str = "redis.call('TIME') redis.call('SET', KEYS[1], 1, 'PX', 1000) \
    redis.call('APPEND', KEYS[1], 1) redis.call('GET', KEYS[1]) redis.call('GETRANGE', KEYS[1], 0, 1) \
    redis.call('PEXPIRE', KEYS[1], 1000) return redis.call('PTTL', KEYS[1])";

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection is open, or the call timed out, or its connection broke.
    #[error("Redis does not answer")]
    Unavailable,
    /// Redis refuses this call, which says nothing about other calls.
    #[error("Redis refuses: {0}")]
    Refused(redis::RedisError),
}

/// The open connections to one Redis. Dropping it closes them.
#[derive(Debug)]
pub struct RedisConnections {
    connections: Vec<(Arc<ReconnectingConnection>, AbortOnDropHandle<()>)>,
    limit: Duration,
    /// Timers of finished calls.
    timers: Mutex<Vec<Timer>>,
    is_cluster: bool,
    state: Arc<SharedState>,
}

impl RedisConnections {
    /// Opens connections whose calls may take `limit`, and waits briefly for the first. An unreachable Redis does not
    /// keep a gateway from starting: the connections open when it returns.
    pub async fn open(client: Arc<RedisClient>, limit: Duration, policy: OnRedisFailure, metrics: Metrics) -> Self {
        let failure = Mutex::new(format!("no response within {OPEN_LIMIT:?}"));
        let (open, opened, shards) = (Mutex::new(0), Notify::new(), ArcSwapOption::empty());
        let outage = Outage { redis: client.name().into(), policy };
        let refusals = Refusals::new(metrics.redis.clone());
        let state = Arc::new(SharedState { open, opened, failure, shards, outage, refusals, metrics });
        let is_cluster = client.is_cluster();
        let connections = (0..CONNECTIONS).map(|_| {
            let reconnecting =
                Arc::new(ReconnectingConnection { connection: ArcSwapOption::empty(), lost: Notify::new() });
            let keeping =
                tokio::spawn(keep_open(Arc::clone(&reconnecting), Arc::clone(&client), Arc::clone(&state), limit));
            (reconnecting, AbortOnDropHandle::new(keeping))
        });
        let connections =
            Self { connections: connections.collect(), limit, timers: Mutex::default(), is_cluster, state };
        if tokio::time::timeout(OPEN_LIMIT, connections.state.opened.notified()).await.is_err() {
            let failure = connections.state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            connections.state.outage.log(&failure);
        }
        connections
    }

    /// Runs one call that uses a key, on the first open connection.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] at the latest when the time limit is over; immediately while every connection is
    /// closed or the key's shard does not answer.
    pub async fn call<T, F>(&self, key: &str, call: impl FnOnce(RedisConnection) -> F) -> Result<T, CallError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let open = self
            .connections
            .iter()
            .find_map(|(reconnecting, _)| Some((reconnecting, reconnecting.connection.load_full()?)));
        let metrics = &self.state.metrics.redis;
        let failed = |reason: &str| metrics.failures.with_label_values(&[reason]).inc();
        let shards = self.state.shards.load_full();
        let Some((reconnecting, connection)) =
            open.filter(|_| shards.as_ref().is_none_or(|shards| !shards.is_down(key)))
        else {
            failed("down");
            return Err(CallError::Unavailable);
        };
        let began = Instant::now();
        let mut timer = self.timers().pop().unwrap_or_else(|| Timer::new(self.limit));
        let outcome = timer.within(self.limit, MAX_WAITS, call((*connection).clone())).await;
        self.keep(timer);
        let (failure, is_timeout) = match outcome {
            Some(Ok(answer)) => {
                metrics.call_duration.observe(began.elapsed().as_secs_f64());
                return Ok(answer);
            }
            Some(Err(error)) if concerns_one_key(&error) => {
                failed("refused");
                return Err(CallError::Refused(error));
            }
            Some(Err(error)) => {
                failed("connection");
                (error.to_string(), false)
            }
            None => {
                failed("timeout");
                (format!("no answer within {:?}", self.limit), true)
            }
        };
        let concerns_all = shards.is_none_or(|shards| shards.failed(key, &failure, &connection));
        // Either Redis hangs or this connection does; the next call must not wait to find out which.
        if concerns_all && reconnecting.close(&connection, &failure, &self.state) && is_timeout {
            self.close_all(&failure);
        }
        Err(CallError::Unavailable)
    }

    /// Notes the outcome of a call that no request waits for: Redis took it, or why it refused. That Redis does not answer is
    /// noted by [`Self::call`].
    pub fn note_background(&self, call: BackgroundCall, refusal: Option<&str>) {
        match refusal {
            Some(cause) => self.state.refusals.refused(call, cause),
            None => self.state.refusals.taken(call),
        }
    }

    /// Whether one call may use unrelated keys. In a cluster it may not: they can be on different nodes.
    #[must_use]
    pub fn carry_many_keys(&self) -> bool {
        !self.is_cluster
    }

    fn keep(&self, timer: Timer) {
        let mut timers = self.timers();
        if timers.len() < MAX_TIMERS {
            timers.push(timer);
        }
    }

    fn timers(&self) -> MutexGuard<'_, Vec<Timer>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_all(&self, failure: &str) {
        for (reconnecting, _) in &self.connections {
            if let Some(connection) = reconnecting.connection.load_full() {
                reconnecting.close(&connection, failure, &self.state);
            }
        }
    }
}

/// The connections' common state, for the log and the gauge.
#[derive(Debug)]
struct SharedState {
    /// The number of open connections. Held while the gauge is set, so that two connections that change at once can't
    /// leave it wrong.
    open: Mutex<usize>,
    opened: Notify,
    /// Why the last attempt to open a connection failed.
    failure: Mutex<String>,
    /// The shards, in a cluster.
    shards: ArcSwapOption<Shards>,
    outage: Outage,
    refusals: Refusals,
    metrics: Metrics,
}

/// How an outage is logged.
#[derive(Debug)]
pub(super) struct Outage {
    /// The log's name for this Redis.
    redis: Box<str>,
    policy: OnRedisFailure,
}

impl Outage {
    fn log(&self, failure: &str) {
        let Self { redis, policy } = self;
        tracing::warn!("{redis} unreachable: {failure}; applying on_redis_failure = \"{}\"", policy.name());
    }
}

impl SharedState {
    fn opened(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open += 1;
        if *open == 1 {
            self.metrics.redis.up.set(1);
            tracing::info!("{} answers; budgets are shared", self.outage.redis);
        }
        self.opened.notify_one();
    }

    fn not_opened(&self, failure: String) {
        tracing::debug!("{} unreachable: {failure}", self.outage.redis);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    fn note_eviction(&self, policy: Option<String>) {
        let before = self.metrics.redis.evicts.get();
        self.metrics.redis.evicts.set(i64::from(policy.is_some()));
        if let Some(policy) = policy.filter(|_| before == 0) {
            let remedy = "set maxmemory-policy to noeviction";
            tracing::warn!(
                policy,
                remedy,
                "Redis may evict budgets: an account whose budget is evicted gets a new one"
            );
        }
    }

    fn closed(&self, failure: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open -= 1;
        if *open == 0 {
            self.metrics.redis.up.set(0);
            self.outage.log(failure);
        }
    }
}

/// One connection, shared by the calls on it.
struct ReconnectingConnection {
    connection: ArcSwapOption<RedisConnection>,
    lost: Notify,
}

impl std::fmt::Debug for ReconnectingConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReconnectingConnection").field("open", &self.connection.load().is_some()).finish()
    }
}

impl ReconnectingConnection {
    /// Closes a failed connection and returns whether it was open. Other calls on the connection fail too, and find
    /// it closed.
    fn close(&self, failed: &Arc<RedisConnection>, failure: &str, state: &SharedState) -> bool {
        let seen = self.connection.compare_and_swap(failed, None);
        let was_open = seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, failed));
        if was_open {
            state.closed(failure);
            self.lost.notify_one();
        }
        was_open
    }
}

/// Keeps a connection open until the task is aborted, reopening it after each loss.
async fn keep_open(
    reconnecting: Arc<ReconnectingConnection>,
    client: Arc<RedisClient>,
    state: Arc<SharedState>,
    limit: Duration,
) {
    let mut waits = BACKOFF.into_iter();
    let mut wait = BACKOFF[0];
    loop {
        match tokio::time::timeout(OPEN_LIMIT, open(&client, &state.metrics.redis)).await {
            Ok(Ok((connection, shards))) => {
                let connection = Arc::new(connection);
                state.shards.store(shards);
                // In this order: as soon as it is stored, a call may close it.
                state.opened();
                reconnecting.connection.store(Some(Arc::clone(&connection)));
                let opened_at = Instant::now();
                watch(&reconnecting, &connection, &state, client.is_cluster(), limit).await;
                // A Redis that accepts connections and fails at the first call keeps the longer backoff.
                if opened_at.elapsed() > PING_INTERVAL {
                    waits = BACKOFF.into_iter();
                }
            }
            Ok(Err(error)) => state.not_opened(cause_of(&error)),
            Err(_) => state.not_opened(format!("no response within {OPEN_LIMIT:?}")),
        }
        wait = waits.next().unwrap_or(wait);
        let part = rand::rng().random_range(0.7..=1.0);
        tokio::time::sleep(wait.mul_f64(part)).await;
    }
}

/// Opens a connection and probes it with what a window needs. In a cluster, at least one shard must pass.
pub(super) async fn open(
    client: &RedisClient,
    metrics: &RedisMetrics,
) -> RedisResult<(RedisConnection, Option<Arc<Shards>>)> {
    let mut connection = client.connect().await?;
    if client.is_cluster() {
        let shards = Shards::find(connection.clone(), metrics.clone()).await?;
        return Ok((connection, Some(shards)));
    }
    probe(&mut connection, PROBE_KEY).await?;
    Ok((connection, None))
}

/// Probes a key with writes.
pub(super) async fn probe(connection: &mut RedisConnection, key: &str) -> RedisResult<()> {
    let mut probe = redis::cmd("EVAL");
    probe.arg(PROBE_SCRIPT).arg(1).arg(key);
    probe.query_async(connection).await
}

/// Waits until a connection is lost, and pings it regularly. In a cluster, calls and [`Shards`] probe each shard
/// instead.
async fn watch(
    reconnecting: &ReconnectingConnection,
    connection: &Arc<RedisConnection>,
    state: &SharedState,
    is_cluster: bool,
    limit: Duration,
) {
    let mut eviction_check = Instant::now();
    loop {
        let mut checked = (**connection).clone();
        if eviction_check <= Instant::now() {
            eviction_check += EVICTION_CHECK_INTERVAL;
            // An ACL may forbid the command; the policy is then unknown.
            match within(limit, MAX_WAITS, eviction::policy(&mut checked)).await {
                Some(Ok(policy)) => {
                    state.refusals.taken(BackgroundCall::EvictionPolicy);
                    state.note_eviction(policy);
                }
                Some(Err(error)) if is_refusal(&error) => {
                    state.refusals.refused(BackgroundCall::EvictionPolicy, &error.to_string());
                }
                // The connection is lost, or the ping finds out that Redis hangs.
                Some(Err(_)) | None => {}
            }
        }
        tokio::select! {
            () = reconnecting.lost.notified() => return,
            () = tokio::time::sleep(PING_INTERVAL) => {}
        }
        if is_cluster {
            continue;
        }
        let ping = redis::cmd("PING");
        let failure = match within(limit, MAX_WAITS, ping.query_async::<()>(&mut checked)).await {
            Some(Ok(())) => continue,
            Some(Err(error)) => cause_of(&error),
            None => format!("no response within {limit:?}"),
        };
        reconnecting.close(connection, &failure, state);
    }
}

/// Whether a refusal concerns only the key of the call: another program stored something else there.
fn concerns_one_key(error: &redis::RedisError) -> bool {
    // Redis before 7 reports it as an error of the script.
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}
