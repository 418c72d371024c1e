//! A pool of one tenant's connections, opened on demand.
//!
//! Owns how a [`PooledConnection`] is acquired: the breaker is asked first, then [`Connections`], which all tenants
//! share; an idle connection to Postgres is pinged if it was idle for a while, and a new one is opened if there is
//! none.
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::breaker::{Breaker, BreakerPermit};
use super::connections::{Checkout, CheckoutRequest, ConnectionPermit, Connections, Role};
use super::error::StoreError;
use super::failure::timed_out;
use super::schema_setting::SchemaSetting;
use super::session::{Session, SessionAddress};
use super::session_source::{SessionSource, SharedKey};
use super::write_access::ReadOnlyFile;
use super::write_lock::WriteLock;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::DatabaseFailure;
use crate::store::statement::Dialect;
use connection::{ConnectionSource, PooledConnection};

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
    begin_writing: BeginWriting,
    breaker: Option<Arc<Breaker>>,
    write_lock: WriteLock,
    closed: AtomicBool,
    openings: AtomicU64,
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
    /// How a transaction that writes to a SQLite file begins.
    pub(super) begin_writing: BeginWriting,
}

/// How a transaction that writes to a SQLite file begins: it takes the write lock at once, so that it can't fail for
/// the lock half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeginWriting {
    /// A try fails at once if another program holds the lock, and [`WriteLock`] waits for the next one. The driver's
    /// own wait would block a thread that nothing can interrupt. It stays in place for reading.
    Polling,
    /// The driver waits, in a command.
    Blocking,
}

impl Pool {
    /// A pool without connections.
    pub(super) fn new(options: PoolOptions, connections: &Arc<Connections>, breaker: Option<&Arc<Breaker>>) -> Self {
        let PoolOptions { address, shared, max_open, wait, limit, lock_wait, begin_writing } = options;
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
            begin_writing,
            breaker: breaker.map(Arc::clone),
            write_lock: WriteLock::default(),
            closed: AtomicBool::new(false),
            openings: AtomicU64::new(0),
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

    pub(super) fn begin_writing(&self) -> BeginWriting {
        self.0.begin_writing
    }

    /// How often a connection was opened while no other one was open.
    pub(super) fn openings(&self) -> u64 {
        self.0.openings.load(Ordering::Acquire)
    }

    /// Whether a connection is open and idle.
    pub(super) fn has_idle(&self) -> bool {
        self.connections().has_idle(&self.request(Role::Any))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Lets a caller through, unless the breaker is open.
    pub(super) fn enter_breaker(&self) -> Result<Option<BreakerPermit>, StoreError> {
        self.0.breaker.as_ref().map(Breaker::enter).transpose()
    }

    /// Acquires a connection, unless the breaker is open.
    pub(super) async fn acquire(&self) -> Result<PooledConnection, StoreError> {
        self.acquire_permitted(self.enter_breaker()?, Role::Any).await
    }

    /// An idle connection, if there is one and the breaker is not open.
    pub(super) fn acquire_idle(&self, role: Role) -> Option<PooledConnection> {
        let breaker_permit = self.enter_breaker().ok()?;
        let share = match &self.0.schema {
            Some((_, permits)) => Some(Arc::clone(permits).try_acquire_owned().ok()?),
            None => None,
        };
        let (session, permit, _) = self.connections().checkout_idle(&self.request(role))?.take();
        Some(PooledConnection::new(self, session, permit, share, breaker_permit, ConnectionSource::IdleUnverified))
    }

    /// Acquires a connection for a caller that holds a permit of the breaker, or needs none.
    pub(super) async fn acquire_permitted(
        &self,
        breaker_permit: Option<BreakerPermit>,
        role: Role,
    ) -> Result<PooledConnection, StoreError> {
        let connections = self.connections();
        let busy = || {
            connections.metrics().refused("wait");
            StoreError::Busy
        };
        let deadline = Instant::now() + self.0.wait;
        let share = self.acquire_share().await.ok_or_else(busy)?;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let permit = match connections.checkout(self.request(role), wait).await.ok_or_else(busy)? {
                Checkout::Idle(idle) => {
                    let (mut session, permit, idle_for) = idle.take();
                    // A SQLite connection has no server that could close it.
                    let is_pinged = idle_for >= IDLE_BEFORE_PING && self.dialect() == Dialect::Postgres;
                    let found = if is_pinged { ConnectionSource::Idle } else { ConnectionSource::IdleUnverified };
                    if !is_pinged || is_alive(&mut session).await {
                        return Ok(PooledConnection::new(self, session, permit, share, breaker_permit, found));
                    }
                    // Whatever broke this connection has broken the others too: don't try them one by one.
                    self.close_idle();
                    continue;
                }
                Checkout::Open(permit) => permit,
                Checkout::Replace { retiring, permit, wait } => {
                    // In a task, so that it goes on if the caller gives up.
                    let closing = tokio::spawn(retiring.close());
                    if wait {
                        closing.await.expect("closing does not panic");
                    }
                    permit
                }
            };
            match self.open(permit).await {
                Ok((session, permit)) => {
                    return Ok(PooledConnection::new(
                        self,
                        session,
                        permit,
                        share,
                        breaker_permit,
                        ConnectionSource::Opened,
                    ));
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

    pub(super) fn request(&self, role: Role) -> CheckoutRequest {
        let source = &self.0.source;
        CheckoutRequest { pool: source.id(), schema: self.schema().cloned(), max_open: source.max_open(), role }
    }

    /// Opens a connection for a permit. It is opened in a task, so that it stays counted while it is being opened, and
    /// is kept for the next caller if this one gives up.
    pub(super) async fn open(&self, permit: ConnectionPermit) -> Result<(Session, ConnectionPermit), OpenError> {
        let (pool, (sender, receiver)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let opened = match Session::open(pool.address(), permit.role()).await {
                Ok(session) => {
                    pool.connections().metrics().opened(pool.dialect().name());
                    if pool.connections().has_one_at_most(pool.0.source.id()) {
                        pool.0.openings.fetch_add(1, Ordering::AcqRel);
                    }
                    Ok((session, permit))
                }
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
        if permit.role() == Role::Writer
            && let Some(file) = self.address().readable_despite(&error)
        {
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
