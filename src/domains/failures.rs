//! What becomes of a domain whose order failed, by whose fault it is.
//!
//! After a fault of the host, the back-off grows, and the failure counts against the authority's limit of failed validations.
//! After a fault of the authority, the order is kept, and is retried there or replaced by one at another authority. A rate
//! limit is written to the registry, so that every node applies it; the next authority is asked at once.

use std::time::{Duration, Instant};

use super::budgets::{self, Order};
use super::life::event;
use super::orders::PendingOrder;
use super::reason::{OtherReason, Reason};
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

/// How many failures of a renewal count while DNS can't be asked: up to an hour's wait.
///
/// Larger: once DNS answers again, the renewal waits for longer. Smaller: more validations that fail.
const UNASKED_FAILURES: i64 = 3;

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
        let error = error.of_host(&domain.host);
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
        let pending = PendingOrder::read(&domain);
        let is_exempt = pending.as_ref().is_some_and(|pending| pending.is_exempt);
        let has_order = pending.as_ref().is_some_and(|pending| pending.url.is_some());
        // What this node could not look at may be what the authority found.
        let unasked = pending.and_then(|pending| pending.unasked).filter(|_| error.may_be_dns());
        let has_others = acme.requests.authorities.len() > 1;
        let mut goes_on = false;
        let mut until = error.until().map(|at| self.by_registry(at));
        match error.fault() {
            Fault::Host => {
                registry.use_budget(&budgets::failures(&name, &domain.host)).await?;
                self.breakers.note_success(authority);
                domain.failures += 1;
                if unasked.is_some() {
                    domain.failures = domain.failures.min(UNASKED_FAILURES);
                }
                domain.pending = None;
                until = Some(now + schedule::back_off(domain.failures));
            }
            Fault::Authority | Fault::Operator => {
                if self.breakers.note_fault(authority, Instant::now()) {
                    let others = acme.requests.authorities.len() - 1;
                    tracing::error!(authority = name, cause = %error, others, "the authority can't be used");
                    // Another one is asked now.
                    goes_on = has_others;
                }
                if self.breakers.is_open(authority, Instant::now()) || !has_order {
                    domain.pending = None;
                }
                until = Some(until.unwrap_or(now + DOWN));
            }
            Fault::None => {
                domain.pending = None;
                if matches!(error, AcmeError::Limited { .. }) {
                    let at = schedule::to_second(until.unwrap_or(now + LIMITED));
                    let limit = if error.limits_every_order(&domain.host) {
                        budgets::limit(&name)
                    } else {
                        budgets::limit_of_host(&name, &domain.host)
                    };
                    registry.exhaust_budget(&limit, at).await?;
                    until = Some(at);
                    goes_on = has_others;
                } else {
                    domain.failures += 1;
                    let wait = if domain.failures == 1 { PENDING } else { schedule::back_off(domain.failures) };
                    until = Some(now + wait);
                }
            }
        }
        if domain.pending.is_none() && !is_exempt {
            let nothing_issued = budgets::of_certificates(&name, acme.limits[authority], &domain.host, Order::Renewal);
            registry.give_back(&nothing_issued).await?;
        }
        let until = schedule::to_second(until.unwrap_or(now + DOWN));
        let reason = match &unasked {
            None => Reason::of_authority(&name, &domain.host, &error, until),
            Some(cause) => {
                let detail = format!("{cause}; the authority {name}: {error}");
                Reason::Other(OtherReason::DnsDown { detail, until, records: Vec::new() })
            }
        };
        let mut events = Vec::new();
        let state = match (domain.not_after, error.fault()) {
            (None, _) => DomainState::Queued,
            (Some(_), Fault::Host) if unasked.is_none() => {
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
        domain.next_at = if goes_on { now } else { until };
        self.write(&domain, &events).await
    }
}
