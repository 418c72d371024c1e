//! A database that does not work is left alone for a moment, and its callers are refused at once.
//!
//! One breaker a tenant. It opens when the database can't be connected to or opened, or when some statements in a row
//! failed for a reason that lies in the database; after a moment one caller is let through, and what becomes of its first
//! statement decides. Opening and closing are logged, once each, and not the refusals between them.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::causes::with_causes;
use super::error::{StoreError, UNAVAILABLE};
use crate::metrics::DatabaseMetrics;

/// How long callers are refused before one is let through. Longer, and a mended tenant waits; shorter, and a broken one
/// keeps its database busy with what fails.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// How many statements in a row fail before callers are refused. More, and callers wait for a database that is gone;
/// fewer, and one unlucky statement refuses the others.
const FAILURES: u32 = 3;

/// How long the statement of the caller that is let through may run. Longer, and a connection is held by a database that
/// hangs; shorter, and one that is slow is never used again.
pub(super) const TRIAL_LIMIT: Duration = Duration::from_secs(3);

/// The breaker of one tenant's database.
#[derive(Debug)]
pub struct Breaker {
    /// For the log.
    tenant: Arc<str>,
    metrics: DatabaseMetrics,
    state: Mutex<BreakerState>,
}

#[derive(Debug)]
enum BreakerState {
    /// Every caller is let through; so many statements failed since the last one that did not.
    Closed { failures: u32 },
    /// Callers are refused, but for one after the pause.
    Open(OpenBreaker),
}

#[derive(Debug)]
struct OpenBreaker {
    /// The last failure.
    failed_at: Instant,
    /// What kind of failure was logged, so that another kind is logged too.
    logged: String,
    /// The last failure with its causes.
    cause: String,
    /// Whether the one is under way.
    trial_running: bool,
}

/// A caller who was let through. Dropped without a word of the outcome, it leaves its place to the next one.
#[derive(Debug)]
#[must_use = "it has to say what became of it"]
pub struct BreakerPermit {
    breaker: Arc<Breaker>,
    /// Whether it is the one that is let through while the others are refused.
    trial: bool,
}

impl Breaker {
    /// Closed.
    #[must_use]
    pub fn new(tenant: Arc<str>, metrics: DatabaseMetrics) -> Arc<Self> {
        Arc::new(Self { tenant, metrics, state: Mutex::new(BreakerState::Closed { failures: 0 }) })
    }

    /// Lets a caller through.
    ///
    /// # Errors
    /// [`StoreError::Resting`] while it is open.
    pub fn enter(self: &Arc<Self>) -> Result<BreakerPermit, StoreError> {
        self.enter_at(Instant::now())
    }

    fn enter_at(self: &Arc<Self>, now: Instant) -> Result<BreakerPermit, StoreError> {
        let trial = match &mut *self.lock() {
            BreakerState::Closed { .. } => false,
            BreakerState::Open(open) if !open.trial_running && now >= open.failed_at + PAUSE => {
                open.trial_running = true;
                true
            }
            BreakerState::Open(_) => {
                self.metrics.refused("breaker");
                return Err(StoreError::Resting);
            }
        };
        Ok(BreakerPermit { breaker: Arc::clone(self), trial })
    }

