//! The watched tenants: for each what this node has to do, when it is polled next, and what is pending.
//!
//! A node of a registry is the keeper of a tenant, its deputy, or neither ([`crate::registry::Keepers`]). A deputy polls
//! later than the keeper, and so finds only what the keeper did not deliver.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;

use super::hints::{Counter, Hints};
use crate::metrics::{PENDING_STATES, WebhookMetrics};
use crate::registry::Duty;
use crate::store::CommitStamp;

/// How long a tenant stays hot.
///
/// Larger: more polls that find nothing. Smaller: a write with a late hint is noticed late.
pub(super) const HOT: Duration = Duration::from_secs(15);

/// How often a hot tenant is polled.
///
/// Larger: events are later. Smaller: more statements.
const HOT_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Multiplier on `sweep_seconds` for tenants whose writes are always detected. Opening a database takes milliseconds, so
/// thousands of idle tenants must not be opened every minute.
///
/// Larger: if a hint is still lost, its event is later. Smaller: idle tenants take more of a node's time.
const RELIABLE: u32 = 60;

/// The shortest pause between two polls of a tenant.
///
/// Larger: events are later. Smaller: a poll that fails at once is repeated too often.
pub(super) const MIN_PAUSE: Duration = Duration::from_millis(50);

/// How much later than the keeper a deputy polls after a hint. Together with the rest of a lease after a crash, this limits how
/// late an event may be.
///
/// Larger: a node that hangs delays its events by more. Smaller: deputies poll before the keeper is done.
const DEPUTY_DELAY: Duration = Duration::from_secs(10);

/// The shortest pause between two polls of a deputy, unless there is a hint.
///
/// Larger: it takes over later. Smaller: it finds events that the keeper is about to deliver.
const DEPUTY_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The watched tenants.
#[derive(Debug, Default)]
pub(super) struct Watched {
    tenants: Mutex<HashMap<Arc<str>, WatchedTenant>>,
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct WatchedTenant {
    /// The duty of this node, as last assigned.
    duty: Duty,
    /// Whether a subscription was changed through this node: the next poll sends what is due, whichever node is the keeper.
    is_announced: bool,
    poll_at: Instant,
    hot_until: Instant,
    pub(super) hints: Hints,
    is_polling: bool,
    /// Whether to poll again when the current poll ends.
    is_due_again: bool,
    /// For each of [`PENDING_STATES`]: since when an event is due that no node sends, and since when a receiver fails.
    pending_since: [Option<Timestamp>; PENDING_STATES.len()],
    /// The subscriptions that this node delivers now.
    pub(super) sending: HashSet<i64>,
}

impl WatchedTenant {
    fn mark_due(&mut self) {
        (self.poll_at, self.is_due_again) = (Instant::now(), self.is_polling);
    }
}

impl Watched {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, WatchedTenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a tenant, and has it polled now.
    pub(super) fn poll_now(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        Self::entry(&mut tenants, tenant, duty).mark_due();
        self.changed.notify_one();
    }

    /// Watches a tenant and has it polled now, because a subscription was changed through this node.
    pub(super) fn announce(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        let watched = Self::entry(&mut tenants, tenant, duty);
        watched.is_announced = true;
        watched.mark_due();
        self.changed.notify_one();
    }

    /// Watches a tenant that had nothing due when its database had a stamp: it is polled after a hint.
    pub(super) fn rest(&self, tenant: &Arc<str>, duty: Duty, stamp: CommitStamp, sweep: Duration) {
        let mut tenants = self.lock();
        if !tenants.contains_key(tenant) {
            let resting = Self::entry(&mut tenants, tenant, duty);
            (resting.hints, resting.poll_at) = (Hints::since(stamp), Instant::now() + sweep * RELIABLE);
        }
    }

