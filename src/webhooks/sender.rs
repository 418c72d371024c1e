//! Delivers the events of one subscription, from leasing it until nothing is due.
//!
//! Up to `per_subscription` requests run at once, each of another submission, so events of a submission arrive in their
//! order. An outcome is written before the next request starts: if this node dies, at most `per_subscription` events are sent
//! twice.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::DeliveryContext;
use super::outcome::{Outcome, pause};
use super::permits::Limits;
use super::request::{Ready, Recipient, Sent, send};
use super::signing::end_unusable;
use crate::api::{Envelope, EnvelopeBody, ShownSubmissions, attempt_record};
use crate::outbound::{DeliveryReason, SigningSecret, Target, signing_secrets};
use crate::store::{
    DueEvent, DueEvents, Event, FailedEvent, LeasedSubscription, Progress, SentBody, Standing, Store, StoreError,
    Written,
};
use crate::tenant::Tenant;

/// How many events are read at once at first.
///
/// Larger: more bodies wait for a slow receiver, and get old. Smaller: more statements for a backlog.
const READ_AT_ONCE: u32 = 16;

/// How many are read at once from a receiver that accepts all within [`READ_AGAIN`].
///
/// Larger and smaller: as for [`READ_AT_ONCE`].
const MAX_READ_AT_ONCE: u32 = 64;

/// How many events may be done after one that is not: their numbers are written with each outcome.
///
/// Larger: while one request is slow, each write is longer. Smaller: one slow request delays the others.
const MAX_AHEAD: usize = 256;

/// After how many attempts the delivery log is pruned.
///
/// Larger: it exceeds its limits for longer. Smaller: each delivery takes longer.
const PRUNED_EVERY: usize = 100;

/// How soon due events are read again while requests are running, after none were due.
///
/// Larger: events wait while a slow request runs. Smaller: more statements that find nothing.
const READ_AGAIN: Duration = Duration::from_millis(500);

/// How long an outcome waits for those of other requests, to be written together.
///
/// Larger: a receiver gets fewer events a second. Smaller: more writes, which take longer than requests.
const GATHER: Duration = Duration::from_millis(2);

/// One lease of a subscription.
pub(super) struct Sender {
    context: Arc<DeliveryContext>,
    tenant: Arc<Tenant>,
    leased: LeasedSubscription,
    target: Arc<Target>,
    secrets: Arc<[SigningSecret]>,
    limits: Limits,
    queue: VecDeque<Ready>,
    /// How many events are read at once now, and when they were last read.
    read_at_once: u32,
    read_at: Option<Instant>,
    flight: JoinSet<Sent>,
    /// The submissions with a running request.
    busy: HashSet<i64>,
    /// How many requests may run at once now.
    at_once: usize,
    /// Events up to here were read.
    taken: i64,
    /// The read events that are in turn and not done.
    open: BTreeSet<i64>,
    /// Events beyond the position that are done.
    done: BTreeSet<i64>,
    /// Events that can't be sent again: their submissions were deleted.
    dropped: Vec<(i64, i64)>,
    /// How many attempts were added to the delivery log since it was pruned.
    attempts: usize,
    /// Since when nothing is known to be due.
    is_exhausted_since: Option<Instant>,
    /// What ends the lease, once nothing is in flight.
    ending: Option<Standing>,
    /// How the receiver last failed, as a metric's label.
    fault: &'static str,
    /// When another event will be due.
    again_in: Option<Duration>,
}

