//! Notices that there may be something to deliver for a tenant, and looks.
//!
//! It watches the tenants with a subscription, and those with a request that waits for a change of the feed. A hint that a
//! database was written makes a tenant hot: for a while it is
//! looked at several times a second, since writes follow each other and hints may be late. A look at a tenant costs two
//! short statements. Hints may be lost: each watched tenant is looked at every `sweep_seconds` anyway, or, where each write
//! is sure to give a hint, sixty times less often.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Notify, Semaphore};

use super::Hub;
use super::hints::{self, Counter, Hints};
use super::sender::Sender;
use crate::background::{Run, Task};
use crate::metrics::{PENDING_STATES, WebhookMetrics};
use crate::store::{EventsAhead, Store, StoreError, with_causes};
use crate::tenant::Tenant;

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

impl Watched {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, WatchedTenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn look_at(&self, tenant: &Arc<str>) {
        let now = Instant::now();
        let mut tenants = self.lock();
        let watched = tenants.entry(Arc::clone(tenant)).or_insert_with(|| WatchedTenant {
            look_at: now,
            hot_until: now,
            hints: Hints::default(),
            is_looked_at: false,
            again: false,
            pending_since: [None; PENDING_STATES.len()],
            sending: HashSet::new(),
        });
        (watched.look_at, watched.again) = (now, watched.is_looked_at);
        self.changed.notify_one();
    }

    pub(super) fn has(&self, tenant: &str) -> bool {
        self.lock().contains_key(tenant)
    }

    /// Takes the tenants that are due to be looked at.
    fn take_due(&self) -> Vec<Arc<str>> {
        let now = Instant::now();
        let mut tenants = self.lock();
        let due = tenants.iter_mut().filter(|(_, tenant)| tenant.look_at <= now && !tenant.is_looked_at);
        due.map(|(slug, tenant)| {
            tenant.is_looked_at = true;
            Arc::clone(slug)
        })
        .collect()
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
        if let Some(tenant) = self.lock().get_mut(slug) {
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
            tenant.look_at = tenant.look_at.min(Instant::now() + limit);
            tenant.again |= tenant.is_looked_at && limit.is_zero();
        }
    }

    pub(super) fn note_written(&self, slug: &str) {
        let now = Instant::now();
        if let Some(tenant) = self.lock().get_mut(slug) {
            tenant.hot_until = now + HOT;
            tenant.look_at = tenant.look_at.min(now);
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
    /// Tenants whose subscriptions changed.
    announced: Receiver<Arc<str>>,
}

impl Task for Watch {
    const NAME: &'static str = "webhooks";

    fn interval(&self) -> Duration {
        let now = Instant::now();
        let next = self.hub.watched.next_look().map_or(HINTS, |at| at.saturating_duration_since(now));
        next.min(self.hints_at.saturating_duration_since(now)).max(MIN_PAUSE / 5)
    }

    async fn woken(&mut self) {
        tokio::select! {
            () = self.hub.watched.changed.notified() => {}
            Some(slug) = self.announced.recv() => self.hub.watched.look_at(&slug),
        }
    }

    async fn run(&mut self) -> Run {
        if self.hub.stopping.is_cancelled() {
            return Run::Succeeded;
        }
        if self.hints_at <= Instant::now() {
            hints::gather(&self.hub).await;
            self.hub.watched.publish(&self.hub.metrics);
            let is_waited_for = hints::wake_readers(&self.hub);
            self.hints_at = Instant::now() + if is_waited_for { WAITED_FOR } else { HINTS };
        }
        for slug in self.hub.watched.take_due() {
            let (hub, looks) = (Arc::clone(&self.hub), Arc::clone(&self.looks));
            self.hub.running.spawn(async move {
                let _permit = looks.acquire().await;
                look(&hub, &slug).await;
            });
        }
        Run::Succeeded
    }
}

impl Watch {
    pub(super) fn new(hub: Arc<Hub>, announced: Receiver<Arc<str>>) -> Self {
        Self { hub, looks: Arc::new(Semaphore::new(MAX_LOOKS)), hints_at: Instant::now(), announced }
    }
}

/// A look at a tenant. Ends also if the look panics.
struct Look {
    hub: Arc<Hub>,
    slug: Arc<str>,
    again_in: Option<Duration>,
}

impl Drop for Look {
    fn drop(&mut self) {
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

/// Looks at a tenant, and starts senders for what is due.
async fn look(hub: &Arc<Hub>, slug: &Arc<str>) {
    let tenant = hub.directory.load().tenant(slug).map(Arc::clone);
    let Some(tenant) = tenant.filter(|_| !hub.stopping.is_cancelled()) else {
        hub.watched.forget(slug);
        return;
    };
    let mut look = Look { hub: Arc::clone(hub), slug: Arc::clone(slug), again_in: Some(hub.config.sweep.min(HOT)) };
    match try_to_look(hub, &tenant).await {
        Ok(ahead) if !ahead.is_subscribed && !hub.noticed_writes.is_waited_for(slug) => {
            hub.watched.forget_unsubscribed(slug);
        }
        Ok(ahead) => {
            if !ahead.is_subscribed {
                // There is nothing to deliver, however much is written.
                hub.watched.cool(slug);
                look.again_in = Some(hub.config.sweep);
            } else {
                look.again_in = ahead.again_in;
            }
            let counted_by = tenant.database.counted_by().zip(ahead.on_postgres);
            hub.watched.note_pending(slug, [ahead.oldest_due, ahead.failing_since]);
            let is_complete = ahead.are_writes_counted;
            hub.watched.counted(slug, counted_by.map(|(by, names)| Counter::new(by, names, is_complete)));
        }
        Err(error) => {
            // Its database does not work, which has metrics of its own.
            hub.watched.note_pending(slug, [None; PENDING_STATES.len()]);
            let cause = with_causes(&error);
            match error {
                StoreError::Statement(_) => {
                    tracing::warn!(tenant = &**slug, cause, "a database can't be asked for events that are due");
                }
                _ => tracing::debug!(tenant = &**slug, cause, "a tenant could not be looked at"),
            }
        }
    }
}

async fn try_to_look(hub: &Arc<Hub>, tenant: &Arc<Tenant>) -> Result<EventsAhead, StoreError> {
    let store = tenant.database.store().await?;
    let ahead = store.events_ahead().await?;
    for (id, was_abandoned) in &ahead.ready {
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
        Ok(_) => hub.watched.look_at(&slug),
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
