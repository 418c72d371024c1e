//! A circuit breaker for each tenant's database: while the database does not work, requests are refused at once.
//!
//! It opens when the database can't be connected to or opened, or when several statements in a row fail because of the
//! database. After a pause it lets one request through as a trial, and the outcome of that request's first statement
//! closes it or keeps it open. Opening and closing are logged once each; refusals are only counted.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::causes::with_causes;
use super::error::{StoreError, UNAVAILABLE};
use crate::metrics::DatabaseMetrics;

/// How long requests are refused before a trial.
///
/// Larger: a tenant whose database works again waits longer. Smaller: a broken database gets more requests that fail.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// How many statements in a row have to fail to open the breaker.
///
/// Larger: more requests wait for a database that is gone. Smaller: one failure that passes refuses other requests.
const FAILURES: u32 = 3;

/// How long the statement of a trial may run.
///
/// Larger: a database that hangs occupies a connection for longer. Smaller: a slow database never passes its trial.
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
    /// Every request is let through. `failures` statements have failed since the last success.
    Closed { failures: u32 },
    /// Requests are refused, except for one trial after each pause.
    Open(OpenBreaker),
}

#[derive(Debug)]
struct OpenBreaker {
    /// When the last failure was.
    failed_at: Instant,
    /// The kind of failure that was logged last. Another kind is logged too.
    logged: String,
    /// The last failure with its causes.
    cause: String,
    /// Whether a trial is under way.
    trial_running: bool,
}

/// A request that was let through. A trial that is dropped without an outcome leaves the trial to the next request.
#[derive(Debug)]
#[must_use = "it has to report an outcome"]
pub struct BreakerPermit {
    breaker: Arc<Breaker>,
    /// Whether this request is the trial.
    trial: bool,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(tenant: Arc<str>, metrics: DatabaseMetrics) -> Arc<Self> {
        Arc::new(Self { tenant, metrics, state: Mutex::new(BreakerState::Closed { failures: 0 }) })
    }

    /// Lets a request through.
    ///
    /// # Errors
    /// [`StoreError::Resting`] while the breaker is open.
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

    /// Whether requests are refused now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&*self.lock(), BreakerState::Open(_))
    }

    /// What is wrong, while requests are refused.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match &*self.lock() {
            BreakerState::Open(open) => Some(open.cause.clone()),
            BreakerState::Closed { .. } => None,
        }
    }

    /// Records that the database answered a statement. A statement that began before the breaker opened does not close
    /// it.
    pub(super) fn record_success(&self) {
        if let BreakerState::Closed { failures } = &mut *self.lock() {
            *failures = 0;
        }
    }

    /// Records that a statement failed because of the database.
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
        // The cause may differ from trial to trial, for example while a server starts. Only another kind of error is
        // logged.
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
    /// Whether this request is the trial.
    pub(super) fn is_trial(&self) -> bool {
        self.trial
    }

    /// Whether the breaker has opened since this request was let through.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.trial && self.breaker.is_open()
    }

    /// Reports that the database works.
    pub fn succeeded(mut self) {
        if std::mem::take(&mut self.trial) {
            self.breaker.close();
        } else {
            self.breaker.record_success();
        }
    }

    /// Reports that a statement failed.
    pub(super) fn failed(mut self, error: &(dyn Error + 'static)) {
        if std::mem::take(&mut self.trial) {
            self.breaker.open(error, Instant::now());
        } else {
            self.breaker.record_failure(error);
        }
    }

    /// Reports that the database can't be connected to or can't be served from, and opens the breaker at once.
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
    fn failures_in_a_row_open_it_and_a_success_between_them_resets_the_count() {
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
    fn one_request_is_let_through_after_the_pause_and_decides() {
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
    fn a_cancelled_trial_is_left_to_the_next_request() {
        let breaker = breaker();
        breaker.enter().unwrap().broken(&error());
        drop(breaker.enter_at(later()).expect("one after the pause"));
        assert!(breaker.enter_at(later()).expect("the next").is_trial());
    }

    #[test]
    fn a_request_that_began_before_it_opened_does_not_close_it() {
        let breaker = breaker();
        let early = breaker.enter().unwrap();
        breaker.enter().unwrap().broken(&error());
        early.succeeded();
        assert!(breaker.is_open());
    }
}
