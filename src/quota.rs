//! The request budget of each account: an exact sliding window. No span of the window's length admits more requests
//! than the limit.
//!
//! A token may have a budget within that of its account: a window of its own, which each of its requests has to pass too.
//!
//! Owns the decision to admit; knows no HTTP. Windows are kept in two places: in this process (`window`), and in
//! Redis (`shared`), whose clock then applies. A node also records what it admits in its own window, so that it has a
//! count to start from when Redis fails.

mod accounts;
mod exports;
mod outcome;
mod shared;
mod spending;
mod usage;
mod window;
mod windows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::config::OnRedisFailure;
use crate::metrics::{Metrics, RateDecision};
use crate::rare;
use crate::shared::RedisConnections;
use crate::store::DatabaseIdentity;
use accounts::Accounts;
pub use accounts::{Account, Interface, LimitedAccount, LimitedToken};
pub use exports::{ExportLease, NoExport};
pub use outcome::{Budget, BudgetOf};
use outcome::{Full, Outcomes};
use shared::{Failure, Operation, SharedWindows};
pub use usage::{LogEntry, NamedShare, Share, Usage};
use windows::KnownOwn;

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// A window is full.
    Exhausted {
        /// The budget that is spent; of two, the one that is spent for longer.
        budget: Budget,
        /// A request after this time is admitted, unless another takes the place first.
        wait: Duration,
        /// Which tokens used the window.
        usage: Arc<Usage>,
    },
    /// Redis does not answer, and the policy is to deny.
    StoreFailed,
}

/// Whether an admitted request gets a report of which tokens used the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportUsage {
    /// The report is computed.
    Yes,
    /// No report: nothing is counted for it.
    No,
}

/// Maximum age, in microseconds, of the remaining budget that is reported to requests that spend nothing.
///
/// Larger: a 401 reports an older budget. Smaller: a flood of invalid tokens costs more Redis calls.
const MAX_PEEK_AGE: u64 = 1_000_000;

/// Why a node decides by its own window.
#[derive(Clone, Copy, Debug)]
enum WithoutRedis {
    /// No Redis is configured.
    NotConfigured,
    /// Redis does not answer, and the policy is `local`.
    Unavailable,
}

/// Decides for all accounts of a gateway.
#[derive(Debug)]
pub struct Quota {
    span: Duration,
    epoch: Instant,
    shared: Option<(SharedWindows, OnRedisFailure)>,
    accounts: Accounts,
    /// Held by the exports of this node.
    exports: Arc<Semaphore>,
    metrics: Metrics,
}

impl Quota {
    /// Windows of `span`, in Redis if it is configured, with the policy for its failures.
    #[must_use]
    pub fn new(span: Duration, shared: Option<(Arc<RedisConnections>, OnRedisFailure)>, metrics: Metrics) -> Self {
        let shared = shared.map(|(connections, policy)| (SharedWindows::new(connections, span), policy));
        let exports = Arc::new(Semaphore::new(exports::MAX_EXPORTS));
        Self { span, epoch: Instant::now(), shared, accounts: Accounts::default(), exports, metrics }
    }

    /// The account of a tenant whose database is known. Returns the existing account while it is in use or has
    /// requests in its window: after its tenant was removed and came back, or when its database is reached by another
    /// address.
    #[must_use]
    pub fn account(&self, slug: &str, database: &DatabaseIdentity, interface: Interface) -> Arc<Account> {
        self.accounts.find_or_insert(Account::new(slug, database, interface))
    }

    /// Drops the accounts that no tenant uses once their windows are empty.
    pub fn forget_unused_accounts(&self) {
        let (now, span) = (self.now(), self.span_in_micros());
        self.accounts.retain(|account| !account.own().is_empty(now, span));
    }

    /// Spends one request of an account's budget for a token, and of the token's own if it has one, or returns why not. A
    /// refusal spends nothing of either. Returns what remains of the nearer one.
    ///
    /// # Errors
    /// [`NotAdmitted`].
    pub async fn admit(
        &self,
        account: LimitedAccount<'_>,
        token: LimitedToken,
        report: ReportUsage,
    ) -> Result<(Budget, Option<Usage>), NotAdmitted> {
        let Some((windows, policy)) = &self.shared else {
            return self.admit_by_own(account, token, report, WithoutRedis::NotConfigured);
        };
        if let Some(refusal) = self.known_refusal(account, token).await {
            self.metrics.rate_decisions.count(RateDecision::RefusedMemory);
            return Err(refusal);
        }
        let operation = if report == ReportUsage::Yes { Operation::SpendAndReport } else { Operation::Spend };
        match windows.request(account.request(operation, token)).await {
            Ok(outcomes) => {
                let (now, span) = (self.now(), self.span_in_micros());
                if let Some(refusal) = account.note_shared((now, span), token, &outcomes) {
                    self.metrics.rate_decisions.count(RateDecision::RefusedShared);
                    return Err(refusal);
                }
                account.own().note(now, span, account.limit, token);
                account.note_peek(now, outcomes.account.remaining);
                self.metrics.rate_decisions.count(RateDecision::AdmittedShared);
                Ok(Self::admitted(outcomes, account, token, report))
            }
            Err(error) => {
                if let Failure::NoWindow(_) = error {
                    self.metrics.redis.failures.with_label_values(&["refused"]).inc();
                }
                tracing::debug!(%error, "Redis cannot decide; applying on_redis_failure");
                match policy {
                    OnRedisFailure::Local => self.admit_by_own(account, token, report, WithoutRedis::Unavailable),
                    OnRedisFailure::Allow => {
                        let (now, span, mut own) = (self.now(), self.span_in_micros(), account.own());
                        own.note(now, span, account.limit, token);
                        let outcomes = own.peek(now, span, account.limit, token, report);
                        self.metrics.rate_decisions.count(RateDecision::AdmittedAllow);
                        Ok(Self::admitted(outcomes, account, token, report))
                    }
                    OnRedisFailure::Deny => {
                        self.metrics.rate_decisions.count(RateDecision::RefusedDeny);
                        Err(NotAdmitted::StoreFailed)
                    }
                }
            }
        }
    }

