//! A pool of one tenant's connections, opened on demand.
//!
//! Owns how a [`PooledConnection`] is acquired: the breaker is asked first, then [`Connections`], which all tenants
//! share; an idle connection is pinged if it was idle for a while, and a new one is opened if there is none.
//!
//! # Why not sqlx's pools
//!
//! sqlx opens the connections and runs the statements. Its `Pool` (0.9) falls short in three ways:
//!
//! - **One cap over all tenants.** Each `Pool` has a maximum of its own, and none closes an idle connection of another
//!   pool so that a waiting request can have one.
//! - **No ping on release.** The ping before use can be turned off (`test_before_acquire`), the ping on release cannot:
//!   after each request the connection is unavailable for a round trip. Here a connection is pinged only before use,
//!   and only after it was idle for a second.
//! - **No retry while connecting.** While a server refuses connections, has none left or starts up, `Pool::acquire`
//!   tries again until its timeout. Here the first failure opens the tenant's breaker, and the requests after it are
//!   refused at once.

pub(super) mod connection;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::breaker::{Breaker, BreakerPermit};
use super::connections::{Checkout, ConnectionPermit, Connections};
use super::error::StoreError;
use super::session::{CLOSE_LIMIT, Session, SessionAddress, timed_out};
use super::session_source::{SchemaSetting, SessionSource, SharedKey};
use super::write_access::ReadOnlyFile;
use super::write_lock::WriteLock;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::DatabaseFailure;
use crate::store::statement::Dialect;
use connection::PooledConnection;

/// A connection that was idle for longer is pinged before use.
///
/// Larger: more statements run into a broken connection. Smaller: busy tenants pay for more round trips.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(1);

/// How long a ping may take.
///
/// Larger: requests wait longer on a connection to a server that hangs. Smaller: connections to a busy server are
/// discarded.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// How long no further connection is opened to a server that has refused one because it is full.
///
/// Larger: a tenant keeps too few connections after there is room again. Smaller: a full server gets more connection
/// attempts.
const FULL_SERVER_PAUSE: Duration = Duration::from_secs(1);

/// The connections of one database. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    source: Arc<SessionSource>,
    /// If the source is shared: the tenant's schema, and a permit for each of its connections.
    schema: Option<(SchemaSetting, Arc<Semaphore>)>,
    wait: Duration,
    limit: Option<Duration>,
    lock_wait: Duration,
    breaker: Option<Arc<Breaker>>,
    write_lock: WriteLock,
    closed: AtomicBool,
}

/// How a pool's connections are opened and acquired.
#[derive(Debug)]
pub(super) struct PoolOptions {
    pub(super) address: SessionAddress,
    /// Set if the tenant shares the sessions at this address with others: by which key, and its own schema.
    pub(super) shared: Option<(SharedKey, SchemaSetting)>,
    /// The most connections that are open, or in use, at once.
    pub(super) max_open: u32,
    /// How long a caller waits for a connection.
    pub(super) wait: Duration,
    /// How long a statement may run. None for no limit.
    pub(super) limit: Option<Duration>,
    /// How long a writer waits while another program holds the write lock of a SQLite file.
    pub(super) lock_wait: Duration,
}

impl Pool {
    /// A pool without connections.
    pub(super) fn new(options: PoolOptions, connections: &Arc<Connections>, breaker: Option<&Arc<Breaker>>) -> Self {
        let PoolOptions { address, shared, max_open, wait, limit, lock_wait } = options;
        let (source, schema) = match shared {
            None => (Arc::new(SessionSource::new(address, max_open, connections)), None),
            Some((key, schema)) => {
                let max_shared = connections.limits().max_shared_connections;
                let create = || SessionSource::new(address, max_shared, connections);
                let source = connections.shared_sources().find_or_insert(key, create);
                (source, Some((schema, Arc::new(Semaphore::new(max_open as usize)))))
            }
        };
        Self(Arc::new(PoolInner {
            source,
            schema,
            wait,
            limit,
            lock_wait,
            breaker: breaker.map(Arc::clone),
            write_lock: WriteLock::default(),
            closed: AtomicBool::new(false),
        }))
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.address().dialect()
    }

    pub(super) fn connections(&self) -> &Arc<Connections> {
        self.0.source.connections()
    }

    pub(super) fn breaker(&self) -> Option<&Arc<Breaker>> {
        self.0.breaker.as_ref()
    }

    /// Checks whether the error of a statement reveals a pooler.
    pub(super) fn detect_pooler(&self, error: &sqlx::Error) {
        self.address().detect_pooler(error);
        self.log_pooler();
    }

    /// Logs a detected pooler, once, in a pool that serves requests. Commands report it themselves.
    fn log_pooler(&self) {
        if self.0.breaker.is_some() {
            self.address().log_pooler();
        }
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        self.0.limit
    }

    pub(super) fn write_lock(&self) -> &WriteLock {
        &self.0.write_lock
    }

    pub(super) fn address(&self) -> &SessionAddress {
        self.0.source.address()
    }

