//! Notices that there may be something to deliver for a tenant, and looks.
//!
//! It watches the tenants with a subscription, and those with a request that waits for a change of the feed. A hint that a
//! database was written makes a tenant hot: for a while it is
//! looked at several times a second, since writes follow each other and hints may be late. A look at a tenant costs two
//! short statements. Hints may be lost: each watched tenant is looked at every `sweep_seconds` anyway, or, where each write
//! is sure to give a hint, sixty times less often.
//!
//! Nodes of a registry divide the tenants ([`crate::registry::Keepers`]). A deputy looks later than the keeper, and so finds
//! only what the keeper did not deliver. Another node looks at a tenant once if a subscription was changed through it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Hub;
use super::hints::{self, Counter, Hints};
use super::sender::Sender;
use crate::background::{Run, Task};
use crate::metrics::{PENDING_STATES, WebhookMetrics};
use crate::registry::Duty;
use crate::store::{CommitStamp, EventsAhead, Store, StoreError, with_causes};
use crate::tenant::{Directory, Tenant};

/// How often hints are gathered.
///
/// Larger: events are later. Smaller: files are checked more often, and servers asked.
const HINTS: Duration = Duration::from_secs(1);

/// The same while a request waits for a change.
///
/// Larger: it is answered later. Smaller: files are checked more often, and servers asked.
const WAITED_FOR: Duration = Duration::from_millis(500);

/// How long a tenant stays hot.
///
/// Larger: more looks for nothing. Smaller: a write whose hint comes late is noticed late.
const HOT: Duration = Duration::from_secs(15);

/// How often a hot tenant is looked at.
///
/// Larger: events are later. Smaller: more statements.
const HOT_LOOKS: Duration = Duration::from_millis(500);

/// How many times `sweep_seconds` a tenant is left in peace whose writes are sure to give hints. Opening a database costs
/// milliseconds, so that thousands of idle tenants must not be opened every minute.
///
/// Larger: if a hint is lost nevertheless, an event is late by more. Smaller: more of a node's time goes to idle tenants.
const RELIABLE: u32 = 60;

/// The shortest pause between two looks at a tenant.
///
/// Larger: events are later. Smaller: a look that fails at once is repeated too often.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// How much later than the keeper a deputy looks after a hint. With the time that a lease lasts after a crash, this is how late
/// an event may be.
///
/// Larger: a node that hangs delays its events by more. Smaller: deputies look before the keeper is done.
const DEPUTY_DELAY: Duration = Duration::from_secs(10);

/// The shortest pause between two looks of a deputy, unless there is a hint.
///
/// Larger: it takes over later. Smaller: it looks for what the keeper is about to deliver.
const DEPUTY_LOOKS: Duration = Duration::from_secs(2);

/// How many tenants are looked at concurrently.
///
/// Larger: they take more of the connections that requests need. Smaller: databases that hang hold up the others.
const MAX_LOOKS: usize = 20;

/// The watched tenants.
#[derive(Debug, Default)]
pub(super) struct Watched {
    tenants: Mutex<HashMap<Arc<str>, WatchedTenant>>,
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct WatchedTenant {
    /// What this node had to do for it when that was last decided.
    duty: Duty,
    /// Whether a subscription was changed through this node: the next look sends what is due, whoever is the keeper.
    is_announced: bool,
    look_at: Instant,
    hot_until: Instant,
    pub(super) hints: Hints,
    is_looked_at: bool,
    /// Whether it was to be looked at again while it was.
    again: bool,
    /// Of [`PENDING_STATES`]: since when an event is due that no node sends, and since when a receiver fails.
    pending_since: [Option<Timestamp>; PENDING_STATES.len()],
    /// The subscriptions that this node delivers now.
    sending: HashSet<i64>,
}

impl WatchedTenant {
    fn look_now(&mut self) {
        (self.look_at, self.again) = (Instant::now(), self.is_looked_at);
    }
}

impl Watched {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, WatchedTenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a tenant now, and watches it.
    pub(super) fn look_at(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        Self::entry(&mut tenants, tenant, duty).look_now();
        self.changed.notify_one();
    }

    /// The same since a subscription was changed through this node.
    fn announce(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        let watched = Self::entry(&mut tenants, tenant, duty);
        watched.is_announced = true;
        watched.look_now();
        self.changed.notify_one();
    }

    /// Watches a tenant with nothing to do for its subscriptions since its database had a stamp: a hint has it looked at.
    pub(super) fn rest(&self, tenant: &Arc<str>, duty: Duty, stamp: CommitStamp, sweep: Duration) {
        let mut tenants = self.lock();
        if !tenants.contains_key(tenant) {
            let resting = Self::entry(&mut tenants, tenant, duty);
            (resting.hints, resting.look_at) = (Hints::since(stamp), Instant::now() + sweep * RELIABLE);
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
            look_at: now,
            hot_until: now,
            hints: Hints::default(),
            is_looked_at: false,
            again: false,
            pending_since: [None; PENDING_STATES.len()],
            sending: HashSet::new(),
        })
    }

