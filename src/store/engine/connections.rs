//! The connections to the databases of all tenants, under a limit for Postgres and one for SQLite.
//!
//! Every [`Pool`](super::pool::Pool) takes its connections from here, so that one lock guards the exact lists of open
//! and idle connections and of waiters to each kind of database ([`budget`]). A busy tenant can't starve a quiet one.
//!
//! The kinds are counted separately, because they cost different things. A connection to Postgres takes one of the
//! server's, so few are allowed, and a quiet tenant's is closed soon. A SQLite connection takes memory, a thread and
//! descriptors of this node, and opening one costs several times what a request on an open one does, so thousands are
//! allowed and stay open for hours.
//!
//! A [`ConnectionPermit`] is held from before a connection is opened until after it is closed.

mod budget;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::limits::DatabaseLimits;
use super::session::{CLOSE_LIMIT, Session};
use super::session_source::SharedSources;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::{DatabaseMetrics, WaitingRequest};
use crate::store::statement::Dialect;
pub(super) use budget::CheckoutRequest;
use budget::ConnectionBudget;

/// When closing idle connections goes on if as many are closing as may be.
///
/// Larger: thousands of connections that became idle together are closed later. Smaller: waking up for nothing.
const MANY_CLOSING: Duration = Duration::from_millis(100);

/// The connections of all pools.
#[derive(Debug)]
pub struct Connections {
    limits: DatabaseLimits,
    metrics: DatabaseMetrics,
    postgres: ConnectionBudget,
    sqlite: ConnectionBudget,
    /// Notified when a connection becomes idle and none of its kind was.
    became_idle: Notify,
    shared_sources: SharedSources,
    denials: AtomicU64,
}

/// Identifies a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolId {
    dialect: Dialect,
    number: u64,
}

/// What a connection is checked out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Anything: one of the connections that a pool may use at once.
    Any,
    /// The one writer of a SQLite file. Readers go on next to it, so it does not count against the pool's maximum.
    Writer,
}

impl Role {
    /// How many writers it is.
    fn count(self) -> u32 {
        u32::from(self == Self::Writer)
    }
}

/// The result of a checkout.
#[derive(Debug)]
pub(super) enum Checkout {
    /// An idle connection of the pool.
    Idle(IdleCheckout),
    /// A permit to open a connection.
    Open(ConnectionPermit),
    /// A permit to open a connection in place of an idle one of another pool.
    Replace {
        retiring: Retiring,
        permit: ConnectionPermit,
        /// Whether to wait until the other one is closed.
        wait: bool,
    },
}

/// A connection that was idle. Dropping it without [`Self::take`] makes it idle again.
#[derive(Debug)]
pub(super) struct IdleCheckout(Option<(Session, ConnectionPermit, Duration)>);

impl IdleCheckout {
    fn new(session: Session, permit: ConnectionPermit, idle_for: Duration) -> Self {
        Self(Some((session, permit, idle_for)))
    }

    /// The connection, and how long it was idle.
    pub(super) fn take(mut self) -> (Session, ConnectionPermit, Duration) {
        self.0.take().expect("taken once")
    }
}

impl Drop for IdleCheckout {
    fn drop(&mut self) {
        if let Some((session, permit, _)) = self.0.take() {
            permit.put_back(session);
        }
    }
}

/// An idle connection that has given its place away and is to be closed.
#[derive(Debug)]
pub(super) struct Retiring {
    session: Session,
    permit: ConnectionPermit,
}

impl Retiring {
    /// Closes it, then counts it as closed.
    pub(super) async fn close(self) {
        self.session.close_with(self.permit).await;
    }

    fn close_in_background(self) {
        // Without a runtime the program is about to end.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.close());
        }
    }
}

/// One connection of a pool that is open, being opened or being closed. Dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connections: Arc<Connections>,
    pool: PoolId,
    state: PermitState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitState {
    /// The connection is open or being opened.
    Open(Role),
    /// It has given its place away.
    Closing,
    /// It was put back: it is still open, so dropping the permit releases nothing.
    Idle,
}

