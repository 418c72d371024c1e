//! The connections of all pools to one kind of database, Postgres or SQLite, under one limit.
//!
//! A checkout takes an idle connection of its pool, or else opens one. At the limit, the least recently used idle
//! connection of any pool is retired first; if none is idle, the checkout waits. Waiters are served first come, first
//! served.
//!
//! **A retiring connection is not waited for**, because closing a SQLite file writes its log back and syncs it, which
//! takes a disk's time and would make one account wait for another. It gives its place to its successor at once, and
//! closes in the background. Up to [`ConnectionBudget::spare`] connections may be closing while all places are taken. Beyond
//! that, a checkout waits until the connection that it replaces is closed, so that a disk that hangs does not collect
//! threads and descriptors without limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::{Checkout, ConnectionPermit, Connections, IdleCheckout, PoolId, Retiring, Role};
use crate::store::engine::schema_setting::SchemaSetting;
use crate::store::engine::session::Session;
use crate::store::statement::Dialect;

/// How many schemas a shared connection serves before the next schema gets a connection of its own, if one may be opened.
/// A connection answers fast in a schema that it has served before: the server's process has read its tables.
///
/// Larger: few connections serve many schemas, are soon replaced, and forget. Smaller: more connections are opened.
const SCHEMAS_EACH: usize = 50;

/// The connections to one kind of database.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    dialect: Dialect,
    /// How many may be open at once.
    max_open: u32,
    /// How many more may be closing.
    pub(super) spare: u32,
    /// A connection that has been idle for this long is closed.
    pub(super) idle: Duration,
    /// The same for one that its pool has not needed meanwhile: another one became idle later.
    surplus_idle: Duration,
    state: Mutex<ConnectionBudgetState>,
    /// Notified whenever a connection has been closed.
    pub(super) closed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionBudgetState {
    /// The last number that was assigned to a pool, an idle connection or a waiter.
    last: u64,
    /// How many connections are open or being opened.
    pub(super) open: u32,
    /// How many connections have given their place away and are being closed.
    pub(super) closing: u32,
    /// The pools that have a connection. A quiet pool takes no memory here.
    pub(super) pools: HashMap<PoolId, PoolConnections>,
    /// In the order in which they became idle: the least recently used first.
    pub(super) idle: BTreeMap<u64, IdleConnection>,
    /// The idle connections of pools that have another one, which became idle later. In the same order.
    surplus: BTreeSet<u64>,
    /// In the order of their arrival.
    pub(super) waiting: BTreeMap<u64, Waiter>,
}

/// The connections of one pool.
#[derive(Debug, Default)]
pub(super) struct PoolConnections {
    /// Open, or being opened.
    pub(super) open: u32,
    /// Those of the open ones that a [`Role::Writer`] uses.
    writing: u32,
    /// Being closed, and no longer open.
    closing: u32,
    /// The most recently used last.
    idle: Vec<u64>,
    /// Until when the server counts as full.
    pub(super) full_until: Option<Instant>,
}

impl PoolConnections {
    fn is_server_full(&self) -> bool {
        self.full_until.is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Debug)]
pub(super) struct IdleConnection {
    session: Session,
    pool: PoolId,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Waiter {
    request: CheckoutRequest,
    checkout: oneshot::Sender<Checkout>,
}

/// What a caller wants.
#[derive(Clone, Debug)]
pub(in crate::store::engine) struct CheckoutRequest {
    pub(in crate::store::engine) pool: PoolId,
    /// If tenants share the pool's connections: the schema that the caller reads.
    pub(in crate::store::engine) schema: Option<SchemaSetting>,
    /// How many connections the pool may use at once, not counting that of a [`Role::Writer`].
    pub(in crate::store::engine) max_open: u32,
    pub(in crate::store::engine) role: Role,
}

impl ConnectionBudget {
    /// Closing a connection to Postgres only sends a message, and the server's own limit has to hold: none to spare.
    pub(super) fn postgres(max_open: u32, idle: Duration) -> Self {
        Self::new(Dialect::Postgres, max_open, 0, idle, idle)
    }

    /// Quiet accounts rarely have two calls at once, so the connection that a second one opened is closed sooner than the
    /// first.
    pub(super) fn sqlite(max_open: u32, spare: u32, idle: Duration, surplus_idle: Duration) -> Self {
        Self::new(Dialect::Sqlite, max_open, spare, idle, surplus_idle)
    }