    /// Notes what this node has to do for a tenant with subscriptions: watches it, or no longer.
    fn assign(&self, tenant: &Arc<str>, duty: Duty) {
        let mut tenants = self.lock();
        let is_new = !tenants.contains_key(tenant);
        let watched = Self::entry(&mut tenants, tenant, duty);
        let before = std::mem::replace(&mut watched.duty, duty);
        match duty {
            // What its keeper before did not deliver is due.
            Duty::Keeper if is_new || before != Duty::Keeper => watched.look_now(),
            Duty::Keeper => {}
            Duty::Deputy if is_new => watched.look_at = Instant::now() + DEPUTY_DELAY,
            Duty::Deputy | Duty::Nothing => watched.pending_since = [None; PENDING_STATES.len()],
        }
        self.changed.notify_one();
    }

    /// Forgets tenants that others look after, unless a look at them is due or a request waits for a change of them.
    fn forget_others(&self, is_waited_for: impl Fn(&str) -> bool) {
        self.lock().retain(|slug, tenant| {
            let is_busy = tenant.is_announced || tenant.is_looked_at || !tenant.sending.is_empty();
            tenant.duty != Duty::Nothing || is_busy || is_waited_for(slug)
        });
    }

    pub(super) fn has(&self, tenant: &str) -> bool {
        self.lock().contains_key(tenant)
    }

    /// Takes tenants that are due to be looked at, those first of which a hint says that they were written.
    fn take_due(&self, limit: usize) -> Vec<Arc<str>> {
        let now = Instant::now();
        let mut tenants = self.lock();
        let due = tenants.iter().filter(|(_, tenant)| tenant.look_at <= now && !tenant.is_looked_at);
        let mut due: Vec<_> =
            due.map(|(slug, tenant)| (tenant.hot_until <= now, tenant.look_at, Arc::clone(slug))).collect();
        if due.len() > limit && limit > 0 {
            due.select_nth_unstable(limit - 1);
        }
        due.truncate(limit);
        for (_, _, slug) in &due {
            tenants.get_mut(slug).expect("it is locked").is_looked_at = true;
        }
        due.into_iter().map(|(_, _, slug)| slug).collect()
    }

    /// Whether the look that begins sends what is due because a subscription was changed through this node.
    fn take_announced(&self, slug: &str) -> bool {
        self.lock().get_mut(slug).is_some_and(|tenant| std::mem::take(&mut tenant.is_announced))
    }

    fn next_look(&self) -> Option<Instant> {
        self.lock().values().filter(|tenant| !tenant.is_looked_at).map(|tenant| tenant.look_at).min()
    }

    /// Notes what counts the writes of a tenant.
    fn counted(&self, slug: &str, counter: Option<Counter>) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            tenant.hints.counted(counter);
        }
    }

    fn note_pending(&self, slug: &str, since: [Option<Timestamp>; PENDING_STATES.len()]) {
        if let Some(tenant) = self.lock().get_mut(slug).filter(|tenant| tenant.duty == Duty::Keeper) {
            tenant.pending_since = since;
        }
    }

    /// Publishes how many tenants are watched, and how old their oldest pending events are.
    fn publish(&self, metrics: &WebhookMetrics) {
        let now = Timestamp::now();
        let tenants = self.lock();
        metrics.watched.set(i64::try_from(tenants.len()).unwrap_or(i64::MAX));
        for (at, state) in PENDING_STATES.iter().enumerate() {
            let oldest = tenants.values().filter_map(|tenant| tenant.pending_since[at]).min();
            let age = oldest.map_or(0, |oldest| now.duration_since(oldest).as_secs().max(0));
            metrics.oldest_pending.with_label_values(&[*state]).set(age);
        }
    }

    /// Ends a look. `again_in` is when there may be more to do, if that is known.
    fn looked_at(&self, slug: &str, again_in: Option<Duration>, sweep: Duration) {
        let now = Instant::now();
        if let Some(tenant) = self.lock().get_mut(slug) {
            let sweep = if tenant.hints.are_reliable() { sweep * RELIABLE } else { sweep };
            let pause = again_in.map_or(sweep, |pause| pause.min(sweep));
            let pause = if tenant.duty == Duty::Deputy { pause.max(DEPUTY_LOOKS) } else { pause };
            let pause = if tenant.hot_until > now { pause.min(HOT_LOOKS) } else { pause };
            let again = std::mem::take(&mut tenant.again);
            tenant.look_at = now + if again { MIN_PAUSE } else { pause.max(MIN_PAUSE) };
            tenant.is_looked_at = false;
        }
        self.changed.notify_one();
    }

    /// Has a tenant looked at within a time.
    pub(super) fn look_within(&self, slug: &str, limit: Duration) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            let limit = if tenant.duty == Duty::Deputy { limit.max(DEPUTY_DELAY) } else { limit };
            tenant.look_at = tenant.look_at.min(Instant::now() + limit);
            tenant.again |= tenant.is_looked_at && limit.is_zero();
        }
    }

    pub(super) fn note_written(&self, slug: &str) {
        let now = Instant::now();
        match self.lock().get_mut(slug) {
            Some(tenant) if tenant.duty == Duty::Keeper => {
                tenant.hot_until = now + HOT;
                tenant.look_at = tenant.look_at.min(now);
            }
            Some(tenant) if tenant.duty == Duty::Deputy => tenant.look_at = tenant.look_at.min(now + DEPUTY_DELAY),
            _ => {}
        }
    }

    /// Ends the time in which a tenant is looked at often.
    fn cool(&self, slug: &str) {
        if let Some(tenant) = self.lock().get_mut(slug) {
            tenant.hot_until = Instant::now();
        }
    }

    /// Forgets a tenant without subscriptions, unless one was announced during the look that found none.
    fn forget_unsubscribed(&self, slug: &str) {
        let mut tenants = self.lock();
        if tenants.get(slug).is_some_and(|tenant| !tenant.again) {
            tenants.remove(slug);
        }
    }

    pub(super) fn forget(&self, slug: &str) {
        self.lock().remove(slug);
    }
}

