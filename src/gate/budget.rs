//! The budget of an account as a request sees it: admission, or only a report of the remaining requests.
//!
//! A tenant's account is known once its database was opened, since the database holds its own identity. For an
//! admitted request that needs no extra step: its token was verified in that database. The first request of a tenant
//! that spends nothing opens the database for the report in its headers, and waits only briefly for that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{Admitted, Gate};
use crate::error::Refusal;
use crate::quota::{
    Account, Budget, BudgetOf, ExportLease, Interface, LimitedAccount, LimitedToken, NoExport, NotAdmitted, Quota,
    ReportUsage,
};
use crate::rare;
use crate::store::StoreError;
use crate::tenant::usage::RateOutcome;
use crate::tenant::{Tenant, Token};

/// How long a report waits for a database to be opened.
///
/// Larger: a 401 waits for a database that hangs. Smaller: a tenant's first 401 reports a full budget if a busy
/// machine takes longer to open the database.
const REPORT_WAIT: Duration = Duration::from_millis(500);

/// How many databases are opened at once for reports. Beyond that, a report shows a full budget.
///
/// Larger: callers without a token can cause more connections to be opened at once, by naming one host after another.
/// Smaller: fewer databases that hang are enough to block reports of other tenants.
static REPORTS: Semaphore = Semaphore::const_new(32);

impl Admitted {
    /// Spends more of the budgets that the request has passed, and sets `left` to what remains of the nearer one.
    ///
    /// # Errors
    /// [`Refusal::QuotaExhausted`], [`Refusal::QuotaUnavailable`]; the request has then spent nothing.
    pub async fn spend_more(&self, quota: &Quota, more: u32, left: &OnceLock<Budget>) -> Result<(), Refusal> {
        let Self { tenant, token, .. } = self;
        let account = tenant.account(Interface::Api).ok_or(Refusal::QuotaUnavailable)?;
        let spender = LimitedToken { id: token.id, limit: token.limits.requests_per_minute };
        match quota.spend_more(account, spender, more).await {
            Ok(budget) => {
                left.get_or_init(|| budget);
                Ok(())
            }
            Err(NotAdmitted::Exhausted { budget, wait, usage }) => {
                left.get_or_init(|| budget);
                let usage = tenant.tokens.names.name(&usage, token, &tenant.database).await;
                Err(Refusal::QuotaExhausted { of: budget.of, wait, usage })
            }
            Err(NotAdmitted::StoreFailed) => Err(Refusal::QuotaUnavailable),
        }
    }

    /// Begins an export of the account.
    ///
    /// # Errors
    /// [`Refusal::ExportRunning`], [`Refusal::TooManyExports`].
    pub async fn begin_export(&self, quota: &Quota) -> Result<ExportLease, Refusal> {
        let account = self.tenant.shared_account().ok_or(Refusal::QuotaUnavailable)?;
        begin_export(quota, &account).await
    }
}

async fn begin_export(quota: &Quota, account: &Account) -> Result<ExportLease, Refusal> {
    quota.begin_export(account).await.map_err(|none| match none {
        NoExport::AccountHasOne => Refusal::ExportRunning,
        NoExport::NodeIsBusy => Refusal::TooManyExports,
    })
}