impl ConnectionPermit {
    fn open(connections: &Arc<Connections>, pool: PoolId, role: Role) -> Self {
        Self { connections: Arc::clone(connections), pool, state: PermitState::Open(role) }
    }

    fn closing(connections: &Arc<Connections>, pool: PoolId) -> Self {
        Self { connections: Arc::clone(connections), pool, state: PermitState::Closing }
    }

    /// What the connection was checked out for.
    pub(super) fn role(&self) -> Role {
        match self.state {
            PermitState::Open(role) => role,
            PermitState::Closing | PermitState::Idle => Role::Any,
        }
    }

    /// Puts the connection back as an idle one.
    pub(super) fn put_back(mut self, session: Session) {
        if session.is_immutable() {
            return;
        }
        // Without a runtime the program is about to end.
        if Handle::try_current().is_err() {
            return;
        }
        let role = self.role();
        self.state = PermitState::Idle;
        let connections = Arc::clone(&self.connections);
        let budget = connections.budget(self.pool.dialect);
        let undelivered = {
            let mut state = budget.lock();
            connections.metrics.idle(self.pool.dialect.name(), 1);
            if state.add_idle(session, self.pool, role) {
                connections.became_idle.notify_one();
            }
            state.serve(&connections, budget)
        };
        // Dropping them puts their connections back, which takes the lock.
        drop(undelivered);
    }

    /// Notes until when the server counts as full. Returns whether the pool has another connection.
    pub(super) fn note_full(&self, until: Instant) -> bool {
        let mut state = self.connections.budget(self.pool.dialect).lock();
        let members = state.pools.entry(self.pool).or_default();
        members.full_until = Some(until);
        members.open > 1
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let (connections, name) = (&self.connections, self.pool.dialect.name());
        let budget = connections.budget(self.pool.dialect);
        let undelivered = {
            let mut state = budget.lock();
            match self.state {
                PermitState::Idle => return,
                PermitState::Open(role) => {
                    state.count_closed(self.pool, role);
                    connections.metrics.open(name, -1);
                }
                PermitState::Closing => {
                    state.count_retired(self.pool);
                    connections.metrics.closing(name, -1);
                }
            }
            state.serve(connections, budget)
        };
        drop(undelivered);
        budget.closed.notify_waiters();
    }
}

impl Connections {
    /// An empty set of connections.
    #[must_use]
    pub fn new(limits: DatabaseLimits, metrics: DatabaseMetrics) -> Arc<Self> {
        Arc::new(Self {
            postgres: ConnectionBudget::postgres(limits.max_connections, limits.idle),
            sqlite: ConnectionBudget::sqlite(
                limits.max_sqlite_connections(),
                limits.max_sqlite_closing(),
                limits.sqlite_idle,
                limits.idle.min(limits.sqlite_idle),
            ),
            limits,
            metrics,
            became_idle: Notify::new(),
            shared_sources: SharedSources::default(),
            denials: AtomicU64::new(0),
        })
    }

    /// For a command, which works on one database.
    pub(in crate::store) fn for_command() -> Arc<Self> {
        /// A command only waits for its own connections.
        const WAIT: Duration = Duration::from_secs(60);
        Self::new(DatabaseLimits { wait: WAIT, ..DatabaseLimits::default() }, DatabaseMetrics::unregistered())
    }

    /// The limits for all tenants.
    #[must_use]
    pub fn limits(&self) -> DatabaseLimits {
        self.limits
    }

    /// The metrics of all databases.
    #[must_use]
    pub fn metrics(&self) -> &DatabaseMetrics {
        &self.metrics
    }

    /// How often a statement was denied: the role lacks a right, or nobody may write.
    pub(in crate::store) fn denials(&self) -> u64 {
        self.denials.load(Ordering::Relaxed)
    }

    /// Counts a statement that was denied.
    pub(super) fn note_denied(&self) {
        self.denials.fetch_add(1, Ordering::Relaxed);
    }

    /// The sources of sessions that several pools share.
    pub(super) fn shared_sources(&self) -> &SharedSources {
        &self.shared_sources
    }

    /// The id of a new source of sessions.
    pub(super) fn new_pool(&self, dialect: Dialect) -> PoolId {
        PoolId { dialect, number: self.budget(dialect).lock().next_number() }
    }