/// The background task that looks.
#[derive(Debug)]
pub struct Watch {
    hub: Arc<Hub>,
    looks: Arc<Semaphore>,
    hints_at: Instant,
    /// By what the work was last divided.
    divided: Option<(u64, Weak<Directory>)>,
    /// Tenants whose subscriptions changed.
    announced: Receiver<Arc<str>>,
}

impl Task for Watch {
    const NAME: &'static str = "webhooks";

    fn interval(&self) -> Duration {
        let now = Instant::now();
        let next = self.hub.watched.next_look().map_or(HINTS, |at| at.saturating_duration_since(now));
        // The end of a look wakes it.
        let next = if self.looks.available_permits() == 0 { HINTS } else { next };
        next.min(self.hints_at.saturating_duration_since(now)).max(MIN_PAUSE / 5)
    }

    async fn woken(&mut self) {
        tokio::select! {
            () = self.hub.watched.changed.notified() => {}
            Some(slug) = self.announced.recv() => self.hub.watched.announce(&slug, self.hub.duty(&slug)),
            () = self.hub.shares_changed() => {}
        }
    }

    async fn run(&mut self) -> Run {
        if self.hub.stopping.is_cancelled() {
            return Run::Succeeded;
        }
        self.divide();
        if self.hints_at <= Instant::now() {
            hints::gather(&self.hub).await;
            self.hub.watched.publish(&self.hub.metrics);
            let is_waited_for = hints::wake_readers(&self.hub);
            self.hints_at = Instant::now() + if is_waited_for { WAITED_FOR } else { HINTS };
        }
        for slug in self.hub.watched.take_due(self.looks.available_permits()) {
            let permit = Arc::clone(&self.looks).try_acquire_owned().expect("only this task acquires them");
            let look = Look { hub: Arc::clone(&self.hub), slug, again_in: None, permit: Some(permit) };
            self.hub.running.spawn(look.run());
        }
        Run::Succeeded
    }
}

impl Watch {
    pub(super) fn new(hub: Arc<Hub>, announced: Receiver<Arc<str>>) -> Self {
        Self { hub, looks: Arc::new(Semaphore::new(MAX_LOOKS)), hints_at: Instant::now(), divided: None, announced }
    }

    /// Watches the tenants of this node's share that have subscriptions, if the share or the subscriptions may have changed.
    fn divide(&mut self) {
        let hub = &self.hub;
        let directory = hub.directory.load_full();
        let divided = (hub.generation(), Arc::downgrade(&directory));
        if self.divided.as_ref().is_some_and(|before| before.0 == divided.0 && before.1.ptr_eq(&divided.1)) {
            return;
        }
        self.divided = Some(divided);
        // Tenants of which nothing is known, and those that this node is to inspect.
        hub.share_changed.notify_one();
        let Some(following) = &hub.following else { return };
        for tenant in directory.configs().filter(|tenant| tenant.origin.is_registered()) {
            let is_watched = hub.watched.has(&tenant.slug);
            if !is_watched && !following.subscribed().has_subscriptions(tenant) {
                continue;
            }
            let duty = following.keepers().duty(tenant);
            if is_watched || duty != Duty::Nothing {
                hub.watched.assign(&tenant.slug, duty);
            }
        }
        hub.watched.forget_others(|slug| hub.noticed_writes.is_waited_for(slug));
    }
}