    /// Whether callers are refused now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&*self.lock(), BreakerState::Open(_))
    }

    /// What is wrong, while callers are refused.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match &*self.lock() {
            BreakerState::Open(open) => Some(open.cause.clone()),
            BreakerState::Closed { .. } => None,
        }
    }

    /// A statement was answered by a database that works. What began before the breaker opened does not close it.
    pub(super) fn record_success(&self) {
        if let BreakerState::Closed { failures } = &mut *self.lock() {
            *failures = 0;
        }
    }

    /// A statement failed for a reason that lies in the database.
    pub(super) fn record_failure(&self, error: &(dyn Error + 'static)) {
        let opened = match &mut *self.lock() {
            BreakerState::Closed { failures } => {
                *failures += 1;
                *failures >= FAILURES
            }
            BreakerState::Open(_) => false,
        };
        if opened {
            self.open(error, Instant::now());
        }
    }

    fn open(&self, error: &(dyn Error + 'static), now: Instant) {
        // The cause may differ from try to try, as while a server starts; that is not worth a line each.
        let logged = error.downcast_ref().map_or_else(|| UNAVAILABLE.to_owned(), StoreError::to_string);
        let causes = with_causes(error);
        let cause = if error.is::<StoreError>() { causes } else { format!("{UNAVAILABLE}: {causes}") };
        let open = OpenBreaker { failed_at: now, logged: logged.clone(), cause, trial_running: false };
        let before = std::mem::replace(&mut *self.lock(), BreakerState::Open(open));
        match before {
            BreakerState::Closed { .. } => self.metrics.breaker_opened(),
            BreakerState::Open(open) if open.logged == logged => return,
            BreakerState::Open(_) => {}
        }
        if let Some(StoreError::SchemaOlder { .. }) = error.downcast_ref() {
            let remedy = format!("formgate migrate --tenant {}", self.tenant);
            tracing::error!(tenant = &*self.tenant, %error, remedy, "the tenant is not served until its database is migrated");
        } else {
            tracing::error!(tenant = &*self.tenant, cause = with_causes(error), "the tenant's database can't be used");
        }
    }

    fn close(&self) {
        let before = std::mem::replace(&mut *self.lock(), BreakerState::Closed { failures: 0 });
        if matches!(before, BreakerState::Open(_)) {
            self.metrics.breaker_closed();
            tracing::info!(tenant = &*self.tenant, "the tenant's database is back");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if self.is_open() {
            self.metrics.breaker_closed();
        }
    }
}

impl BreakerPermit {
    /// Whether it is the one that is let through while the others are refused.
    pub(super) fn is_trial(&self) -> bool {
        self.trial
    }

    /// Whether the breaker has opened since this caller was let through.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.trial && self.breaker.is_open()
    }

    /// The database works.
    pub fn succeeded(mut self) {
        if std::mem::take(&mut self.trial) {
            self.breaker.close();
        } else {
            self.breaker.record_success();
        }
    }

    /// One statement failed.
    pub(super) fn failed(mut self, error: &(dyn Error + 'static)) {
        if std::mem::take(&mut self.trial) {
            self.breaker.open(error, Instant::now());
        } else {
            self.breaker.record_failure(error);
        }
    }

    /// The database can't be connected to, or is not one to serve from.
    pub fn broken(mut self, error: &(dyn Error + 'static)) {
        self.trial = false;
        self.breaker.open(error, Instant::now());
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if let (true, BreakerState::Open(open)) = (self.trial, &mut *self.breaker.lock()) {
            open.trial_running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Arc<Breaker> {
        Breaker::new("acme".into(), DatabaseMetrics::unregistered())
    }

    fn error() -> StoreError {
        StoreError::Unavailable(sqlx::Error::WorkerCrashed)
    }

    fn later() -> Instant {
        Instant::now() + PAUSE
    }

    #[test]
    fn some_failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let breaker = breaker();
        for _ in 0..10 {
            for _ in 1..FAILURES {
                breaker.enter().unwrap().failed(&error());
            }
            breaker.enter().unwrap().succeeded();
        }
        assert!(!breaker.is_open());
        for _ in 0..FAILURES {
            breaker.enter().unwrap().failed(&error());
        }
        assert!(matches!(breaker.enter(), Err(StoreError::Resting)));
    }

    #[test]
    fn one_caller_is_let_through_after_the_pause_and_decides() {
        let breaker = breaker();
        breaker.enter().unwrap().broken(&error());
        assert!(breaker.enter().is_err(), "at once");
        let trial = breaker.enter_at(later()).expect("one after the pause");
        assert!(breaker.enter_at(later()).is_err(), "a second one");
        trial.failed(&error());
        assert!(breaker.enter().is_err(), "it failed");
        let trial = breaker.enter_at(later()).expect("one after another pause");
        trial.succeeded();
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_caller_who_hangs_up_leaves_the_trial_to_the_next() {
        let breaker = breaker();
        breaker.enter().unwrap().broken(&error());
        drop(breaker.enter_at(later()).expect("one after the pause"));
        assert!(breaker.enter_at(later()).expect("the next").is_trial());
    }

    #[test]
    fn what_began_before_it_opened_does_not_close_it() {
        let breaker = breaker();
        let early = breaker.enter().unwrap();
        breaker.enter().unwrap().broken(&error());
        early.succeeded();
        assert!(breaker.is_open());
    }
}