    /// An account's remaining budget, without spending. For a shared window, it is at most one second old.
    pub async fn peek(&self, account: LimitedAccount<'_>) -> Budget {
        let Some((windows, _)) = &self.shared else { return self.peek_at_own(account) };
        if account.known_full(self.now()).is_some() {
            return account.budget(0);
        }
        if let Some(remaining) = self.seen_lately(account) {
            return account.budget(remaining);
        }
        let _peeking = account.peeking.lock().await;
        if let Some(remaining) = self.seen_lately(account) {
            return account.budget(remaining);
        }
        match windows.request(account.look()).await {
            Ok(Outcomes { account: outcome, .. }) => {
                let now = self.now();
                account.note_peek(now, outcome.remaining);
                if let Some(full) = Full::of(&outcome, account.limit, now) {
                    account.full.store(Some(Arc::new(full)));
                }
                account.budget(outcome.remaining)
            }
            Err(_) => self.peek_at_own(account),
        }
    }

    /// The remaining budget of an account's shared window, read now, and the time until a place is free if none is.
    /// `None` if Redis does not answer or is not configured.
    pub async fn peek_shared(&self, account: LimitedAccount<'_>) -> Option<(Budget, Duration)> {
        let (windows, _) = self.shared.as_ref()?;
        let outcome = windows.request(account.look()).await.ok()?.account;
        Some((account.budget(outcome.remaining), outcome.wait.unwrap_or_default()))
    }

    fn admit_by_own(
        &self,
        account: LimitedAccount<'_>,
        token: LimitedToken,
        report: ReportUsage,
        reason: WithoutRedis,
    ) -> Result<(Budget, Option<Usage>), NotAdmitted> {
        let now = self.now();
        let outcomes = account.own().admit(now, self.span_in_micros(), account.limit, token, report);
        self.metrics.rate_decisions.count(match (outcomes.is_admitted(), reason) {
            (true, WithoutRedis::NotConfigured) => RateDecision::AdmittedEmbedded,
            (false, WithoutRedis::NotConfigured) => RateDecision::RefusedEmbedded,
            (true, WithoutRedis::Unavailable) => RateDecision::AdmittedLocal,
            (false, WithoutRedis::Unavailable) => RateDecision::RefusedLocal,
        });
        match outcomes.refusal(account.limit, token, now) {
            Some(refusal) => Err(refusal),
            None => Ok(Self::admitted(outcomes, account, token, report)),
        }
    }

    /// The budget and the usage that the response to an admitted request reports.
    fn admitted(
        outcomes: Outcomes,
        account: LimitedAccount<'_>,
        token: LimitedToken,
        report: ReportUsage,
    ) -> (Budget, Option<Usage>) {
        let budget = outcomes.budget(account.limit, token);
        (budget, (report == ReportUsage::Yes).then_some(outcomes.account.usage))
    }

    fn peek_at_own(&self, account: LimitedAccount<'_>) -> Budget {
        account.budget(account.own().account.remaining(self.now(), self.span_in_micros(), account.limit))
    }

    fn seen_lately(&self, account: LimitedAccount<'_>) -> Option<u32> {
        let peek = (*account.last_peek()).filter(|peek| peek.limit == account.limit)?;
        (self.now() - peek.at < MAX_PEEK_AGE).then_some(peek.remaining)
    }

    /// The refusal of a request by what this node knows of shared windows that are full, so that a flood costs Redis nothing.
    ///
    /// With a budget of the token, both windows have to be known: a client that waits as long as it is told must be admitted.
    async fn known_refusal(&self, account: LimitedAccount<'_>, token: LimitedToken) -> Option<NotAdmitted> {
        let full = account.known_full(self.now());
        match account.known_own(token, full.as_deref(), self.now()) {
            KnownOwn::Unknown => None,
            KnownOwn::Open => outcome::refusal(full.as_deref(), None, self.now()),
            KnownOwn::Full(own) => {
                // Asks Redis at most once in a second.
                rare::boxed(|| self.peek(account)).await;
                let full = account.known_full(self.now());
                outcome::refusal(full.as_deref(), Some(&own), self.now())
            }
        }
    }

    /// Microseconds since this quota was created, by a monotonic clock.
    fn now(&self) -> u64 {
        micros(self.epoch.elapsed())
    }

    fn span_in_micros(&self) -> u64 {
        micros(self.span)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