    /// Checks out a connection, or a permit to open one. None after `wait`.
    pub(super) async fn checkout(self: &Arc<Self>, request: CheckoutRequest, wait: Duration) -> Option<Checkout> {
        let budget = self.budget(request.pool.dialect);
        let (number, receiver) = {
            let mut state = budget.lock();
            // This overtakes no waiter: whatever a waiter could use has been given to it already.
            if let Some(checkout) = state.try_checkout(self, budget, &request) {
                return Some(checkout);
            }
            state.add_waiter(request)
        };
        let _guard = WaiterGuard { _waiting: self.metrics.wait(), budget, number };
        within(wait, ONCE_MORE, receiver).await?.ok()
    }

    /// An idle connection of a pool, if there is one.
    pub(super) fn checkout_idle(self: &Arc<Self>, request: &CheckoutRequest) -> Option<IdleCheckout> {
        self.budget(request.pool.dialect).lock().take_idle_of(self, request)
    }

    /// Whether no more than one connection of a pool is open or being opened.
    pub(super) fn has_one_at_most(&self, pool: PoolId) -> bool {
        self.budget(pool.dialect).lock().open_of(pool) <= 1
    }

    /// Whether a pool has an idle connection.
    pub(super) fn has_idle(&self, request: &CheckoutRequest) -> bool {
        self.budget(request.pool.dialect).lock().find_idle(request).is_some()
    }

    /// Closes the idle connections of a pool, and waits for a limited time until all its connections are closed.
    pub(super) async fn close(self: &Arc<Self>, pool: PoolId) {
        let budget = self.budget(pool.dialect);
        let closed = async {
            loop {
                let closed = budget.closed.notified();
                self.close_idle(pool);
                if !budget.lock().pools.contains_key(&pool) {
                    return;
                }
                closed.await;
            }
        };
        if tokio::time::timeout(CLOSE_LIMIT, closed).await.is_err() {
            tracing::debug!("connections to a database were not closed in time; they close in the background");
        }
    }

    /// Begins to close the idle connections of a pool.
    pub(super) fn close_idle(self: &Arc<Self>, pool: PoolId) {
        let idle: Vec<_> = {
            let budget = self.budget(pool.dialect);
            let mut state = budget.lock();
            state.idle_of(pool).into_iter().filter_map(|number| state.retire(self, budget, number)).collect()
        };
        idle.into_iter().for_each(Retiring::close_in_background);
    }

    /// Begins to close the connections that have been idle for too long. Returns when the next one is due.
    pub fn close_long_idle(self: &Arc<Self>) -> Option<Instant> {
        let next = [&self.postgres, &self.sqlite].map(|budget| self.close_long_idle_of(budget));
        next.into_iter().flatten().min()
    }

    fn close_long_idle_of(self: &Arc<Self>, budget: &ConnectionBudget) -> Option<Instant> {
        let mut due = Vec::new();
        let next = {
            let mut state = budget.lock();
            loop {
                let Some((number, until)) = state.next_to_close(budget) else { break None };
                if until > Instant::now() {
                    break Some(until);
                }
                // Thousands of files that are closed at once would keep the disk busy.
                if budget.spare > 0 && !state.has_spare(budget) {
                    break Some(Instant::now() + MANY_CLOSING);
                }
                due.extend(state.retire(self, budget, number));
            }
        };
        due.into_iter().for_each(Retiring::close_in_background);
        next
    }

    /// Waits until a connection becomes idle while no other one of its kind is.
    pub async fn idle_began(&self) {
        self.became_idle.notified().await;
    }

    fn budget(&self, dialect: Dialect) -> &ConnectionBudget {
        match dialect {
            Dialect::Postgres => &self.postgres,
            Dialect::Sqlite => &self.sqlite,
        }
    }
}

/// Counts a waiter, and removes it when dropped.
struct WaiterGuard<'c> {
    _waiting: WaitingRequest,
    budget: &'c ConnectionBudget,
    number: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.budget.lock().waiting.remove(&self.number);
    }
}
