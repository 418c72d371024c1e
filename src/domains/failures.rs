//! What becomes of a domain whose order failed, by whose fault it is.
//!
//! A fault of the host waits longer each time, and counts against what the authority allows. A fault of the authority leaves
//! the order as it is, for the next try or for another authority.

use std::time::{Duration, Instant};

use super::budgets::{self, Order};
use super::life::event;
use super::orders::PendingOrder;
use super::reason::Reason;
use super::renewal::Ask;
use super::{Domains, DomainsError, schedule};
use crate::acme::{AcmeError, Fault};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::store::registry::{DomainRecord, DomainState};

/// When an order that the authority has not finished is advanced again.
const PENDING: Duration = Duration::from_secs(3);

/// When an authority that gives no usable answer is asked again, if it does not say so itself.
///
/// Larger: another authority takes over later. Smaller: an authority that is down is asked in vain more often.
const DOWN: Duration = Duration::from_mins(1);

/// When an authority that refused for a rate limit is asked again, if it does not say so itself.
const LIMITED: Duration = Duration::from_hours(1);

impl Domains {
    /// The order failed, or is not finished.
    pub(super) async fn failed(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        acme: &AcmeConfig,
        authority: usize,
        error: AcmeError,
    ) -> Result<(), DomainsError> {
        let name = acme.requests.authorities[authority].name.clone();
        let now = self.now();
        if error == AcmeError::Stopped {
            return Ok(());
        }
        if let AcmeError::Pending { until } = error {
            domain.next_at = until.unwrap_or(now + PENDING).max(now + PENDING);
            return self.write(&domain, &[]).await;
        }
        self.metrics.ordered(&name, if error.fault() == Fault::Host { "refused" } else { "failed" });
        let registry = self.registry().await?;
        let has_order = PendingOrder::read(&domain).is_some_and(|pending| pending.url.is_some());
        let mut until = error.until();
        match error.fault() {
            Fault::Host => {
                registry.use_budget(&budgets::failures(&name, &domain.host)).await?;
                domain.failures += 1;
                domain.pending = None;
                until = Some(now + schedule::back_off(domain.failures));
            }
            Fault::Authority | Fault::Operator => {
                if self.breakers.note_fault(authority) {
                    let others = acme.requests.authorities.len() - 1;
                    tracing::error!(authority = name, cause = %error, others, "the authority can't be used");
                    // Another one is asked now.
                    if others > 0 {
                        until = Some(now);
                    }
                }
                if self.breakers.is_open(authority, Instant::now()) || !has_order {
                    domain.pending = None;
                }
                until = Some(until.unwrap_or(now + DOWN));
            }
            Fault::None => {
                domain.pending = None;
                if let AcmeError::Limited { detail, .. } = &error {
                    let at = until.unwrap_or(now + LIMITED);
                    // The limit of the account holds for every host.
                    if detail.contains("new orders") || detail.contains("account") {
                        let all = budgets::orders(&name, acme.limits[authority], Order::Renewal);
                        registry.exhaust_budget(&all, at).await?;
                    }
                    until = Some(at);
                } else {
                    domain.failures += 1;
                    let wait = if domain.failures == 1 { PENDING } else { schedule::back_off(domain.failures) };
                    until = Some(now + wait);
                }
            }
        }
        let until = schedule::to_second(until.unwrap_or(now + DOWN));
        let reason = Reason::of_authority(&name, &domain.host, &error, until);
        let mut events = Vec::new();
        let state = match (domain.not_after, error.fault()) {
            (None, _) => DomainState::Queued,
            (Some(_), Fault::Host) => {
                if domain.state != DomainState::Failing {
                    events.push("domain.failing");
                }
                DomainState::Failing
            }
            (Some(_), _) => domain.state,
        };
        self.enter(&mut domain, state, &reason);
        let mut events: Vec<_> = events.into_iter().map(|kind| event(kind, &domain)).collect();
        if domain.not_after.is_some() {
            events.extend(self.plan_renewal(&mut domain, host, Ask::NotAgain).await?);
        }
        domain.next_at = until;
        self.write(&domain, &events).await
    }
}