impl Sender {
    /// Leases a subscription and delivers what is due. Returns when to poll again, if that is known.
    pub(super) async fn run(
        context: &Arc<DeliveryContext>,
        tenant: Arc<Tenant>,
        id: i64,
    ) -> Result<Option<Duration>, StoreError> {
        let store = tenant.database.store().await?;
        let Some(leased) = store.lease_subscription(id, context.new_holder()).await? else { return Ok(None) };
        let secrets = signing_secrets(&context.config.seals, &leased.secrets, &leased.target_url);
        let (target, secrets) = match (Target::parse(&leased.target_url), secrets) {
            (Ok(target), Ok(secrets)) => (target, secrets),
            (_, Err(error)) => {
                return end_unusable(context, &tenant, &store, &leased, error.into(), error.is_of_this_node()).await;
            }
            (Err(error), _) => return end_unusable(context, &tenant, &store, &leased, error.into(), false).await,
        };
        let sender = Self {
            context: Arc::clone(context),
            limits: context.permits.limits(&tenant.slug, &target),
            tenant,
            target: Arc::new(target),
            secrets: secrets.into(),
            queue: VecDeque::new(),
            read_at_once: READ_AT_ONCE,
            read_at: None,
            flight: JoinSet::new(),
            busy: HashSet::new(),
            at_once: if leased.failures > 0 { 1 } else { context.config.per_subscription as usize },
            taken: leased.position,
            open: BTreeSet::new(),
            done: leased.done_beyond.clone(),
            dropped: Vec::new(),
            attempts: 0,
            is_exhausted_since: None,
            ending: None,
            fault: "",
            again_in: None,
            leased,
        };
        drop(store);
        sender.deliver().await
    }

    /// The store, for a moment: requests to receivers take longer than the account may be held by a move, after which the
    /// lease goes on in another database.
    async fn store(&self) -> Result<Arc<Store>, StoreError> {
        self.tenant.database.store().await
    }

