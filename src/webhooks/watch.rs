//! Polls the watched tenants for events to deliver.
//!
//! Watched are the tenants with a subscription, and those with a request that waits for a change of the feed. A hint that its
//! database was written makes a tenant hot: for a while it is polled several times a second, since one write follows another
//! and hints may be late. A poll takes two short statements. Hints may be lost: each watched tenant is also polled every
//! `sweep_seconds`, or sixty times less often if its writes are always detected.
//!
//! The keeper of a tenant polls it, and later its deputy ([`super::watched`]). Another node polls a tenant once if a
//! subscription was changed through it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::DeliveryContext;
use super::hints::{self, Counter};
use super::sender::Sender;
use super::watched::{HOT, MIN_PAUSE};
use crate::background::{Run, Task};
use crate::metrics::PENDING_STATES;
use crate::registry::Duty;
use crate::store::{EventsAhead, StoreError, with_causes};
use crate::tenant::{Directory, Tenant};

/// How often hints are gathered.
///
/// Larger: events are later. Smaller: files and servers are checked more often.
const HINTS: Duration = Duration::from_secs(1);

/// How often hints are gathered while a request waits for a change.
///
/// Larger: its response is later. Smaller: files and servers are checked more often.
const WAITED_FOR: Duration = Duration::from_millis(500);

/// How many tenants are polled concurrently.
///
/// Larger: they use more of the connections that requests need. Smaller: databases that hang delay the others.
const MAX_POLLS: usize = 20;

/// The background task that polls.
#[derive(Debug)]
pub struct Watch {
    context: Arc<DeliveryContext>,
    polls: Arc<Semaphore>,
    hints_at: Instant,
    /// The state by which the tenants were last divided between nodes.
    divided: Option<(u64, Weak<Directory>)>,
    /// Tenants whose subscriptions changed.
    announced: Receiver<Arc<str>>,
}

impl Task for Watch {
    const NAME: &'static str = "webhooks";

    fn interval(&self) -> Duration {
        let now = Instant::now();
        let next = self.context.watched.next_poll().map_or(HINTS, |at| at.saturating_duration_since(now));
        // The end of a poll wakes it.
        let next = if self.polls.available_permits() == 0 { HINTS } else { next };
        next.min(self.hints_at.saturating_duration_since(now)).max(MIN_PAUSE / 5)
    }

    async fn woken(&mut self) {
        tokio::select! {
            () = self.context.watched.changed.notified() => {}
            Some(slug) = self.announced.recv() => self.context.watched.announce(&slug, self.context.duty(&slug)),
            () = self.context.shares_changed() => {}
        }
    }

    async fn run(&mut self) -> Run {
        if self.context.stopping.is_cancelled() {
            return Run::Succeeded;
        }
        self.divide();
        if self.hints_at <= Instant::now() {
            hints::gather(&self.context).await;
            self.context.watched.publish(&self.context.metrics);
            let is_waited_for = hints::wake_readers(&self.context);
            self.hints_at = Instant::now() + if is_waited_for { WAITED_FOR } else { HINTS };
        }
        for slug in self.context.watched.take_due(self.polls.available_permits()) {
            let permit = Arc::clone(&self.polls).try_acquire_owned().expect("only this task acquires them");
            let poll = Poll { context: Arc::clone(&self.context), slug, again_in: None, permit: Some(permit) };
            self.context.running.spawn(poll.run());
        }
        Run::Succeeded
    }
}

impl Watch {
    pub(super) fn new(context: Arc<DeliveryContext>, announced: Receiver<Arc<str>>) -> Self {
        Self { context, polls: Arc::new(Semaphore::new(MAX_POLLS)), hints_at: Instant::now(), divided: None, announced }
    }

    /// Watches the tenants of this node's share that have subscriptions, if the share or the subscriptions may have changed.
    fn divide(&mut self) {
        let context = &self.context;
        let directory = context.directory.load_full();
        let divided = (context.generation(), Arc::downgrade(&directory));
        if self.divided.as_ref().is_some_and(|before| before.0 == divided.0 && before.1.ptr_eq(&divided.1)) {
            return;
        }
        self.divided = Some(divided);
        // Wakes the survey of unknown tenants, and the inspection.
        context.share_changed.notify_one();
        let Some(following) = &context.following else { return };
        // Hints of the database that an account has left say nothing of the one where it is.
        for slug in following.take_moved() {
            context.watched.poll_now(&slug, context.duty(&slug));
            context.noticed_writes.note(&slug);
        }
        for tenant in directory.configs().filter(|tenant| tenant.origin.is_registered()) {
            let is_watched = context.watched.has(&tenant.slug);
            if !is_watched && !following.subscribed().has_subscriptions(tenant) {
                continue;
            }
            let duty = following.keepers().duty(tenant);
            if is_watched || duty != Duty::Nothing {
                context.watched.assign(&tenant.slug, duty);
            }
        }
        context.watched.forget_others(|slug| context.noticed_writes.is_waited_for(slug));
    }
}

