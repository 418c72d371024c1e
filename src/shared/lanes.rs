//! Connections that all requests share, and the breaker in front of them.
//!
//! A checkout from a pool would cost each request an extra round trip and leave one command in flight a connection; on a
//! lane, requests are pipelined. All calls go over the first that is open, so that the store reads and answers several at
//! once; the next one stands by. A lane that fails is closed at once, and a task of its own opens it again: until then
//! its calls fail without waiting. A store that hangs costs the requests that wait for it then their time limit, once: the
//! first that gives up closes every lane. What is opened is tried with a script that writes: a store that is full, a
//! replica, or a user without rights takes reads and refuses what a window needs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rand::RngExt;
use redis::RedisResult;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::link::{Connection, Link};
use crate::metrics::Metrics;
use crate::patience::{Timer, within};

/// How many connections are held. With one, no request could be admitted from when it is lost until it is open again; more
/// than one in use only split the pipelines.
const LANES: usize = 2;

/// How long opening a connection may take. Longer, and a host that drops packets delays the next try; shorter, and a
/// distant store with TLS is never reached.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// The waits between two tries to open, growing from the first to the last. The last bounds how much later than its
/// store the shared window is back.
const WAITS: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];

/// How often a quiet lane is tried, so that a connection that went away is noticed before a request does.
const CHECK: Duration = Duration::from_secs(1);

/// How often a call that has no answer in time is waited for again where this node was too busy to take one.
const TURNS: u32 = 10;

/// How many timers are kept for calls to come: as many as calls are usually under way. In a cluster there are more, one for
/// each request.
const TIMERS: usize = 8;

/// The key that opening writes to, and how: as a window does, and for as long as it takes to see that it can.
const PROBE: &str = "formgate:probe";
const PROBING: &str = "redis.call('SET', KEYS[1], 1, 'PX', 1000) redis.call('APPEND', KEYS[1], 1) \
    redis.call('STRLEN', KEYS[1]) redis.call('GETRANGE', KEYS[1], 0, 1) redis.call('PEXPIRE', KEYS[1], 1000) return redis.call('PTTL', KEYS[1])";

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No lane is open, or this one did not answer in time, or broke.
    #[error("the shared store does not answer")]
    Unavailable,
    /// The store answered that it can't do this, which says nothing about other calls.
    #[error("the shared store refuses: {0}")]
    Refused(redis::RedisError),
}

/// The open connections to one store. Dropping it closes them.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<(Arc<Lane>, AbortOnDropHandle<()>)>,
    limit: Duration,
    /// Of calls that are over.
    timers: Mutex<Vec<Timer>>,
    many_keys: bool,
    state: Arc<State>,
}

impl Lanes {
    /// Opens lanes whose calls may take `limit`, and waits a moment for the first. A store that is away does not keep a
    /// gateway from starting: its lanes open when it is back.
    pub async fn open(link: Arc<Link>, limit: Duration, metrics: Metrics) -> Self {
        let failure = Mutex::new(format!("no answer within {OPEN_LIMIT:?}"));
        let state = Arc::new(State { open: Mutex::new(0), opened: Notify::new(), failure, metrics });
        let many_keys = !link.is_cluster();
        let lanes = (0..LANES).map(|_| {
            let lane = Arc::new(Lane { connection: ArcSwapOption::empty(), lost: Notify::new() });
            let keeping = tokio::spawn(keep_open(Arc::clone(&lane), Arc::clone(&link), Arc::clone(&state), limit));
            (lane, AbortOnDropHandle::new(keeping))
        });
        let lanes = Self { lanes: lanes.collect(), limit, timers: Mutex::default(), many_keys, state };
        if tokio::time::timeout(OPEN_LIMIT, lanes.state.opened.notified()).await.is_err() {
            let failure = lanes.state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            tracing::warn!(failure, "the shared store can't be reached; its policy decides until it can");
        }
        lanes
    }

