//! Windows in Redis, shared by every node: one atomic script a request, on a few connections that all requests share.
//!
//! The pool of deadpool-redis makes and checks connections, but a checkout a request would cost an extra round trip and
//! leave one command in flight a connection. So a few connections, the lanes, are held for good, and requests are
//! pipelined on them. A lane that fails is dropped and opened again by a later request; until a short rest is over its
//! requests fail at once, so that a store that hangs does not cost every request its time limit.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use deadpool_redis::{Manager, Pool, Runtime};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Script};
use secrecy::ExposeSecret;
use tokio::sync::Mutex;

use crate::config::RedisConfig;

/// How many connections are held. Two keep two cores of a server's I/O busy; more only split the pipelines.
const LANES: usize = 2;

/// How long a failed lane rests. Longer, and the shared window comes back later than its store; shorter, and a hung
/// store costs more requests their time limit.
const REST: Duration = Duration::from_millis(500);

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("window.lua")));

/// The configured Redis can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL is none that the client understands.
    #[error("`redis` is no URL that can be used: {0}")]
    Url(#[source] RedisError),
    /// The pool could not be made.
    #[error("no pool of connections can be made: {0}")]
    Pool(#[source] deadpool_redis::BuildError),
}

/// The store did not decide within its time limit; it has been logged.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreFailed;

#[derive(Debug, thiserror::Error)]
enum CallError {
    /// Why it rests has been logged.
    #[error("the lane rests after a failure")]
    Resting,
    #[error("no connection: {0}")]
    Connect(#[from] deadpool_redis::PoolError),
    #[error("the call failed: {0}")]
    Call(#[from] RedisError),
}

/// The windows of all accounts in one Redis.
pub(super) struct SharedWindows {
    lanes: [Lane; LANES],
    next: AtomicUsize,
    limit: Duration,
    span: Duration,
}

impl std::fmt::Debug for SharedWindows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedWindows").field("span", &self.span).finish_non_exhaustive()
    }
}

impl SharedWindows {
    pub(super) fn new(redis: &RedisConfig, span: Duration) -> Result<Self, ConnectError> {
        // The time limit of a call is kept here; the client's own stand behind it, so that nothing waits for ever.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(redis.timeout.max(Duration::from_secs(1))))
            .set_response_timeout(Some(redis.timeout.max(Duration::from_secs(1))));
        let manager = Manager::new_with_config(redis.url.expose_secret(), config).map_err(ConnectError::Url)?;
        let pool =
            Pool::builder(manager).max_size(LANES * 2).runtime(Runtime::Tokio1).build().map_err(ConnectError::Pool)?;
        Ok(Self {
            lanes: std::array::from_fn(|_| Lane {
                pool: pool.clone(),
                connection: ArcSwapOption::empty(),
                opening: Mutex::new(None),
            }),
            next: AtomicUsize::new(0),
            limit: redis.timeout,
            span,
        })
    }

    /// Spends a request: what is left then, or how long until there is room.
    pub(super) async fn admit(&self, key: &str, limit: u32) -> Result<Result<u32, Duration>, StoreFailed> {
        let (admitted, remaining, wait) = self.run(key, limit, "1").await?;
        Ok(if admitted { Ok(remaining) } else { Err(Duration::from_millis(wait)) })
    }

    /// What is left, without spending.
    pub(super) async fn look(&self, key: &str, limit: u32) -> Result<u32, StoreFailed> {
        let (_, remaining, _) = self.run(key, limit, "0").await?;
        Ok(remaining)
    }

    async fn run(&self, key: &str, limit: u32, spend: &'static str) -> Result<(bool, u32, u64), StoreFailed> {
        let lane = &self.lanes[self.next.fetch_add(1, Ordering::Relaxed) % LANES];
        let call = async {
            let mut connection = lane.connection().await?;
            let span = u64::try_from(self.span.as_millis()).unwrap_or(u64::MAX);
            let mut invocation = SCRIPT.key(key);
            Ok::<_, CallError>(invocation.arg(limit).arg(span).arg(spend).invoke_async(&mut connection).await?)
        };
        let failure = match within(self.limit, call).await {
            Some(Ok(decision)) => return Ok(decision),
            Some(Err(CallError::Resting)) => return Err(StoreFailed),
            Some(Err(error)) => error.to_string(),
            None => format!("no answer within {:?}", self.limit),
        };
        lane.rest().await;
        tracing::warn!(%failure, "the shared window does not answer; its policy decides");
        Err(StoreFailed)
    }
}

/// One connection, shared by the requests that come to it.
struct Lane {
    pool: Pool,
    connection: ArcSwapOption<MultiplexedConnection>,
    /// Held while one request opens the connection and others wait for it; since when the lane rests.
    opening: Mutex<Option<Instant>>,
}

impl Lane {
    async fn connection(&self) -> Result<MultiplexedConnection, CallError> {
        if let Some(connection) = self.connection.load_full() {
            return Ok((*connection).clone());
        }
        let mut rests_since = self.opening.lock().await;
        if let Some(connection) = self.connection.load_full() {
            return Ok((*connection).clone());
        }
        if rests_since.is_some_and(|since| since.elapsed() < REST) {
            return Err(CallError::Resting);
        }
        let opened = deadpool_redis::Connection::take(self.pool.get().await?);
        *rests_since = None;
        self.connection.store(Some(Arc::new(opened.clone())));
        Ok(opened)
    }

    async fn rest(&self) {
        self.connection.store(None);
        *self.opening.lock().await = Some(Instant::now());
    }
}

/// The outcome of a call, or none when the store took longer than its limit. A timer that itself comes late says that
/// this process was busy, not that the store is slow, and gives the call another turn.
async fn within<T>(limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    const TURNS: u32 = 10;
    let mut call = pin!(call);
    for _ in 0..TURNS {
        let began = Instant::now();
        if let Ok(outcome) = tokio::time::timeout(limit, &mut call).await {
            return Some(outcome);
        }
        if began.elapsed() < limit + limit / 2 {
            return None;
        }
    }
    None
}