    pub(super) fn lock_wait(&self) -> Duration {
        self.0.lock_wait
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Acquires a connection, unless the breaker is open.
    pub(super) async fn acquire(&self) -> Result<PooledConnection, StoreError> {
        let breaker_permit = self.0.breaker.as_ref().map(Breaker::enter).transpose()?;
        self.acquire_permitted(breaker_permit).await
    }

    /// Acquires a connection for a caller that holds a permit of the breaker, or needs none.
    pub(super) async fn acquire_permitted(
        &self,
        breaker_permit: Option<BreakerPermit>,
    ) -> Result<PooledConnection, StoreError> {
        let (source, connections) = (&self.0.source, self.0.source.connections());
        let busy = || {
            connections.metrics().refused("wait");
            StoreError::Busy
        };
        let deadline = Instant::now() + self.0.wait;
        let share = self.acquire_share().await.ok_or_else(busy)?;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let checkout = connections.checkout(source.id(), source.max_open(), self.dialect(), wait).await;
            let permit = match checkout.ok_or_else(busy)? {
                Checkout::Idle(idle) => {
                    let (mut session, permit, idle_for) = idle.take();
                    if idle_for < IDLE_BEFORE_PING || is_alive(&mut session).await {
                        let unverified = idle_for < IDLE_BEFORE_PING;
                        return Ok(PooledConnection::new(self, session, permit, share, breaker_permit, unverified));
                    }
                    // Whatever broke this connection has broken the others too: don't try them one by one.
                    self.close_idle();
                    continue;
                }
                Checkout::Open(permit) => permit,
                Checkout::Replace(session, permit) => close_first(session, permit).await,
            };
            match self.open(permit).await {
                Ok((session, permit)) => {
                    return Ok(PooledConnection::new(self, session, permit, share, breaker_permit, false));
                }
                Err(OpenError::ServerFull) => {}
                Err(OpenError::ReadOnly(file, error)) => {
                    return Err(StoreError::ReadOnly(ReadOnlyFile::new(&file, error)));
                }
                Err(OpenError::Failed(error)) => {
                    let error = StoreError::Unavailable(error);
                    if let Some(breaker_permit) = breaker_permit {
                        breaker_permit.broken(&error);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Opens a connection for a permit. It is opened in a task, so that it stays counted while it is being opened, and
    /// is kept for the next caller if this one gives up.
    pub(super) async fn open(&self, permit: ConnectionPermit) -> Result<(Session, ConnectionPermit), OpenError> {
        let (pool, (sender, receiver)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let opened = match Session::open(pool.address()).await {
                Ok(session) => Ok((session, permit)),
                Err(error) => Err(pool.open_error(error, &permit)),
            };
            pool.log_pooler();
            if let Err(Ok((session, permit))) = sender.send(opened) {
                permit.put_back(session);
            }
        });
        let limit = self.address().connect_limit();
        match within(limit + limit / 10, ONCE_MORE, receiver).await {
            Some(opened) => opened.expect("opening does not panic"),
            None => Err(OpenError::Failed(timed_out())),
        }
    }

    fn open_error(&self, error: sqlx::Error, permit: &ConnectionPermit) -> OpenError {
        if let Some(file) = self.address().readable_despite(&error) {
            self.connections().metrics().failed(DatabaseFailure::ReadOnly);
            return OpenError::ReadOnly(file.to_owned(), error);
        }
        let full = DatabaseFailure::of(&error) == Some(DatabaseFailure::Full);
        self.connections().metrics().failed(if full { DatabaseFailure::Full } else { DatabaseFailure::Unreachable });
        if full && permit.note_full(Instant::now() + FULL_SERVER_PAUSE) {
            OpenError::ServerFull
        } else {
            OpenError::Failed(error)
        }
    }

    /// Begins to close the idle connections.
    pub(super) fn close_idle(&self) {
        self.connections().close_idle(self.0.source.id());
    }

    /// Closes every connection, and waits for those in use for a limited time. Connections that other tenants share
    /// stay open.
    pub(super) async fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        if self.0.schema.is_none() {
            self.0.source.connections().close(self.0.source.id()).await;
        }
    }

    /// The tenant's permit for one of the shared connections; none if it has its own. `None` if it waited too long.
    async fn acquire_share(&self) -> Option<Option<OwnedSemaphorePermit>> {
        let Some((_, permits)) = &self.0.schema else { return Some(None) };
        let permit = within(self.0.wait, ONCE_MORE, Arc::clone(permits).acquire_owned()).await?;
        Some(Some(permit.expect("it is never closed")))
    }

    /// The schema in which the tenant's transactions resolve names, if its sessions are shared.
    pub(super) fn schema(&self) -> Option<&SchemaSetting> {
        self.0.schema.as_ref().map(|(schema, _)| schema)
    }
}

/// Why a connection was not opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The server is full, and the pool has other connections, one of which may soon be free.
    ServerFull,
    /// The SQLite file can only be read.
    ReadOnly(PathBuf, sqlx::Error),
    /// Connecting failed.
    Failed(sqlx::Error),
}

async fn is_alive(session: &mut Session) -> bool {
    matches!(within(PING_LIMIT, ONCE_MORE, session.ping()).await, Some(Ok(())))
}

/// Closes a connection and returns the permit of its successor. It is closed in a task, so that it stays counted until
/// then even if the caller gives up.
async fn close_first(session: Session, permit: ConnectionPermit) -> ConnectionPermit {
    let closing = async move {
        // The outcome does not matter: a connection that does not close in time is dropped.
        let _ = tokio::time::timeout(CLOSE_LIMIT, session.close()).await;
        permit
    };
    tokio::spawn(closing).await.expect("closing does not panic")
}