    /// Runs one call on the first lane that is open.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] at the latest when the time limit is over, at once while every lane is closed.
    pub async fn call<T, F>(&self, call: impl FnOnce(Connection) -> F) -> Result<T, CallError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let open = self.lanes.iter().find_map(|(lane, _)| Some((lane, lane.connection.load_full()?)));
        let metrics = &self.state.metrics.redis;
        let failed = |reason: &str| metrics.failures.with_label_values(&[reason]).inc();
        let Some((lane, connection)) = open else {
            failed("down");
            return Err(CallError::Unavailable);
        };
        let began = Instant::now();
        let mut timer = self.timers().pop().unwrap_or_else(|| Timer::new(self.limit));
        let outcome = timer.within(self.limit, TURNS, call((*connection).clone())).await;
        self.keep(timer);
        let failure = match outcome {
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
                error.to_string()
            }
            None => {
                failed("timeout");
                let failure = format!("no answer within {:?}", self.limit);
                // The store hangs, or this connection does. Whichever it is, the next call must not wait to find out.
                if lane.close(&connection, &failure, &self.state) {
                    self.close_all(&failure);
                }
                return Err(CallError::Unavailable);
            }
        };
        lane.close(&connection, &failure, &self.state);
        Err(CallError::Unavailable)
    }

    /// Whether one call may use keys that have nothing to do with one another: in a cluster, they stand on other nodes.
    #[must_use]
    pub fn carry_many_keys(&self) -> bool {
        self.many_keys
    }

    fn keep(&self, timer: Timer) {
        let mut timers = self.timers();
        if timers.len() < TIMERS {
            timers.push(timer);
        }
    }

    fn timers(&self) -> MutexGuard<'_, Vec<Timer>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_all(&self, failure: &str) {
        for (lane, _) in &self.lanes {
            if let Some(connection) = lane.connection.load_full() {
                lane.close(&connection, failure, &self.state);
            }
        }
    }
}

/// How many lanes are open, for the log and the gauge.
#[derive(Debug)]
struct State {
    /// Held while the gauge is set: two lanes that change at once must not leave it wrong.
    open: Mutex<usize>,
    opened: Notify,
    /// Why none could be opened last.
    failure: Mutex<String>,
    metrics: Metrics,
}

impl State {
    fn opened(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open += 1;
        if *open == 1 {
            self.metrics.redis.up.set(1);
            tracing::info!("the shared store answers");
        }
        self.opened.notify_one();
    }

    fn not_opened(&self, failure: String) {
        tracing::debug!(failure, "the shared store can't be reached");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    fn closed(&self, failure: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open -= 1;
        if *open == 0 {
            self.metrics.redis.up.set(0);
            tracing::warn!(failure, "the shared store does not answer; its policy decides until it does");
        }
    }
}

/// One connection, shared by the calls that come to it.
struct Lane {
    connection: ArcSwapOption<Connection>,
    lost: Notify,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("open", &self.connection.load().is_some()).finish()
    }
}

impl Lane {
    /// Closes a connection that failed, and tells whether it was open. Calls that were on it fail too, and find it closed
    /// already.
    fn close(&self, failed: &Arc<Connection>, failure: &str, state: &State) -> bool {
        let seen = self.connection.compare_and_swap(failed, None);
        let was_open = seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, failed));
        if was_open {
            state.closed(failure);
            self.lost.notify_one();
        }
        was_open
    }
}

/// Opens a lane, again whenever it was lost, for as long as the task lives.
async fn keep_open(lane: Arc<Lane>, link: Arc<Link>, state: Arc<State>, limit: Duration) {
    let mut waits = WAITS.into_iter();
    let mut wait = WAITS[0];
    loop {
        match tokio::time::timeout(OPEN_LIMIT, open(&link)).await {
            Ok(Ok(connection)) => {
                let connection = Arc::new(connection);
                // In this order: from the moment it is stored, a call may close it.
                state.opened();
                lane.connection.store(Some(Arc::clone(&connection)));
                let opened_at = Instant::now();
                attend(&lane, &connection, &state, limit).await;
                // A store that opens and fails at the first call is not tried as often as one that went away.
                if opened_at.elapsed() > CHECK {
                    waits = WAITS.into_iter();
                }
            }
            Ok(Err(error)) => state.not_opened(error.to_string()),
            Err(_) => state.not_opened(format!("no answer within {OPEN_LIMIT:?}")),
        }
        wait = waits.next().unwrap_or(wait);
        let part = rand::rng().random_range(0.7..=1.0);
        tokio::time::sleep(wait.mul_f64(part)).await;
    }
}

/// Opens a connection that can do what a window needs.
pub(super) async fn open(link: &Link) -> RedisResult<Connection> {
    let mut connection = link.connect().await?;
    let mut probe = redis::cmd("EVAL");
    probe.arg(PROBING).arg(1).arg(PROBE);
    probe.query_async::<()>(&mut connection).await?;
    Ok(connection)
}

/// Waits until a lane is lost, trying it now and then.
async fn attend(lane: &Lane, connection: &Arc<Connection>, state: &State, limit: Duration) {
    loop {
        tokio::select! {
            () = lane.lost.notified() => return,
            () = tokio::time::sleep(CHECK) => {}
        }
        let mut checked = (**connection).clone();
        let ping = redis::cmd("PING");
        let failure = match within(limit, TURNS, ping.query_async::<()>(&mut checked)).await {
            Some(Ok(())) => continue,
            Some(Err(error)) => error.to_string(),
            None => format!("no answer within {limit:?}"),
        };
        lane.close(connection, &failure, state);
    }
}

/// Whether a refusal is about the one key that a call used, as when another program put something else there.
fn concerns_one_key(error: &redis::RedisError) -> bool {
    // Redis before 7 reports it as an error of the script.
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}