/// A look at a tenant. Ends also if the look panics.
struct Look {
    hub: Arc<Hub>,
    slug: Arc<str>,
    again_in: Option<Duration>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Look {
    fn drop(&mut self) {
        // Before the end of the look wakes the task that needs it.
        drop(self.permit.take());
        self.hub.watched.looked_at(&self.slug, self.again_in, self.hub.config.sweep);
    }
}

/// A sender of a subscription. Ends also if it panics.
struct Sending {
    hub: Arc<Hub>,
    slug: Arc<str>,
    id: i64,
}

impl Sending {
    /// None if this node delivers the subscription already.
    fn begin(hub: &Arc<Hub>, slug: &Arc<str>, id: i64) -> Option<Self> {
        let is_new = hub.watched.lock().get_mut(slug).is_some_and(|tenant| tenant.sending.insert(id));
        is_new.then(|| Self { hub: Arc::clone(hub), slug: Arc::clone(slug), id })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(tenant) = self.hub.watched.lock().get_mut(&self.slug) {
            tenant.sending.remove(&self.id);
        }
    }
}

impl Look {
    /// Looks at a tenant, and starts senders for what is due.
    async fn run(mut self) {
        let (hub, slug) = (Arc::clone(&self.hub), Arc::clone(&self.slug));
        let tenant = hub.directory.load().tenant(&slug).map(Arc::clone);
        let Some(tenant) = tenant.filter(|_| !hub.stopping.is_cancelled()) else {
            hub.watched.forget(&slug);
            return;
        };
        let is_kept = hub.duty(&slug) != Duty::Nothing;
        let is_announced = hub.watched.take_announced(&slug);
        self.again_in = Some(hub.config.sweep.min(HOT));
        match try_to_look(&hub, &tenant, is_kept || is_announced).await {
            Ok(ahead) if !hub.is_watched(&slug, is_kept && ahead.is_subscribed) => {
                hub.watched.forget_unsubscribed(&slug);
            }
            Ok(ahead) => {
                if ahead.is_subscribed && is_kept {
                    self.again_in = ahead.again_in;
                } else {
                    // There is nothing to deliver here, however much is written.
                    hub.watched.cool(&slug);
                    self.again_in = Some(hub.config.sweep);
                }
                let counted_by = tenant.database.counted_by().zip(ahead.on_postgres);
                hub.watched.note_pending(&slug, [ahead.oldest_due, ahead.failing_since]);
                let is_complete = ahead.are_writes_counted;
                hub.watched.counted(&slug, counted_by.map(|(by, names)| Counter::new(by, names, is_complete)));
            }
            Err(error) => {
                // Its database does not work, which has metrics of its own.
                hub.watched.note_pending(&slug, [None; PENDING_STATES.len()]);
                let cause = with_causes(&error);
                match error {
                    StoreError::Statement(_) | StoreError::RowLost => {
                        tracing::warn!(tenant = &*slug, cause, "a database can't be asked for events that are due");
                    }
                    _ => tracing::debug!(tenant = &*slug, cause, "a tenant could not be looked at"),
                }
            }
        }
    }
}

async fn try_to_look(hub: &Arc<Hub>, tenant: &Arc<Tenant>, sends: bool) -> Result<EventsAhead, StoreError> {
    let store = tenant.database.store().await?;
    let ahead = store.events_ahead().await?;
    for (id, was_abandoned) in ahead.ready.iter().filter(|_| sends) {
        if let Some(sending) = Sending::begin(hub, &tenant.slug, *id) {
            hub.metrics.takeovers.inc_by(u64::from(*was_abandoned));
            hub.running.spawn(send(sending, Arc::clone(tenant), Arc::clone(&store)));
        }
    }
    Ok(ahead)
}

async fn send(sending: Sending, tenant: Arc<Tenant>, store: Arc<Store>) {
    let (hub, slug, id) = (Arc::clone(&sending.hub), Arc::clone(&sending.slug), sending.id);
    let outcome = Sender::run(&hub, tenant, store, id).await;
    drop(sending);
    match outcome {
        // What was committed meanwhile may be due.
        Ok(_) => hub.watched.look_at(&slug, hub.duty(&slug)),
        Err(error) => {
            hub.watched.look_within(&slug, hub.config.sweep.min(HOT));
            tracing::warn!(
                tenant = &*slug,
                subscription = id,
                cause = with_causes(&error),
                "webhooks could not be delivered because of the database; they are tried again"
            );
        }
    }
}