    fn new(dialect: Dialect, max_open: u32, spare: u32, idle: Duration, surplus_idle: Duration) -> Self {
        Self { dialect, max_open, spare, idle, surplus_idle, state: Mutex::default(), closed: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ConnectionBudgetState> {
        // Nothing panics between two statements that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionBudgetState {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds a connection that is no longer used. Returns whether it is the only idle one.
    pub(super) fn add_idle(&mut self, session: Session, pool: PoolId, role: Role) -> bool {
        let number = self.next_number();
        self.idle.insert(number, IdleConnection { session, pool, since: Instant::now() });
        let members = self.pools.entry(pool).or_default();
        members.writing -= role.count();
        self.surplus.extend(members.idle.last());
        members.idle.push(number);
        self.idle.len() == 1
    }

    pub(super) fn add_waiter(&mut self, request: CheckoutRequest) -> (u64, oneshot::Receiver<Checkout>) {
        let (number, (checkout, receiver)) = (self.next_number(), oneshot::channel());
        self.waiting.insert(number, Waiter { request, checkout });
        (number, receiver)
    }

    /// Serves waiters with what is available. Returns checkouts whose receivers have just gone.
    #[must_use = "to be dropped once the lock is free"]
    pub(super) fn serve(&mut self, connections: &Arc<Connections>, budget: &ConnectionBudget) -> Vec<Checkout> {
        let mut undelivered = Vec::new();
        let mut next = 0;
        while let Some((&number, waiter)) = self.waiting.range(next..).next() {
            if self.idle.is_empty() && self.open >= budget.max_open {
                break;
            }
            next = number + 1;
            if waiter.checkout.is_closed() {
                continue;
            }
            let request = waiter.request.clone();
            if let Some(checkout) = self.try_checkout(connections, budget, &request) {
                let waiter = self.waiting.remove(&number).expect("it was there a line ago");
                undelivered.extend(waiter.checkout.send(checkout).err());
            }
        }
        undelivered
    }

    /// Checks out what is available to a pool now.
    pub(super) fn try_checkout(
        &mut self,
        connections: &Arc<Connections>,
        budget: &ConnectionBudget,
        request: &CheckoutRequest,
    ) -> Option<Checkout> {
        let &CheckoutRequest { pool, max_open, role, .. } = request;
        if let Some(members) = self.pools.get(&pool) {
            let in_use = members.open - members.writing - u32::try_from(members.idle.len()).expect("they are open");
            if role == Role::Any && in_use >= max_open {
                return None;
            }
        }
        let is_full = self.pools.get(&pool).is_some_and(PoolConnections::is_server_full);
        if let Some(number) = self.find_idle(request) {
            let may_open = !is_full && self.open < budget.max_open && self.pools[&pool].open < max_open;
            if !(may_open && self.deserves_another(number, request)) {
                return Some(Checkout::Idle(self.use_idle(connections, number, role)));
            }
        } else if is_full {
            return None;
        }
        let permit = |state: &mut Self| {
            state.count_open(pool, role);
            connections.metrics.open(budget.dialect.name(), 1);
            ConnectionPermit::open(connections, pool, role)
        };
        if self.open < budget.max_open {
            return Some(Checkout::Open(permit(self)));
        }
        let (&longest, _) = self.idle.first_key_value()?;
        let wait = !self.has_spare(budget);
        let retiring = self.replace(connections, longest).expect("it is the first");
        Some(Checkout::Replace { retiring, permit: permit(self), wait })
    }

    /// Takes an idle connection of a pool, for a caller that may use one more.
    pub(super) fn take_idle_of(
        &mut self,
        connections: &Arc<Connections>,
        request: &CheckoutRequest,
    ) -> Option<IdleCheckout> {
        let number = self.find_idle(request)?;
        Some(self.use_idle(connections, number, request.role))
    }

    /// The idle connection that serves a request best: the most recently used one. Of those that tenants share, it is
    /// one that has served the tenant's schema, or else the one that has served the fewest.
    pub(super) fn find_idle(&self, request: &CheckoutRequest) -> Option<u64> {
        let idle = self.pools.get(&request.pool)?.idle.iter().rev();
        let mut usable = idle.filter(|number| request.role == Role::Any || !self.session(**number).is_immutable());
        let number = match &request.schema {
            None => usable.next(),
            Some(schema) => usable.min_by_key(|number| {
                let served = self.session(**number).schemas_served();
                if served.contains(schema) { 0 } else { 1 + served.len() }
            }),
        };
        number.copied()
    }

    /// Whether a request that an idle connection could serve should have a new one.
    fn deserves_another(&self, number: u64, request: &CheckoutRequest) -> bool {
        let served = self.session(number).schemas_served();
        request.schema.as_ref().is_some_and(|schema| served.len() >= SCHEMAS_EACH && !served.contains(schema))
    }

    fn session(&self, number: u64) -> &Session {
        &self.idle[&number].session
    }

    fn use_idle(&mut self, connections: &Arc<Connections>, number: u64, role: Role) -> IdleCheckout {
        let IdleConnection { session, pool, since } = self.take_idle(number).expect("it was found");
        connections.metrics.idle(session.dialect().name(), -1);
        self.pools.get_mut(&pool).expect("a pool with a connection is known").writing += role.count();
        IdleCheckout::new(session, ConnectionPermit::open(connections, pool, role), since.elapsed())
    }

    /// Removes an idle connection, which is to be closed. It gives its place away unless too many are closing already.
    pub(super) fn retire(
        &mut self,
        connections: &Arc<Connections>,
        budget: &ConnectionBudget,
        number: u64,
    ) -> Option<Retiring> {
        if self.has_spare(budget) {
            return self.replace(connections, number);
        }
        let IdleConnection { session, pool, .. } = self.take_idle(number)?;
        connections.metrics.idle(session.dialect().name(), -1);
        Some(Retiring { session, permit: ConnectionPermit::open(connections, pool, Role::Any) })
    }

    /// Whether one more connection may be closing while all places are taken.
    pub(super) fn has_spare(&self, budget: &ConnectionBudget) -> bool {
        self.closing < budget.spare
    }

    /// Removes an idle connection, which is to be closed, and takes its place.
    fn replace(&mut self, connections: &Arc<Connections>, number: u64) -> Option<Retiring> {
        let IdleConnection { session, pool, .. } = self.take_idle(number)?;
        let name = session.dialect().name();
        connections.metrics.idle(name, -1);
        connections.metrics.open(name, -1);
        connections.metrics.closing(name, 1);
        self.open -= 1;
        self.closing += 1;
        let members = self.pools.get_mut(&pool).expect("a pool with a connection is known");
        members.open -= 1;
        members.closing += 1;
        Some(Retiring { session, permit: ConnectionPermit::closing(connections, pool) })
    }

    /// The idle connections of a pool.
    pub(super) fn idle_of(&self, pool: PoolId) -> Vec<u64> {
        self.pools.get(&pool).map(|members| members.idle.clone()).unwrap_or_default()
    }

    /// How many connections of a pool are open or being opened.
    pub(super) fn open_of(&self, pool: PoolId) -> u32 {
        self.pools.get(&pool).map_or(0, |members| members.open)
    }

    /// The idle connection that is to be closed next, and when.
    pub(super) fn next_to_close(&self, budget: &ConnectionBudget) -> Option<(u64, Instant)> {
        let until = |number: &u64, idle: Duration| (*number, self.idle[number].since + idle);
        let longest = self.idle.first_key_value().map(|(number, _)| until(number, budget.idle));
        let surplus = self.surplus.first().map(|number| until(number, budget.surplus_idle));
        longest.into_iter().chain(surplus).min_by_key(|(_, until)| *until)
    }

    fn count_open(&mut self, pool: PoolId, role: Role) {
        self.open += 1;
        let members = self.pools.entry(pool).or_default();
        members.open += 1;
        members.writing += role.count();
    }

    /// Counts a connection that was open as closed.
    pub(super) fn count_closed(&mut self, pool: PoolId, role: Role) {
        self.open -= 1;
        self.change_members(pool, |members| {
            members.open -= 1;
            members.writing -= role.count();
        });
    }

    /// Counts a connection that was closing as closed.
    pub(super) fn count_retired(&mut self, pool: PoolId) {
        self.closing -= 1;
        self.change_members(pool, |members| members.closing -= 1);
    }

    fn change_members(&mut self, pool: PoolId, change: impl FnOnce(&mut PoolConnections)) {
        let members = self.pools.get_mut(&pool).expect("a pool with a connection is known");
        change(members);
        if members.open + members.closing == 0 {
            self.pools.remove(&pool);
        }
    }

    /// Removes an idle connection. The caller takes over its place.
    fn take_idle(&mut self, number: u64) -> Option<IdleConnection> {
        let idle = self.idle.remove(&number)?;
        let members = self.pools.get_mut(&idle.pool).expect("a pool with a connection is known");
        members.idle.retain(|other| *other != number);
        self.surplus.remove(&number);
        if let Some(last) = members.idle.last() {
            self.surplus.remove(last);
        }
        Some(idle)
    }
}
