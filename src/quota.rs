//! The budget of requests of each account: a true sliding window, exact, never approximated.
//!
//! Owns the decision to admit; knows no HTTP. Two stores of windows: [`window`] in this process, and [`shared`] in
//! Redis, whose clock is then the clock. In no span of the window's length are more requests admitted than the limit.
//! What this node admits is noted in its own window too, so that it is no stranger when it must decide alone.

mod shared;
mod window;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{OnRedisFailure, RedisConfig};
use crate::metrics::Metrics;

pub use shared::ConnectError;
use shared::{SharedWindows, StoreFailed};
use window::Window;

/// What an account may spend in one window, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests a window.
    pub limit: u32,
    /// Requests that would still be admitted now.
    pub remaining: u32,
}

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The window is full; a request after this time finds room if nobody else calls.
    Exhausted(Duration),
    /// The shared window does not answer, and the policy is to deny.
    StoreFailed,
}

/// The part of a budget that this node holds for one account.
#[derive(Debug)]
pub struct Account {
    key: String,
    limit: u32,
    /// What this node admitted; the whole truth where no store is shared.
    own: Mutex<Window>,
    /// Until when the shared window is known to be full, in microseconds of [`Quota::now`]. Only the passing of time
    /// frees a place, so until then nobody need ask.
    full_until: AtomicU64,
}

impl Account {
    /// The account of a tenant, with its limit a window.
    #[must_use]
    pub fn new(slug: &str, limit: u32) -> Self {
        Self { key: format!("formgate:window:{slug}"), limit, own: Mutex::default(), full_until: AtomicU64::new(0) }
    }

    fn own(&self) -> std::sync::MutexGuard<'_, Window> {
        // A window is whole between any two of its statements: a panic elsewhere leaves it usable.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The budget with nothing left.
    #[must_use]
    pub fn spent(&self) -> Budget {
        self.budget(0)
    }

    fn budget(&self, remaining: u32) -> Budget {
        Budget { limit: self.limit, remaining }
    }
}

/// Decides for all accounts of a gateway.
#[derive(Debug)]
pub struct Quota {
    span: Duration,
    epoch: Instant,
    shared: Option<(SharedWindows, OnRedisFailure)>,
    metrics: Metrics,
}

impl Quota {
    /// Windows of `span`, shared through Redis where one is configured. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ConnectError`] when the URL is none that the client can use.
    pub fn new(span: Duration, redis: Option<&RedisConfig>, metrics: Metrics) -> Result<Self, ConnectError> {
        let shared = match redis {
            Some(redis) => Some((SharedWindows::new(redis, span)?, redis.on_failure)),
            None => None,
        };
        Ok(Self { span, epoch: Instant::now(), shared, metrics })
    }

    /// Spends one request of an account's budget, or says why not; a refusal spends nothing.
    ///
    /// # Errors
    /// [`NotAdmitted`].
    pub async fn admit(&self, account: &Account) -> Result<Budget, NotAdmitted> {
        let Some((shared, policy)) = &self.shared else {
            return self.admit_alone(account, "embedded");
        };
        if let Some(wait) = self.known_full(account) {
            self.metrics.rate_decision("refused", "memory");
            return Err(NotAdmitted::Exhausted(wait));
        }
        match shared.admit(&account.key, account.limit).await {
            Ok(Ok(remaining)) => {
                account.own().note(self.now(), self.span_in_micros());
                self.metrics.rate_decision("admitted", "shared");
                Ok(account.budget(remaining))
            }
            Ok(Err(wait)) => {
                account.full_until.store(self.now() + micros(wait), Ordering::Relaxed);
                self.metrics.rate_decision("refused", "shared");
                Err(NotAdmitted::Exhausted(wait))
            }
            Err(StoreFailed) => match policy {
                OnRedisFailure::Local => self.admit_alone(account, "local"),
                OnRedisFailure::Allow => {
                    account.own().note(self.now(), self.span_in_micros());
                    self.metrics.rate_decision("admitted", "allow");
                    Ok(self.look_alone(account))
                }
                OnRedisFailure::Deny => {
                    self.metrics.rate_decision("refused", "deny");
                    Err(NotAdmitted::StoreFailed)
                }
            },
        }
    }

    /// What is left of an account's budget, without spending.
    pub async fn look(&self, account: &Account) -> Budget {
        let Some((shared, _)) = &self.shared else { return self.look_alone(account) };
        if self.known_full(account).is_some() {
            return account.budget(0);
        }
        match shared.look(&account.key, account.limit).await {
            Ok(remaining) => account.budget(remaining),
            Err(StoreFailed) => self.look_alone(account),
        }
    }

    fn admit_alone(&self, account: &Account, by: &'static str) -> Result<Budget, NotAdmitted> {
        let decision = account.own().admit(self.now(), self.span_in_micros(), account.limit);
        self.metrics.rate_decision(if decision.is_ok() { "admitted" } else { "refused" }, by);
        match decision {
            Ok(remaining) => Ok(account.budget(remaining)),
            Err(wait) => Err(NotAdmitted::Exhausted(Duration::from_micros(wait))),
        }
    }

    fn look_alone(&self, account: &Account) -> Budget {
        account.budget(account.own().remaining(self.now(), self.span_in_micros(), account.limit))
    }

    fn known_full(&self, account: &Account) -> Option<Duration> {
        let left = account.full_until.load(Ordering::Relaxed).checked_sub(self.now())?;
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// Microseconds since this quota was made, by a clock that never goes back.
    fn now(&self) -> u64 {
        micros(self.epoch.elapsed())
    }

    fn span_in_micros(&self) -> u64 {
        micros(self.span)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