    fn entry<'t>(
        tenants: &'t mut HashMap<Arc<str>, WatchedTenant>,
        tenant: &Arc<str>,
        duty: Duty,
    ) -> &'t mut WatchedTenant {
        let now = Instant::now();
        tenants.entry(Arc::clone(tenant)).or_insert_with(|| WatchedTenant {
            duty,
            is_announced: false,
            poll_at: now,
            hot_until: now,
            hints: Hints::default(),
            is_polling: false,
            is_due_again: false,
            pending_since: [None; PENDING_STATES.len()],
            sending: HashSet::new(),
        })
    }

    /// Assigns the duty of this node for a tenant with subscriptions.
    pub(super) fn assign(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        let is_new = !tenants.contains_key(tenant);
        let watched = Self::entry(&mut tenants, tenant, duty);
        let before = std::mem::replace(&mut watched.duty, duty);
        match duty {
            // Events that the previous keeper did not deliver are due.
            Duty::Keeper if is_new || before != Duty::Keeper => watched.mark_due(),
            Duty::Keeper => {}
            Duty::Deputy if is_new => watched.poll_at = Instant::now() + DEPUTY_DELAY,
            Duty::Deputy | Duty::Nothing => watched.pending_since = [None; PENDING_STATES.len()],
        }
        self.changed.notify_one();
    }

    /// Forgets tenants of other nodes, unless a poll of them is due or a request waits for a change of them.
    pub(super) fn forget_others(&self, is_waited_for: impl Fn(&str) -> bool) {
        self.lock().retain(|slug, tenant| {
            let is_busy = tenant.is_announced || tenant.is_polling || !tenant.sending.is_empty();
            tenant.duty != Duty::Nothing || is_busy || is_waited_for(slug)
        });
    }

    pub(super) fn has(&self, tenant: &str) -> bool {
        self.lock().contains_key(tenant)
    }

    /// Begins polls of tenants that are due, hot ones first.
    pub(super) fn take_due(&self, limit: usize) -> Vec<Arc<str>> {
        let now = Instant::now();
        let mut tenants = self.lock();
        let due = tenants.iter().filter(|(_, tenant)| tenant.poll_at <= now && !tenant.is_polling);
        let mut due: Vec<_> =
            due.map(|(slug, tenant)| (tenant.hot_until <= now, tenant.poll_at, Arc::clone(slug))).collect();
        if due.len() > limit && limit > 0 {
            due.select_nth_unstable(limit - 1);
        }
        due.truncate(limit);
        for (_, _, slug) in &due {
            tenants.get_mut(slug).expect("it is locked").is_polling = true;
        }
        due.into_iter().map(|(_, _, slug)| slug).collect()
    }

    /// Whether the poll that begins sends what is due because a subscription was changed through this node.
    pub(super) fn take_announced(&self, slug: &str) -> bool {
        self.lock().get_mut(slug).is_some_and(|tenant| std::mem::take(&mut tenant.is_announced))
    }

    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.lock().values().filter(|tenant| !tenant.is_polling).map(|tenant| tenant.poll_at).min()
    }

    /// Notes the counter of a tenant's writes.
    pub(super) fn counted(&self, slug: &str, counter: Option<Counter>) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            tenant.hints.counted(counter);
        }
    }

    pub(super) fn note_pending(&self, slug: &str, since: [Option<Timestamp>; PENDING_STATES.len()]) {
        if let Some(tenant) = self.lock().get_mut(slug).filter(|tenant| tenant.duty == Duty::Keeper) {
            tenant.pending_since = since;
        }
    }

    /// Publishes how many tenants are watched, and how old their oldest pending events are.
    pub(super) fn publish(&self, metrics: &WebhookMetrics) {
        let now = Timestamp::now();
        let tenants = self.lock();
        metrics.watched.set(i64::try_from(tenants.len()).unwrap_or(i64::MAX));
        for (at, state) in PENDING_STATES.iter().enumerate() {
            let oldest = tenants.values().filter_map(|tenant| tenant.pending_since[at]).min();
            let age = oldest.map_or(0, |oldest| now.duration_since(oldest).as_secs().max(0));
            metrics.oldest_pending.with_label_values(&[*state]).set(age);
        }
    }

    /// Ends a poll. `again_in` is when there may be more to do, if that is known.
    pub(super) fn polled(&self, slug: &str, again_in: Option<Duration>, sweep: Duration) {
        let now = Instant::now();
        if let Some(tenant) = self.lock().get_mut(slug) {
            let sweep = if tenant.hints.are_reliable() { sweep * RELIABLE } else { sweep };
            let pause = again_in.map_or(sweep, |pause| pause.min(sweep));
            let pause = if tenant.duty == Duty::Deputy { pause.max(DEPUTY_POLL_INTERVAL) } else { pause };
            let pause = if tenant.hot_until > now { pause.min(HOT_POLL_INTERVAL) } else { pause };
            let again = std::mem::take(&mut tenant.is_due_again);
            tenant.poll_at = now + if again { MIN_PAUSE } else { pause.max(MIN_PAUSE) };
            tenant.is_polling = false;
        }
        self.changed.notify_one();
    }

    /// Has a tenant polled within a time.
    pub(super) fn poll_within(&self, slug: &str, limit: Duration) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            let limit = if tenant.duty == Duty::Deputy { limit.max(DEPUTY_DELAY) } else { limit };
            tenant.poll_at = tenant.poll_at.min(Instant::now() + limit);
            tenant.is_due_again |= tenant.is_polling && limit.is_zero();
        }
    }

    pub(super) fn note_written(&self, slug: &str) {
        let now = Instant::now();
        match self.lock().get_mut(slug) {
            Some(tenant) if tenant.duty == Duty::Keeper => {
                tenant.hot_until = now + HOT;
                tenant.poll_at = tenant.poll_at.min(now);
            }
            Some(tenant) if tenant.duty == Duty::Deputy => tenant.poll_at = tenant.poll_at.min(now + DEPUTY_DELAY),
            _ => {}
        }
    }

    /// Ends the time in which a tenant is hot.
    pub(super) fn cool(&self, slug: &str) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            tenant.hot_until = Instant::now();
        }
    }

    /// Forgets a tenant without subscriptions, unless one was announced during the poll that found none.
    pub(super) fn forget_unsubscribed(&self, slug: &str) {
        let mut tenants = self.lock();
        if tenants.get(slug).is_some_and(|tenant| !tenant.is_due_again) {
            tenants.remove(slug);
        }
    }

    pub(super) fn forget(&self, slug: &str) {
        self.lock().remove(slug);
    }
}
