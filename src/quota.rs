//! The request budget of each account: an exact sliding window. No span of the window's length admits more requests
//! than the limit.
//!
//! Owns the decision to admit; knows no HTTP. Windows are kept in two places: in this process (`window`), and in
//! Redis (`shared`), whose clock then applies. A node also records what it admits in its own window, so that it has a
//! count to start from when Redis fails.

mod accounts;
mod shared;
mod usage;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::OnRedisFailure;
use crate::metrics::{Metrics, RateDecision};
use crate::shared::RedisConnections;
use crate::store::DatabaseIdentity;
pub use accounts::{Account, LimitedAccount};
use accounts::{Accounts, Full};
use shared::{Failure, Operation, Outcome, SharedWindows};
pub use usage::{LogEntry, NamedShare, Share, Usage};

/// What an account may spend in one window, and how much of it remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests per window.
    pub limit: u32,
    /// Requests that would still be admitted now.
    pub remaining: u32,
}

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The window is full.
    Exhausted {
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
    metrics: Metrics,
}

impl Quota {
    /// Windows of `span`, in Redis if it is configured, with the policy for its failures.
    #[must_use]
    pub fn new(span: Duration, shared: Option<(Arc<RedisConnections>, OnRedisFailure)>, metrics: Metrics) -> Self {
        let shared = shared.map(|(connections, policy)| (SharedWindows::new(connections, span), policy));
        Self { span, epoch: Instant::now(), shared, accounts: Accounts::default(), metrics }
    }

    /// The account of a tenant whose database is known. Returns the existing account while it is in use or has
    /// requests in its window: after its tenant was removed and came back, or when its database is reached by another
    /// address.
    #[must_use]
    pub fn account(&self, slug: &str, database: &DatabaseIdentity) -> Arc<Account> {
        self.accounts.find_or_insert(Account::new(slug, database))
    }

    /// Drops the accounts that no tenant uses once their windows are empty.
    pub fn forget_unused_accounts(&self) {
        let (now, span) = (self.now(), self.span_in_micros());
        self.accounts.retain(|account| !account.own().is_empty(now, span));
    }

