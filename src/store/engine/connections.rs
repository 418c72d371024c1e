//! The connections to the databases of all tenants, under one cap.
//!
//! Every [`Pool`](super::pool::Pool) takes its connections from here, so that one lock guards the exact lists of open
//! and idle connections and of waiters. A checkout returns an idle connection of the pool, or else a permit to open
//! one; at the cap, the least recently used idle connection of any pool is closed first. If none is idle, the caller
//! waits. Waiters are served first come, first served over all pools, so that a busy tenant can't starve a quiet one.
//!
//! A [`ConnectionPermit`] is held from before a connection is opened until after it is closed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::limits::DatabaseLimits;
use super::session::Session;
use super::session_source::SharedSources;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::DatabaseMetrics;
use crate::store::statement::Dialect;

/// The connections of all pools.
#[derive(Debug)]
pub struct Connections {
    limits: DatabaseLimits,
    metrics: DatabaseMetrics,
    state: Mutex<ConnectionsState>,
    /// Notified whenever a connection has been closed.
    closed: Notify,
    /// Notified when a connection becomes idle and none was.
    became_idle: Notify,
    shared_sources: SharedSources,
}

#[derive(Debug, Default)]
struct ConnectionsState {
    /// The last number that was assigned to a pool, an idle connection or a waiter.
    last: u64,
    /// How many connections are open, being opened or being closed.
    open: u32,
    /// The pools that have an open connection. A quiet pool takes no memory here.
    pools: HashMap<PoolId, PoolConnections>,
    /// In the order in which they became idle: the least recently used first.
    idle: BTreeMap<u64, IdleConnection>,
    /// In the order of their arrival.
    waiting: BTreeMap<u64, Waiter>,
}

/// Identifies a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolId(u64);

/// The connections of one pool.
#[derive(Debug, Default)]
struct PoolConnections {
    open: u32,
    /// The most recently used last: it is the first to be used again.
    idle: Vec<u64>,
    /// Until when the server counts as full.
    full_until: Option<Instant>,
}

#[derive(Debug)]
struct IdleConnection {
    session: Session,
    pool: PoolId,
    since: Instant,
}

#[derive(Debug)]
struct Waiter {
    pool: PoolId,
    max_open: u32,
    dialect: Dialect,
    checkout: oneshot::Sender<Checkout>,
}

/// The result of a checkout.
#[derive(Debug)]
pub(super) enum Checkout {
    /// An idle connection of the pool.
    Idle(IdleCheckout),
    /// A permit to open a connection.
    Open(ConnectionPermit),
    /// A permit to open a connection once this idle connection of another pool is closed.
    Replace(Session, ConnectionPermit),
}

/// A connection that was idle. Dropping it without [`Self::take`] makes it idle again.
#[derive(Debug)]
pub(super) struct IdleCheckout(Option<(Session, ConnectionPermit, Duration)>);

impl IdleCheckout {
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

/// One connection of a pool that is open, being opened or being closed. Dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connections: Arc<Connections>,
    pool: PoolId,
    dialect: Dialect,
    /// Whether the connection was put back: it is still open, so dropping the permit releases nothing.
    is_idle: bool,
}

impl ConnectionPermit {
    /// Puts the connection back as an idle one.
    pub(super) fn put_back(mut self, session: Session) {
        if session.is_immutable() {
            return;
        }
        // Without a runtime the program is about to end.
        if Handle::try_current().is_err() {
            return;
        }
        self.is_idle = true;
        let connections = Arc::clone(&self.connections);
        let undelivered = {
            let mut state = connections.lock();
            let (number, since) = (state.next_number(), Instant::now());
            state.idle.insert(number, IdleConnection { session, pool: self.pool, since });
            state.pools.entry(self.pool).or_default().idle.push(number);
            connections.metrics.idle(self.dialect.name(), 1);
            if state.idle.len() == 1 {
                connections.became_idle.notify_one();
            }
            state.serve(&connections)
        };
        // Dropping them puts their connections back, which takes the lock.
        drop(undelivered);
    }

