//! Begins the order of a domain, at the first CA that CAA allows, that works and that has an order left.
//!
//! A CA whose budget is used up, or that responded with a rate limit, is skipped, for renewals as for new domains. A renewal
//! that names the certificate it replaces uses no budget of a CA that exempts such orders. If all are skipped, the order
//! waits for the first of them that may be asked again. A host that has failed its validations too often waits for the CA
//! that counted them: another one would verify the same records.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;

use super::budgets::{self, Order};
use super::error::DomainsError;
use super::orders::PendingOrder;
use super::reason::{OtherReason, Reason};
use super::schedule;
use super::shared::Domains;
use super::transition::Cause;
use crate::acme::{Acme, CertificateRequest};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::store::registry::{BudgetTaken, DomainRecord};

/// Prefix of the detail of a reason that quotes the rate limit of a CA.
const RATE_LIMIT: &str = "rate limit";

/// The outcome of beginning an order at a CA.
enum Begun {
    /// The row has the order.
    Order(Box<DomainRecord>),
    /// Another node has the lease.
    LeaseLost,
    /// The CA has no order left.
    Exhausted(Wait),
}

/// Until when a CA has no order left.
struct Wait {
    /// The CA.
    authority: String,
    /// Which budget.
    detail: String,
    until: Timestamp,
    /// Whether it is about validations that the host has failed.
    is_of_host: bool,
}

impl Domains {
    /// Begins an order at the first of these CAs that works and has one left. `unasked`: why DNS was unreachable before.
    pub(super) async fn begin_order(
        &self,
        domain: DomainRecord,
        host: &HostName,
        allowed: &[usize],
        unasked: Option<String>,
    ) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.ordering_client().await? else { return Ok(()) };
        let now = Instant::now();
        let working = self.breakers.working(allowed, now);
        let mut earliest: Option<Wait> = None;
        for authority in &working {
            match self.begin_at(&domain, host, (acme, &*client), *authority, unasked.as_deref()).await? {
                Begun::Order(domain) => return self.resume_order(*domain, host).await,
                Begun::LeaseLost => return Ok(()),
                Begun::Exhausted(wait) => {
                    let is_of_host = wait.is_of_host;
                    if earliest.as_ref().is_none_or(|earliest| wait.until < earliest.until) {
                        earliest = Some(wait);
                    }
                    if is_of_host {
                        break;
                    }
                }
            }
        }
        let Some(mut wait) = earliest else { return Ok(()) };
        // A CA that is skipped for its faults may be asked again before that.
        let others = allowed.iter().filter(|authority| !working.contains(authority));
        if let Some(closes) = others.filter_map(|authority| self.breakers.open_for(*authority, now)).min() {
            wait.until = wait.until.min(self.now() + closes);
        }
        self.wait(domain, wait).await
    }

    /// Begins an order at one CA, if it has one left.
    async fn begin_at(
        &self,
        domain: &DomainRecord,
        host: &HostName,
        (acme, client): (&AcmeConfig, &Acme),
        authority: usize,
        unasked: Option<&str>,
    ) -> Result<Begun, DomainsError> {
        let name = &acme.requests.authorities[authority].name;
        let registry = self.registry().await?;
        let wait = |detail: String, until, is_of_host| {
            Ok(Begun::Exhausted(Wait { authority: name.clone(), detail, until, is_of_host }))
        };
        if let (_, Some(at)) = registry.budget_left(&budgets::failures(name, &domain.host)).await? {
            return wait("budget of failed validations of the host".to_owned(), at, true);
        }
        let of_host = registry.budget_left(&budgets::limit_of_host(name, &domain.host)).await?;
        let of_all = registry.budget_left(&budgets::limit(name)).await?;
        if let Some(at) = of_host.1.max(of_all.1) {
            return wait(limit_of(domain, name), at, false);
        }
        let kind = if domain.not_after.is_some() { Order::Renewal } else { Order::First };
        let limits = acme.limits[authority];
        let is_exempt = kind == Order::Renewal
            && limits.exempts_renewals
            && client.has_renewal_info(authority).await.unwrap_or(false)
            && self.replaced(domain, name).await.is_some();
        let (request_host, seals) = (host.clone(), acme.seals.clone());
        let request = tokio::task::spawn_blocking(move || CertificateRequest::generate(&request_host)).await;
        let request = request.map_err(|_| DomainsError::Damaged)?;
        let key = pem_of(&request.key_pkcs8).ok_or(DomainsError::Damaged)?;
        let pending = PendingOrder {
            authority: name.clone(),
            key: seals.seal(&key, host.as_str()),
            csr: STANDARD.encode(&request.csr),
            url: None,
            challenge: None,
            is_exempt,
            unasked: unasked.map(ToOwned::to_owned),
        };
        let mut domain = domain.clone();
        let budgets = if is_exempt {
            Vec::new()
        } else {
            let has_others = registry.has_others(&domain.slug).await?;
            let account = has_others.then(|| budgets::used_by(name, &domain.slug));
            budgets::of_order(name, limits, account, &domain.host, kind)
        };
        if kind == Order::First {
            self.transition(&mut domain, Cause::OrderBegun, &Reason::None {});
        }
        domain.pending = pending.stored();
        Ok(match registry.take_budgets(&budgets, &domain).await? {
            BudgetTaken::Yes => Begun::Order(Box::new(domain)),
            BudgetTaken::NotOwn => Begun::LeaseLost,
            BudgetTaken::Until { budget, at } => {
                let of = budget.split(' ').next().unwrap_or_default();
                return wait(format!("budget of {of}"), at, false);
            }
        })
    }

    /// No CA has an order left: the order waits, and nothing was sent.
    async fn wait(&self, mut domain: DomainRecord, wait: Wait) -> Result<(), DomainsError> {
        let Wait { authority, detail, until, .. } = wait;
        self.metrics.ordered(&authority, "waits");
        let until = schedule::to_second(until);
        let reason = Reason::Other(OtherReason::CaLimited { authority, detail, until });
        self.transition(&mut domain, Cause::OrderWaits, &reason);
        domain.next_at = until;
        self.release(&domain, &[]).await
    }
}

/// What the CA said about its limit, if it said it about this host.
fn limit_of(domain: &DomainRecord, name: &str) -> String {
    match Reason::read(&domain.reason) {
        Reason::Other(OtherReason::CaLimited { authority, detail, .. })
            if authority == name && detail.starts_with(RATE_LIMIT) =>
        {
            detail
        }
        _ => RATE_LIMIT.to_owned(),
    }
}

fn pem_of(pkcs8: &[u8]) -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(rcgen::KeyPair::try_from(pkcs8).ok()?.serialize_pem()))
}
