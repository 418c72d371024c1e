//! Begins the order of a domain, at the first authority that CAA allows, that works and that has an order left.
//!
//! An authority whose budget is used up, or that answered with a rate limit, is passed over, for renewals as for new domains.
//! A renewal that names the certificate which it replaces takes nothing of the budgets of an authority that exempts it.
//! The order waits only if each one is, until the earliest instant at which one of them may be asked. A host that has failed
//! its validations too often waits for the authority that counted them: another one would verify the same records.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;

use super::budgets::{self, Order};
use super::orders::PendingOrder;
use super::reason::{OtherReason, Reason};
use super::{Domains, DomainsError, schedule};
use crate::acme::{Acme, CertificateRequest};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::store::registry::{BudgetTaken, DomainRecord, DomainState};

/// Prefix of the detail of a reason that quotes the rate limit of an authority.
const RATE_LIMIT: &str = "rate limit";

/// What became of beginning an order at an authority.
enum Begun {
    /// The row has the order.
    Yes(Box<DomainRecord>),
    /// The lease was not its own any more.
    NotOwn,
    /// The authority has no order left.
    Not(Wait),
}

/// Until when an authority has no order left.
struct Wait {
    /// The authority.
    authority: String,
    /// Which budget.
    detail: String,
    until: Timestamp,
    /// Whether it is about validations that the host has failed.
    is_of_host: bool,
}

impl Domains {
    /// Begins an order at the first of these authorities that works and has one left. `unasked`: why DNS could not be asked
    /// before.
    pub(super) async fn order(
        &self,
        domain: DomainRecord,
        host: &HostName,
        allowed: &[usize],
        unasked: Option<String>,
    ) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.client().await? else { return Ok(()) };
        let now = Instant::now();
        let working = self.breakers.working(allowed, now);
        let mut earliest: Option<Wait> = None;
        for authority in &working {
            match self.begin(&domain, host, (acme, client), *authority, unasked.as_deref()).await? {
                Begun::Yes(domain) => return self.go_on(*domain, host).await,
                Begun::NotOwn => return Ok(()),
                Begun::Not(wait) => {
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
        // One that is passed over for its faults may be asked again before that.
        let others = allowed.iter().filter(|authority| !working.contains(authority));
        if let Some(closes) = others.filter_map(|authority| self.breakers.open_for(*authority, now)).min() {
            wait.until = wait.until.min(self.now() + closes);
        }
        self.wait(domain, wait).await
    }

    /// Begins an order at one authority, if it has one left.
    async fn begin(
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
            Ok(Begun::Not(Wait { authority: name.clone(), detail, until, is_of_host }))
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
            self.enter(&mut domain, DomainState::Issuing, &Reason::None {});
        }
        domain.pending = pending.stored();
        Ok(match registry.take_budgets(&budgets, &domain).await? {
            BudgetTaken::Yes => Begun::Yes(Box::new(domain)),
            BudgetTaken::NotOwn => Begun::NotOwn,
            BudgetTaken::Until { budget, at } => {
                let of = budget.split(' ').next().unwrap_or_default();
                return wait(format!("budget of {of}"), at, false);
            }
        })
    }

    /// No authority has an order left: the order waits, and nothing was sent.
    async fn wait(&self, mut domain: DomainRecord, wait: Wait) -> Result<(), DomainsError> {
        let Wait { authority, detail, until, .. } = wait;
        self.metrics.ordered(&authority, "waits");
        let until = schedule::to_second(until);
        let state = if domain.not_after.is_some() { domain.state } else { DomainState::Queued };
        self.enter(&mut domain, state, &Reason::Other(OtherReason::CaLimited { authority, detail, until }));
        domain.next_at = until;
        self.write(&domain, &[]).await
    }
}

/// The words of an authority about its limit, if this host got them.
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