    /// Notes until when the server counts as full. Returns whether the pool has another connection.
    pub(super) fn note_full(&self, until: Instant) -> bool {
        let mut state = self.connections.lock();
        let members = state.pools.entry(self.pool).or_default();
        members.full_until = Some(until);
        members.open > 1
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.is_idle {
            return;
        }
        let undelivered = {
            let mut state = self.connections.lock();
            state.count_closed(self.pool);
            self.connections.metrics.open(self.dialect.name(), -1);
            state.serve(&self.connections)
        };
        drop(undelivered);
        self.connections.closed.notify_waiters();
    }
}

impl Connections {
    /// An empty set of connections.
    #[must_use]
    pub fn new(limits: DatabaseLimits, metrics: DatabaseMetrics) -> Arc<Self> {
        Arc::new(Self {
            limits,
            metrics,
            state: Mutex::default(),
            closed: Notify::new(),
            became_idle: Notify::new(),
            shared_sources: SharedSources::default(),
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

    /// The sources of sessions that several pools share.
    pub(super) fn shared_sources(&self) -> &SharedSources {
        &self.shared_sources
    }

    /// The id of a new source of sessions.
    pub(super) fn new_pool(&self) -> PoolId {
        PoolId(self.lock().next_number())
    }

    /// Checks out a connection, or a permit to open one, for a pool that may have `max_open`. None after `wait`.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        pool: PoolId,
        max_open: u32,
        dialect: Dialect,
        wait: Duration,
    ) -> Option<Checkout> {
        let (number, receiver) = {
            let mut state = self.lock();
            // This overtakes no waiter: whatever a waiter could use has been given to it already.
            if let Some(checkout) = state.try_checkout(self, pool, max_open, dialect) {
                return Some(checkout);
            }
            let (number, (checkout, receiver)) = (state.next_number(), oneshot::channel());
            state.waiting.insert(number, Waiter { pool, max_open, dialect, checkout });
            (number, receiver)
        };
        let _guard = WaiterGuard::new(self, number);
        within(wait, ONCE_MORE, receiver).await?.ok()
    }

    /// Closes the idle connections of a pool, and waits for a limited time until all its connections are closed.
    pub(super) async fn close(self: &Arc<Self>, pool: PoolId) {
        let closed = async {
            loop {
                let closed = self.closed.notified();
                self.close_idle(pool);
                if !self.lock().pools.contains_key(&pool) {
                    return;
                }
                closed.await;
            }
        };
        if tokio::time::timeout(super::session::CLOSE_LIMIT, closed).await.is_err() {
            tracing::debug!("connections to a database were not closed in time; they close in the background");
        }
    }

    /// Begins to close the idle connections of a pool.
    pub(super) fn close_idle(self: &Arc<Self>, pool: PoolId) {
        let idle: Vec<_> = {
            let mut state = self.lock();
            let numbers = state.pools.get(&pool).map(|members| members.idle.clone()).unwrap_or_default();
            numbers.into_iter().filter_map(|number| state.take_idle(number)).collect()
        };
        idle.into_iter().for_each(|idle| self.retire(idle));
    }

    /// Begins to close the connections that have been idle for too long. Returns when the next one is due.
    pub fn close_long_idle(self: &Arc<Self>) -> Option<Instant> {
        let mut due = Vec::new();
        let next = {
            let mut state = self.lock();
            loop {
                let Some((&number, longest)) = state.idle.first_key_value() else { break None };
                let until = longest.since + self.limits.idle;
                if until > Instant::now() {
                    break Some(until);
                }
                due.extend(state.take_idle(number));
            }
        };
        due.into_iter().for_each(|idle| self.retire(idle));
        next
    }

    /// Waits until a connection becomes idle while no other one is.
    pub async fn idle_began(&self) {
        self.became_idle.notified().await;
    }

    /// Closes an idle connection. Its permit is released when it is closed.
    fn retire(self: &Arc<Self>, IdleConnection { session, pool, .. }: IdleConnection) {
        let permit = self.permit_for(pool, session.dialect());
        self.metrics.idle(permit.dialect.name(), -1);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(session.close_with(permit));
        }
    }

    fn permit_for(self: &Arc<Self>, pool: PoolId, dialect: Dialect) -> ConnectionPermit {
        ConnectionPermit { connections: Arc::clone(self), pool, dialect, is_idle: false }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionsState> {
        // Nothing panics between two statements that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionsState {
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Serves waiters with what is available. Returns checkouts whose receivers have just gone.
    #[must_use = "to be dropped once the lock is free"]
    fn serve(&mut self, connections: &Arc<Connections>) -> Vec<Checkout> {
        let mut undelivered = Vec::new();
        let mut next = 0;
        while let Some((&number, waiter)) = self.waiting.range(next..).next() {
            if self.idle.is_empty() && self.open >= connections.limits.max_connections {
                break;
            }
            next = number + 1;
            if waiter.checkout.is_closed() {
                continue;
            }
            let (pool, max_open, dialect) = (waiter.pool, waiter.max_open, waiter.dialect);
            if let Some(checkout) = self.try_checkout(connections, pool, max_open, dialect) {
                let waiter = self.waiting.remove(&number).expect("it was there a line ago");
                undelivered.extend(waiter.checkout.send(checkout).err());
            }
        }
        undelivered
    }

    /// Checks out what is available to a pool now.
    fn try_checkout(
        &mut self,
        connections: &Arc<Connections>,
        pool: PoolId,
        max_open: u32,
        dialect: Dialect,
    ) -> Option<Checkout> {
        let permit = |pool| connections.permit_for(pool, dialect);
        if let Some(&number) = self.pools.get(&pool).and_then(|members| members.idle.last()) {
            let IdleConnection { session, since, .. } =
                self.take_idle(number).expect("a pool knows its idle connections");
            connections.metrics.idle(dialect.name(), -1);
            return Some(Checkout::Idle(IdleCheckout(Some((session, permit(pool), since.elapsed())))));
        }
        if let Some(members) = self.pools.get(&pool) {
            let is_full = members.full_until.is_some_and(|until| Instant::now() < until);
            if members.open >= max_open || is_full {
                return None;
            }
        }
        if self.open < connections.limits.max_connections {
            self.count_open(pool);
            connections.metrics.open(dialect.name(), 1);
            return Some(Checkout::Open(permit(pool)));
        }
        let (&longest, _) = self.idle.first_key_value()?;
        let IdleConnection { session, pool: other, .. } = self.take_idle(longest).expect("it is the first");
        connections.metrics.idle(session.dialect().name(), -1);
        connections.metrics.open(session.dialect().name(), -1);
        self.count_closed(other);
        self.count_open(pool);
        connections.metrics.open(dialect.name(), 1);
        Some(Checkout::Replace(session, permit(pool)))
    }

    fn count_open(&mut self, pool: PoolId) {
        self.open += 1;
        self.pools.entry(pool).or_default().open += 1;
    }

    fn count_closed(&mut self, pool: PoolId) {
        self.open -= 1;
        let members = self.pools.get_mut(&pool).expect("a pool with a connection is known");
        members.open -= 1;
        if members.open == 0 {
            self.pools.remove(&pool);
        }
    }

    /// Removes an idle connection. The caller takes over its permit.
    fn take_idle(&mut self, number: u64) -> Option<IdleConnection> {
        let idle = self.idle.remove(&number)?;
        let members = self.pools.get_mut(&idle.pool).expect("a pool with a connection is known");
        members.idle.retain(|other| *other != number);
        Some(idle)
    }
}

/// Counts a waiter, and removes it when dropped.
struct WaiterGuard<'c> {
    connections: &'c Connections,
    number: u64,
}

impl<'c> WaiterGuard<'c> {
    fn new(connections: &'c Connections, number: u64) -> Self {
        connections.metrics.waiting.inc();
        Self { connections, number }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.connections.metrics.waiting.dec();
        self.connections.lock().waiting.remove(&self.number);
    }
}