    /// Spends one request of an account's budget for a token, or returns why not. A refusal spends nothing.
    ///
    /// # Errors
    /// [`NotAdmitted`].
    pub async fn admit(
        &self,
        account: LimitedAccount<'_>,
        token: i64,
        report: ReportUsage,
    ) -> Result<(Budget, Option<Usage>), NotAdmitted> {
        let Some((windows, policy)) = &self.shared else {
            return self.admit_by_own(account, token, report, WithoutRedis::NotConfigured);
        };
        if let Some(refusal) = self.known_full(account) {
            self.metrics.rate_decisions.count(RateDecision::RefusedMemory);
            return Err(refusal);
        }
        let operation = if report == ReportUsage::Yes { Operation::SpendAndReport } else { Operation::Spend };
        match windows.request(account.request(operation, LogEntry::short(token))).await {
            Ok(Outcome { wait: None, remaining, usage }) => {
                let now = self.now();
                account.own().note(now, self.span_in_micros(), account.limit, LogEntry::short(token));
                account.note_peek(now, remaining);
                self.metrics.rate_decisions.count(RateDecision::AdmittedShared);
                Ok((account.budget(remaining), (report == ReportUsage::Yes).then_some(usage)))
            }
            Ok(Outcome { wait: Some(wait), usage, .. }) => {
                let usage = Arc::new(usage);
                let full = Full { until: self.now() + micros(wait), limit: account.limit, usage: Arc::clone(&usage) };
                account.full.store(Some(Arc::new(full)));
                self.metrics.rate_decisions.count(RateDecision::RefusedShared);
                Err(NotAdmitted::Exhausted { wait, usage })
            }
            Err(error) => {
                if let Failure::NoWindow(_) = error {
                    self.metrics.redis.failures.with_label_values(&["refused"]).inc();
                }
                tracing::debug!(%error, "Redis cannot decide; applying on_redis_failure");
                match policy {
                    OnRedisFailure::Local => self.admit_by_own(account, token, report, WithoutRedis::Unavailable),
                    OnRedisFailure::Allow => {
                        account.own().note(self.now(), self.span_in_micros(), account.limit, LogEntry::short(token));
                        self.metrics.rate_decisions.count(RateDecision::AdmittedAllow);
                        Ok((self.peek_at_own(account), self.own_usage(account, report)))
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
        if self.known_full(account).is_some() {
            return account.budget(0);
        }
        if let Some(remaining) = self.seen_lately(account) {
            return account.budget(remaining);
        }
        let _peeking = account.peeking.lock().await;
        if let Some(remaining) = self.seen_lately(account) {
            return account.budget(remaining);
        }
        match windows.request(account.request(Operation::Peek, 0)).await {
            Ok(outcome) => {
                account.note_peek(self.now(), outcome.remaining);
                account.budget(outcome.remaining)
            }
            Err(_) => self.peek_at_own(account),
        }
    }

    /// The remaining budget of an account's shared window, read now, and the time until a place is free if none is.
    /// `None` if Redis does not answer or is not configured.
    pub async fn peek_shared(&self, account: LimitedAccount<'_>) -> Option<(Budget, Duration)> {
        let (windows, _) = self.shared.as_ref()?;
        let outcome = windows.request(account.request(Operation::Peek, 0)).await.ok()?;
        Some((account.budget(outcome.remaining), outcome.wait.unwrap_or_default()))
    }

    fn admit_by_own(
        &self,
        account: LimitedAccount<'_>,
        token: i64,
        report: ReportUsage,
        reason: WithoutRedis,
    ) -> Result<(Budget, Option<Usage>), NotAdmitted> {
        let (now, span) = (self.now(), self.span_in_micros());
        let mut own = account.own();
        let decision = own.admit(now, span, account.limit, LogEntry::short(token));
        let usage = (decision.is_err() || report == ReportUsage::Yes).then(|| own.usage(now, span));
        drop(own);
        self.metrics.rate_decisions.count(match (decision.is_ok(), reason) {
            (true, WithoutRedis::NotConfigured) => RateDecision::AdmittedEmbedded,
            (false, WithoutRedis::NotConfigured) => RateDecision::RefusedEmbedded,
            (true, WithoutRedis::Unavailable) => RateDecision::AdmittedLocal,
            (false, WithoutRedis::Unavailable) => RateDecision::RefusedLocal,
        });
        match decision {
            Ok(remaining) => Ok((account.budget(remaining), usage)),
            Err(wait) => Err(NotAdmitted::Exhausted {
                wait: Duration::from_micros(wait),
                usage: Arc::new(usage.unwrap_or_default()),
            }),
        }
    }

    fn peek_at_own(&self, account: LimitedAccount<'_>) -> Budget {
        account.budget(account.own().remaining(self.now(), self.span_in_micros(), account.limit))
    }

    fn own_usage(&self, account: LimitedAccount<'_>, report: ReportUsage) -> Option<Usage> {
        (report == ReportUsage::Yes).then(|| account.own().usage(self.now(), self.span_in_micros()))
    }

    fn seen_lately(&self, account: LimitedAccount<'_>) -> Option<u32> {
        let peek = (*account.last_peek()).filter(|peek| peek.limit == account.limit)?;
        (self.now() - peek.at < MAX_PEEK_AGE).then_some(peek.remaining)
    }

    fn known_full(&self, account: LimitedAccount<'_>) -> Option<NotAdmitted> {
        let full = account.full.load();
        let full = full.as_ref().filter(|full| full.limit == account.limit)?;
        let left = full.until.checked_sub(self.now()).filter(|left| *left > 0)?;
        Some(NotAdmitted::Exhausted { wait: Duration::from_micros(left), usage: Arc::clone(&full.usage) })
    }

    /// Microseconds since this quota was created, by a monotonic clock.
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