impl Gate {
    /// Spends one request of the account's budget for an interface, and of the token's own if it has one. Sets `budget` to the nearer one as
    /// soon as it is known, also for a request that is refused.
    ///
    /// # Errors
    /// [`Refusal::QuotaExhausted`], [`Refusal::QuotaUnavailable`], [`Refusal::DatabaseUnavailable`],
    /// [`Refusal::TenantBusy`].
    pub async fn admit(
        &self,
        tenant: Arc<Tenant>,
        token: Arc<Token>,
        (interface, report): (Interface, ReportUsage),
        budget: &mut Option<Budget>,
    ) -> Result<Admitted, Refusal> {
        let account = match tenant.account(interface) {
            Some(account) => account,
            None => {
                let learned = rare::boxed(|| self.learn_account(&tenant, interface)).await;
                learned.map_err(|error| Refusal::DatabaseUnavailable(Arc::new(error)))?
            }
        };
        let spender = LimitedToken { id: token.id, limit: token.limits.requests_per_minute };
        let usage = match self.quota.admit(account, spender, report).await {
            Ok((left, usage)) => {
                self.count_minute(&tenant, &token, interface, RateOutcome::Admitted);
                *budget = Some(left);
                usage
            }
            Err(NotAdmitted::Exhausted { budget: spent, wait, usage }) => {
                self.count_minute(&tenant, &token, interface, RateOutcome::Refused);
                *budget = Some(spent);
                let usage = tenant.tokens.names.name(&usage, &token, &tenant.database).await;
                let of = match (spent.of, interface) {
                    (BudgetOf::Account, Interface::Scim) => BudgetOf::Scim,
                    (of, _) => of,
                };
                return Err(Refusal::QuotaExhausted { of, wait, usage });
            }
            Err(NotAdmitted::StoreFailed) => return Err(Refusal::QuotaUnavailable),
        };
        let permit = tenant.in_flight.enter().ok_or_else(|| {
            tenant.database.refuse_in_flight();
            Refusal::TenantBusy
        })?;
        Ok(Admitted { tenant, token, usage, _permit: permit })
    }

    /// The minutes that administrators see are those of the API's budget.
    fn count_minute(&self, tenant: &Arc<Tenant>, token: &Arc<Token>, interface: Interface, outcome: RateOutcome) {
        if interface == Interface::Api {
            self.minutes.count(tenant, token, outcome);
        }
    }

    /// The account's budget for an interface, for a request that spends nothing. Full if the account is unknown.
    pub async fn budget(&self, tenant: &Arc<Tenant>, interface: Interface) -> Budget {
        let account = match tenant.account(interface) {
            Some(account) => Some(account),
            None => rare::boxed(|| self.learn_account_soon(tenant, interface)).await,
        };
        match account {
            Some(account) => self.quota.peek(account).await,
            None => {
                let limit = tenant.requests_per_minute(interface);
                Budget { of: BudgetOf::Account, limit, remaining: limit }
            }
        }
    }

    /// Begins an export of an account that spends nothing of its budget.
    ///
    /// # Errors
    /// [`Refusal::ExportRunning`], [`Refusal::TooManyExports`], [`Refusal::DatabaseUnavailable`].
    pub async fn begin_export(&self, tenant: &Tenant) -> Result<ExportLease, Refusal> {
        if tenant.shared_account().is_none() {
            let learned = self.learn_account(tenant, Interface::Api).await;
            learned.map_err(|error| Refusal::DatabaseUnavailable(Arc::new(error)))?;
        }
        let account = tenant.shared_account().ok_or(Refusal::QuotaUnavailable)?;
        begin_export(&self.quota, &account).await
    }

    async fn learn_account<'t>(
        &self,
        tenant: &'t Tenant,
        interface: Interface,
    ) -> Result<LimitedAccount<'t>, StoreError> {
        let store = tenant.database.store().await?;
        let account = |interface| self.quota.account(&tenant.slug, store.identity(), interface);
        Ok(tenant.learn_account(interface, account))
    }

    async fn learn_account_soon<'t>(
        &self,
        tenant: &'t Arc<Tenant>,
        interface: Interface,
    ) -> Option<LimitedAccount<'t>> {
        let report = REPORTS.try_acquire().ok()?;
        let database = Arc::clone(&tenant.database);
        // A separate task: the breaker notices a database that hangs even after the report stopped waiting.
        let opening = tokio::spawn(async move {
            let _report = report;
            database.store().await.map(drop)
        });
        tokio::time::timeout(REPORT_WAIT, opening).await.ok()?.ok()?.ok()?;
        self.learn_account(tenant, interface).await.ok()
    }
}
