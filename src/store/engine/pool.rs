//! One tenant's connections of one kind, opened when they are needed.
//!
//! Owns how a connection is had: past the breaker, out of the [`Connections`] of all tenants, looked at where it was
//! unused for a while, opened where there was none. A [`PooledConnection`] is what comes of it.
//!
//! sqlx makes the connections and runs what is asked on them, but its own pools are not used: several of them can't
//! share one cap, each asks a connection for its health before and after every use, and one whose server refuses goes on
//! trying until the caller's wait is over.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::breaker::{Breaker, BreakerPermit};
use super::connections::{Checkout, ConnectionPermit, Connections, PoolId};
use super::error::StoreError;
use super::session::{CLOSE_LIMIT, Session, SessionAddress, timed_out};
use super::write_access::ReadOnlyFile;
use super::write_lock::WriteLock;
use crate::metrics::DatabaseFailure;
use crate::store::statement::Dialect;
pub(super) mod connection;

use crate::deadline::{ONCE_MORE, within};
use connection::PooledConnection;

/// A connection that was unused for longer is asked whether it still works. Longer, and more statements meet one that
/// does not; shorter, and busy tenants pay round trips.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(1);

/// How long that answer may take: a server that hangs is told from a slow statement.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// How long a server that takes no more connections is not asked for another one. Longer, and a tenant makes do with
/// few although there is room; shorter, and servers that are full are stormed.
const FULL_SERVER_PAUSE: Duration = Duration::from_secs(1);

/// The connections of one database. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    id: PoolId,
    options: PoolOptions,
    connections: Arc<Connections>,
    breaker: Option<Arc<Breaker>>,
    write_lock: WriteLock,
    closed: AtomicBool,
}

/// How a pool's connections are opened and lent.
#[derive(Debug)]
pub(super) struct PoolOptions {
    pub(super) address: SessionAddress,
    /// The most that are open at once.
    pub(super) max_open: u32,
    /// How long one is waited for.
    pub(super) wait: Duration,
    /// How long a statement may run.
    pub(super) limit: Option<Duration>,
    /// How long a writer waits for another program that holds the write lock of a SQLite file.
    pub(super) lock_wait: Duration,
}

impl Pool {
    /// Nothing is opened yet.
    pub(super) fn new(options: PoolOptions, connections: &Arc<Connections>, breaker: Option<&Arc<Breaker>>) -> Self {
        Self(Arc::new(PoolInner {
            id: connections.new_pool(),
            options,
            connections: Arc::clone(connections),
            breaker: breaker.map(Arc::clone),
            write_lock: WriteLock::default(),
            closed: AtomicBool::new(false),
        }))
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.0.options.address.dialect()
    }

    pub(super) fn connections(&self) -> &Connections {
        &self.0.connections
    }

    pub(super) fn breaker(&self) -> Option<&Arc<Breaker>> {
        self.0.breaker.as_ref()
    }

    /// Looks at the error of a statement for a pooler.
    pub(super) fn detect_pooler(&self, error: &sqlx::Error) {
        self.0.options.address.detect_pooler(error);
        self.log_pooler();
    }

    /// Logs the pooler that was noticed, once, where it serves.
    fn log_pooler(&self) {
        if self.0.breaker.is_some() {
            self.0.options.address.log_pooler();
        }
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        self.0.options.limit
    }

    pub(super) fn write_lock(&self) -> &WriteLock {
        &self.0.write_lock
    }

    pub(super) fn address(&self) -> &SessionAddress {
        &self.0.options.address
    }

    pub(super) fn lock_wait(&self) -> Duration {
        self.0.options.lock_wait
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// A connection, unless the breaker is open.
    pub(super) async fn acquire(&self) -> Result<PooledConnection, StoreError> {
        let breaker_permit = self.0.breaker.as_ref().map(Breaker::enter).transpose()?;
        self.acquire_permitted(breaker_permit).await
    }

    /// A connection for one who asked the breaker, or need not.
    pub(super) async fn acquire_permitted(
        &self,
        breaker_permit: Option<BreakerPermit>,
    ) -> Result<PooledConnection, StoreError> {
        let PoolInner { id, options, connections, .. } = &*self.0;
        let deadline = Instant::now() + options.wait;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let Some(checkout) = connections.checkout(*id, options.max_open, self.dialect(), wait).await else {
                connections.metrics().refused("wait");
                return Err(StoreError::Busy);
            };
            let permit = match checkout {
                Checkout::Idle(idle) => {
                    let (mut session, permit, idle_for) = idle.take();
                    if idle_for < IDLE_BEFORE_PING || is_alive(&mut session).await {
                        return Ok(PooledConnection::new(
                            self,
                            session,
                            permit,
                            breaker_permit,
                            idle_for < IDLE_BEFORE_PING,
                        ));
                    }
                    // What broke one has broken the others: they are not tried one by one.
                    self.close_idle();
                    continue;
                }
                Checkout::Open(permit) => permit,
                Checkout::Replace(session, permit) => close_first(session, permit).await,
            };
            match self.open(permit).await {
                Ok((session, permit)) => {
                    return Ok(PooledConnection::new(self, session, permit, breaker_permit, false));
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

    /// Opens a connection for a permit, in a task: it is counted as long as it is being opened, and is there for the next
    /// one when who waited for it has gone.
    pub(super) async fn open(&self, permit: ConnectionPermit) -> Result<(Session, ConnectionPermit), OpenError> {
        let (pool, (sender, receiver)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let opened = match Session::open(&pool.0.options.address).await {
                Ok(session) => Ok((session, permit)),
                Err(error) => Err(pool.open_error(error, &permit)),
            };
            pool.log_pooler();
            if let Err(Ok((session, permit))) = sender.send(opened) {
                permit.put_back(session);
            }
        });
        let limit = self.0.options.address.connect_limit();
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

    /// Begins to close the connections that nobody uses.
    pub(super) fn close_idle(&self) {
        self.0.connections.close_idle(self.0.id);
    }

    /// Closes every connection, waiting a while for those in use.
    pub(super) async fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.connections.close(self.0.id).await;
    }
}

/// Why there is no new connection.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The server takes no more, and the pool has others, of which one may soon be free.
    ServerFull,
    /// It is a SQLite file that can only be read.
    ReadOnly(PathBuf, sqlx::Error),
    /// It can't be connected to.
    Failed(sqlx::Error),
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        self.connections.close_idle(self.id);
    }
}

async fn is_alive(session: &mut Session) -> bool {
    matches!(within(PING_LIMIT, ONCE_MORE, session.ping()).await, Some(Ok(())))
}

/// The permit of a connection, once that is closed; in a task, so that it is also counted until then when nobody waits.
async fn close_first(session: Session, permit: ConnectionPermit) -> ConnectionPermit {
    let closing = async move {
        // Whatever comes of it: what does not close in time is cut.
        let _ = tokio::time::timeout(CLOSE_LIMIT, session.close()).await;
        permit
    };
    tokio::spawn(closing).await.expect("closing does not panic")
}