    async fn deliver(mut self) -> Result<Option<Duration>, StoreError> {
        let mut renewal = interval(LeasedSubscription::RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renewal.reset();
        loop {
            if self.context.stopping.is_cancelled() {
                self.ending.get_or_insert(Standing::Resting);
            }
            if self.ending.is_none() {
                let may_read = self.is_exhausted_since.is_none_or(|since| since.elapsed() >= READ_AGAIN);
                if self.queue.is_empty() && (may_read || self.flight.is_empty()) && !self.read().await? {
                    return Ok(None);
                }
                self.start();
            }
            if self.flight.is_empty() {
                let standing = self.ending.take().unwrap_or(Standing::Resting);
                self.write(&[], &standing).await?;
                return Ok(self.again_in);
            }
            tokio::select! {
                sent = self.flight.join_next() => {
                    let mut ended: Vec<Sent> = sent.into_iter().filter_map(Result::ok).collect();
                    self.gather(&mut ended).await;
                    if !self.write(&ended, &Standing::Delivering).await? {
                        // Either the lease ended as planned, or another sender has it.
                        return Ok(self.again_in);
                    }
                    renewal.reset();
                }
                _ = renewal.tick() => {
                    if !self.store().await?.renew_lease(&self.leased).await? {
                        return Ok(None);
                    }
                }
                () = self.context.stopping.cancelled(), if self.ending.is_none() => {}
            }
        }
    }

    /// Adds the outcomes of requests that end now.
    async fn gather(&mut self, ended: &mut Vec<Sent>) {
        let gathering = async {
            while let Some(sent) = self.flight.join_next().await {
                ended.extend(sent.ok());
            }
        };
        // Cancel-safe: the set keeps the outcomes that were not returned.
        _ = timeout(GATHER, gathering).await;
    }

    /// Reads the next due events. Returns whether the lease still holds.
    async fn read(&mut self) -> Result<bool, StoreError> {
        let is_fast = self.read_at.is_some_and(|at| at.elapsed() < READ_AGAIN);
        self.read_at_once = if is_fast { (self.read_at_once * 2).min(MAX_READ_AT_ONCE) } else { READ_AT_ONCE };
        self.read_at = Some(Instant::now());
        let store = self.store().await?;
        loop {
            let due = store.due_events(&self.leased, self.taken, self.read_at_once, &self.busy).await?;
            let Some(due) = due else { return Ok(false) };
            self.leased.log = due.log;
            if due.submissions.read()?.is_none() && self.read_at_once > 1 {
                self.read_at_once = (self.read_at_once / 4).max(1);
                continue;
            }
            let bodies = self.bodies(&store, &due).await?;
            let DueEvents { events, vanished, read_to, again_in, .. } = due;
            self.dropped.extend(vanished);
            // They may have been set aside since the lease began.
            self.leased.has_set_aside |= !self.dropped.is_empty() || events.iter().any(|event| !event.is_in_turn);
            self.is_exhausted_since = events.is_empty().then(Instant::now);
            self.again_in = again_in;
            for (event, body) in events.into_iter().zip(bodies) {
                // An event that was set aside may already be running.
                let is_queued = self.busy.contains(&event.submission) && !event.is_in_turn;
                if let Some(body) = body.filter(|_| !is_queued) {
                    if event.is_in_turn {
                        self.open.insert(event.seq);
                    }
                    self.queue.push_back(Ready { event, body });
                }
            }
            self.taken = self.taken.max(read_to);
            return Ok(true);
        }
    }

    /// The bodies of events; `None` if the submission was deleted.
    async fn bodies(&self, store: &Store, due: &DueEvents) -> Result<Vec<Option<EnvelopeBody>>, StoreError> {
        let zone = &self.tenant.timezone;
        let shown = due.submissions.read()?.map(|view| ShownSubmissions::new(view, zone));
        let mut bodies = Vec::with_capacity(due.events.len());
        for event in &due.events {
            if let Some(SentBody { event_id, body }) = &event.sent {
                bodies.push(Some(EnvelopeBody { id: event_id.clone(), json: body.clone() }));
                continue;
            }
            let cursor = due.cursor_after(event);
            let envelope = Envelope {
                event: self.leased.event,
                changed_at: event.changed_at,
                account: &self.tenant.slug,
                host: &self.tenant.address,
                subscription: self.leased.id,
                of_form: self.leased.form,
                reach: &self.leased.reach,
                form: event.form,
                submission: event.submission,
                cursor: &cursor,
                is_test: false,
            };
            bodies.push(match (&shown, self.leased.event) {
                (_, Event::SubmissionDeleted) => Some(envelope.of_deletion()),
                (Some(shown), _) => envelope.with_submission(shown),
                (None, _) => envelope.of_long_submission(store).await?,
            });
        }
        Ok(bodies)
    }

    /// Starts as many requests as may run.
    fn start(&mut self) {
        while self.flight.len() < self.at_once
            && self.done.len() < MAX_AHEAD
            && let Some(at) = self.queue.iter().position(|ready| !self.busy.contains(&ready.event.submission))
            && let Some(ready) = self.queue.remove(at)
        {
            self.busy.insert(ready.event.submission);
            let (context, limits) = (Arc::clone(&self.context), self.limits.clone());
            let (target, secrets) = (Arc::clone(&self.target), Arc::clone(&self.secrets));
            let (tenant, event, token) = (Arc::clone(&self.tenant), self.leased.event, self.leased.token);
            let recipient = Recipient { tenant, event, token };
            self.flight.spawn(async move { send(&context, &recipient, &limits, &target, &secrets, ready).await });
        }
    }

    /// Writes outcomes, and the end of the lease if nothing is in flight. Returns whether the sender still has the lease.
    async fn write(&mut self, ended: &[Sent], standing: &Standing) -> Result<bool, StoreError> {
        let (mut attempts, mut accepted, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let has_failed = self.leased.failures > 0;
        let store = self.store().await?;
        for sent in ended {
            let event = &sent.ready.event;
            self.busy.remove(&event.submission);
            let Some(attempt) = &sent.attempt else { continue };
            let outcome = Outcome::of(attempt);
            let metrics = &self.context.metrics;
            let label = outcome.label(attempt);
            metrics.attempts.with_label_values(&[label]).inc();
            let number = event.attempts + 1;
            let id = sent.ready.body.id.clone();
            attempts.push(attempt_record(id, self.leased.event, event.submission, number, sent.at, attempt));
            let failures = event.attempts + 1;
            let again = || FailedEvent {
                seq: event.seq,
                submission: event.submission,
                event_id: sent.ready.body.id.clone(),
                body: sent.ready.body.json.clone(),
                attempts: failures,
                // Never in the future: the clock may have been set back since.
                failed_at: event.failed_at.map_or(sent.at, |at| at.min(sent.at)),
                next_attempt_at: None,
                given_up: false,
            };
            match outcome {
                Outcome::Accepted => {
                    let lag = Timestamp::now().duration_since(event.changed_at);
                    metrics.lag.observe(lag.as_secs_f64().max(0.0));
                    self.done(event);
                    accepted.push((event.submission, event.seq));
                    (self.leased.failures, self.leased.failing_since) = (0, None);
                    self.at_once = (self.at_once * 2).min(self.context.config.per_subscription as usize);
                }
                Outcome::Gone => {
                    // Due once the subscription is resumed, like events in turn.
                    let next_attempt_at = (!event.is_in_turn).then_some(sent.at);
                    failed.push(FailedEvent { next_attempt_at, ..again() });
                    self.ending = Some(Standing::Gone { reason: DeliveryReason::Gone });
                }
                Outcome::Refused(_) if !event.is_in_turn || store.may_set_aside(self.leased.id).await? => {
                    let mut again = again();
                    let age = Timestamp::now().duration_since(again.failed_at);
                    again.given_up = age.unsigned_abs() >= self.context.config.disable_after;
                    again.next_attempt_at = (!again.given_up).then(|| Timestamp::now() + pause(failures, None));
                    metrics.set_aside.inc_by(u64::from(event.is_in_turn));
                    self.done(event);
                    failed.push(again);
                }
                Outcome::Refused(reason) => {
                    failed.push(again());
                    self.fail(reason, label, None);
                }
                Outcome::Unreachable { reason, retry_after } => {
                    let mut again = again();
                    if !event.is_in_turn {
                        again.next_attempt_at = Some(Timestamp::now() + pause(failures, retry_after));
                    }
                    failed.push(again);
                    self.fail(reason, label, retry_after);
                }
            }
        }
        let ending = if self.flight.is_empty() { self.ending.clone() } else { None };
        let standing = ending.as_ref().unwrap_or(standing);
        let position = self.open.first().map_or(self.taken, |first| first - 1);
        self.done.retain(|seq| *seq > position);
        self.leased.has_set_aside |= !failed.is_empty();
        self.attempts += attempts.len();
        let progress = Progress {
            position,
            done_beyond: &self.done,
            attempts: &attempts,
            accepted: &accepted,
            dropped: &self.dropped,
            failed: &failed,
            standing,
            prunes: self.attempts >= PRUNED_EVERY || *standing != Standing::Delivering,
        };
        let written = store.write_progress(&self.leased, &progress).await?;
        self.attempts %= PRUNED_EVERY;
        self.dropped.clear();
        if written == Written::Ended {
            self.context.report(&self.tenant, &self.leased, standing, self.fault);
        }
        if written == Written::GoesOn && has_failed && !accepted.is_empty() {
            self.context.report_recovery(&self.tenant, &self.leased);
        }
        if *standing != Standing::Delivering {
            return Ok(false);
        }
        if written == Written::Stopped {
            // It was paused: nothing more is sent, and the lease ends after the running requests.
            self.ending.get_or_insert(Standing::Resting);
        }
        Ok(written != Written::Lost)
    }

    fn done(&mut self, event: &DueEvent) {
        if event.is_in_turn {
            self.open.remove(&event.seq);
            self.done.insert(event.seq);
        }
    }

    /// Ends the lease with a pause, once nothing is in flight; concurrent failures count as one.
    fn fail(&mut self, reason: DeliveryReason, fault: &'static str, retry_after: Option<Duration>) {
        if matches!(self.ending, Some(Standing::Gone { .. } | Standing::Disabled { .. })) {
            return;
        }
        self.fault = fault;
        // Negative if the clock was set back since then.
        let age = self.leased.failing_since.map(|since| Timestamp::now().duration_since(since));
        let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
        self.ending = Some(if age >= self.context.config.disable_after {
            Standing::Disabled { reason }
        } else {
            let again_in = pause(self.leased.failures + 1, retry_after);
            self.again_in = Some(again_in);
            Standing::Failing { reason, again_in }
        });
    }
}
