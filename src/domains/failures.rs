//! What follows a failed order, depending on whose fault it is.
//!
//! After a fault of the host, the back-off grows, and the failure counts against the CA's limit of failed validations.
//! After a fault of the CA, the order is kept, and is retried there or replaced by one at another CA. A rate limit is
//! written to the registry, so that every node applies it; the next CA is asked at once.

use std::time::{Duration, Instant};

use super::budgets::{self, Order};
use super::error::DomainsError;
use super::orders::PendingOrder;
use super::reason::{OtherReason, Reason};
use super::renewal::Ask;
use super::schedule;
use super::shared::Domains;
use super::transition::{Cause, event};
use crate::acme::{AcmeError, Fault};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::store::registry::{DomainRecord, DomainState};

/// How long until an order that the CA has not finished is advanced again.
const PENDING: Duration = Duration::from_secs(3);

/// How long until a CA without a usable response is asked again, if it does not say so itself.
///
/// Larger: another CA takes over later. Smaller: more requests to a CA that is down.
const DOWN: Duration = Duration::from_mins(1);

/// How long until a CA that refused for a rate limit is asked again, if it does not say so itself.
const LIMITED: Duration = Duration::from_hours(1);

/// How many failures of a renewal count while DNS is unreachable: up to an hour's wait.
///
/// Larger: once DNS is reachable again, the renewal waits for longer. Smaller: more validations that fail.
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
            return self.release(&domain, &[]).await;
        }
        self.metrics.ordered(&name, if error.fault() == Fault::Host { "refused" } else { "failed" });
        let registry = self.registry().await?;
        let pending = PendingOrder::read(&domain);
        let is_exempt = pending.as_ref().is_some_and(|pending| pending.is_exempt);
        let has_order = pending.as_ref().is_some_and(|pending| pending.url.is_some());
        // The CA may have found what this node could not check.
        let unasked = pending.and_then(|pending| pending.unasked).filter(|_| error.may_be_dns());
        let has_others = acme.requests.authorities.len() > 1;
        let mut is_tried_at_once = false;
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
                if let AcmeError::AccountDeactivated { detail } = &error {
                    self.note_deactivated(authority, &name, detail);
                }
                if self.breakers.note_fault(authority, Instant::now()) {
                    let others = acme.requests.authorities.len() - 1;
                    tracing::error!(authority = name, cause = %error, others, "the CA can't be used");
                    // Another CA is asked now.
                    is_tried_at_once = has_others;
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
                    is_tried_at_once = has_others;
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
            None => Reason::of_ca(&name, &domain.host, &error, until),
            Some(cause) => {
                let detail = format!("{cause}; the CA {name}: {error}");
                Reason::Other(OtherReason::DnsDown { detail, until, records: Vec::new() })
            }
        };
        let is_of_host = error.fault() == Fault::Host && unasked.is_none();
        let was_failing = domain.state == DomainState::Failing;
        self.transition(&mut domain, if is_of_host { Cause::HostFailed } else { Cause::OrderFailed }, &reason);
        let mut events = Vec::new();
        if is_of_host && domain.not_after.is_some() && !was_failing {
            events.push(event("domain.failing", &domain));
        }
        if domain.not_after.is_some() {
            events.extend(self.plan_renewal(&mut domain, host, Ask::NotAgain).await?);
        }
        domain.next_at = if is_tried_at_once { now } else { until };
        self.release(&domain, &events).await
    }
}