/// A poll of a tenant. Also ends if it panics.
struct Poll {
    context: Arc<DeliveryContext>,
    slug: Arc<str>,
    again_in: Option<Duration>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Poll {
    fn drop(&mut self) {
        // Before the end of the poll wakes the task, which needs the permit.
        drop(self.permit.take());
        self.context.watched.polled(&self.slug, self.again_in, self.context.config.sweep);
    }
}

/// A running sender of a subscription. Also ends if it panics.
struct Sending {
    context: Arc<DeliveryContext>,
    slug: Arc<str>,
    id: i64,
}

impl Sending {
    /// `None` if this node is already delivering the subscription.
    fn begin(context: &Arc<DeliveryContext>, slug: &Arc<str>, id: i64) -> Option<Self> {
        let is_new = context.watched.lock().get_mut(slug).is_some_and(|tenant| tenant.sending.insert(id));
        is_new.then(|| Self { context: Arc::clone(context), slug: Arc::clone(slug), id })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(tenant) = self.context.watched.lock().get_mut(&self.slug) {
            tenant.sending.remove(&self.id);
        }
    }
}

impl Poll {
    /// Polls a tenant, and starts senders for the events that are due.
    async fn run(mut self) {
        let (context, slug) = (Arc::clone(&self.context), Arc::clone(&self.slug));
        let tenant = context.directory.load().tenant(&slug).map(Arc::clone);
        let Some(tenant) = tenant.filter(|_| !context.stopping.is_cancelled()) else {
            context.watched.forget(&slug);
            return;
        };
        let is_kept = context.duty(&slug) != Duty::Nothing;
        let is_announced = context.watched.take_announced(&slug);
        self.again_in = Some(context.config.sweep.min(HOT));
        match try_to_poll(&context, &tenant, is_kept || is_announced).await {
            Ok(ahead) if !context.is_watched(&slug, is_kept && ahead.is_subscribed) => {
                context.watched.forget_unsubscribed(&slug);
            }
            Ok(ahead) => {
                if ahead.is_subscribed && is_kept {
                    self.again_in = ahead.again_in;
                } else {
                    // This node has nothing to deliver, however much is written.
                    context.watched.cool(&slug);
                    self.again_in = Some(context.config.sweep);
                }
                let counted_by = tenant.database.counted_by().zip(ahead.on_postgres);
                context.watched.note_pending(&slug, [ahead.oldest_due, ahead.failing_since]);
                let is_complete = ahead.are_writes_counted;
                context.watched.counted(&slug, counted_by.map(|(by, names)| Counter::new(by, names, is_complete)));
            }
            Err(error) => {
                // Its database fails, which has metrics of its own.
                context.watched.note_pending(&slug, [None; PENDING_STATES.len()]);
                let cause = with_causes(&error);
                match error {
                    StoreError::Statement(_) | StoreError::RowLost => {
                        tracing::warn!(tenant = &*slug, cause, "could not read pending events");
                    }
                    _ => tracing::debug!(tenant = &*slug, cause, "could not check a tenant for events"),
                }
            }
        }
    }
}

async fn try_to_poll(
    context: &Arc<DeliveryContext>,
    tenant: &Arc<Tenant>,
    sends: bool,
) -> Result<EventsAhead, StoreError> {
    let store = tenant.database.store().await?;
    let ahead = store.events_ahead().await?;
    for (id, was_abandoned) in ahead.ready.iter().filter(|_| sends) {
        if let Some(sending) = Sending::begin(context, &tenant.slug, *id) {
            context.metrics.takeovers.inc_by(u64::from(*was_abandoned));
            context.running.spawn(send(sending, Arc::clone(tenant)));
        }
    }
    Ok(ahead)
}

async fn send(sending: Sending, tenant: Arc<Tenant>) {
    let (context, slug, id) = (Arc::clone(&sending.context), Arc::clone(&sending.slug), sending.id);
    let outcome = Sender::run(&context, tenant, id).await;
    drop(sending);
    match outcome {
        // Events that were committed since then may be due.
        Ok(_) => context.watched.poll_now(&slug, context.duty(&slug)),
        Err(error) => {
            context.watched.poll_within(&slug, context.config.sweep.min(HOT));
            tracing::warn!(
                tenant = &*slug,
                subscription = id,
                cause = with_causes(&error),
                "could not deliver webhooks because of the database; retrying"
            );
        }
    }
}
