//! What becomes of a domain: one step of its life, under a lease.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::ownership::{Standing, TAKEN, note_proof};
use super::reason::{OtherReason, Reason, own_label, records_to_set};
use super::renewal::Ask;
use super::{Domains, DomainsError, schedule};
use crate::dns::{DnsFault, Finding, Issuer, Look, Question};
use crate::host::HostName;
use crate::store::registry::{DomainEvent, DomainRecord, DomainState, Lease};

/// How long a removed domain keeps its row and its certificate, so that one that comes back is served at once.
///
/// Larger: keys of domains that are gone are kept for longer. Smaller: a mistake costs a certificate.
const KEPT: SignedDuration = SignedDuration::from_hours(24);

/// When a tenant has a domain that this node does not serve yet.
const NOT_YET: Duration = Duration::from_secs(1);

/// What follows a look: it may take minutes, and nobody waits for it.
pub(super) enum Next {
    /// Nothing. The row was written.
    Nothing,
    /// The order of the row goes on.
    GoOn(DomainRecord, HostName),
    /// An order, at one of these authorities. With why DNS could not be asked before it.
    Order(DomainRecord, HostName, Vec<usize>, Option<String>),
}

impl Domains {
    /// Does what follows a look.
    pub(super) async fn follow(&self, next: Next) -> Result<(), DomainsError> {
        match next {
            Next::Nothing => Ok(()),
            Next::GoOn(domain, host) => self.go_on(domain, &host).await,
            Next::Order(domain, host, allowed, unasked) => self.order(domain, &host, &allowed, unasked).await,
        }
    }

    /// Looks at a row, and walks it as far as that goes now. A write that comes too late is no error: another node goes on.
    pub(super) async fn look_at(&self, mut domain: DomainRecord) -> Result<Next, DomainsError> {
        let Ok(host) = HostName::parse(&domain.host) else { return nothing(self.remove(domain).await) };
        if domain.has_lapsed && !self.note_lapse(&mut domain).await? {
            return Ok(Next::Nothing);
        }
        if domain.state == DomainState::Gone && domain.is_added {
            return nothing(self.show_gone(domain).await);
        }
        match self.standing(&domain, &host).await? {
            Standing::Own => {}
            Standing::Unproved => return nothing(self.prove(domain, &host).await),
            Standing::Contested(owner) => return nothing(self.contest(domain, &host, &owner).await),
            Standing::OfTable => return nothing(self.lose(domain, &TAKEN).await),
            Standing::NotYet => {
                domain.next_at = self.now() + NOT_YET;
                return nothing(self.write(&domain, &[]).await);
            }
            Standing::Unwanted => return nothing(self.remove(domain).await),
        }
        if domain.is_added && !domain.is_identified {
            self.identify(&domain.slug).await?;
        }
        if domain.state == DomainState::Removed {
            self.enter(&mut domain, DomainState::Claimed, &Reason::None {});
        }
        if domain.pending.is_some() {
            return Ok(Next::GoOn(domain, host));
        }
        let Look { ownership, finding } = self.look(&domain, &host).await;
        let now = self.now();
        domain.checked_at = Some(now);
        note_proof(&mut domain, ownership);
        let is_due = domain.not_after.is_some() && domain.renew_at.is_none_or(|at| at <= now);
        match finding {
            Finding::Ready { issuers } if self.acme.is_some() && (is_due || domain.not_after.is_none()) => {
                Ok(Next::Order(domain, host, issuers, None))
            }
            Finding::Ready { .. } => nothing(self.ready(domain, &host).await),
            Finding::Unknown(cause) if is_due => Ok(Next::Order(domain, host, self.authorities(), Some(cause))),
            Finding::Unknown(cause) => nothing(self.not_asked(domain, cause).await),
            Finding::Fault(fault) => {
                let is_hopeless = matches!(fault, DnsFault::ProofMissing { .. } | DnsFault::Caa { .. });
                if is_due && !is_hopeless && domain.failures == 0 {
                    // The authority may see it otherwise: behind a CDN, a challenge can come through.
                    return Ok(Next::Order(domain, host, self.authorities(), None));
                }
                nothing(self.fault(domain, fault).await)
            }
        }
    }

    /// The certificate of a live domain has expired. Returns whether the lease is still its own.
    async fn note_lapse(&self, domain: &mut DomainRecord) -> Result<bool, DomainsError> {
        domain.has_lapsed = false;
        domain.since = domain.not_after.unwrap_or(domain.since);
        let DomainRecord { host, slug, .. } = &*domain;
        let (state, next_step) = (domain.state.as_str(), Reason::of(domain, None).next_step());
        tracing::warn!(tenant = slug, host, state, reason = "expired", next_step, "domain");
        let events = [event("domain.failing", domain)];
        Ok(self.registry().await?.write_domain(domain, Lease::Keep, &events).await?)
    }

    /// All authorities.
    fn authorities(&self) -> Vec<usize> {
        (0..self.acme.as_ref().map_or(0, |acme| acme.requests.authorities.len())).collect()
    }

    pub(super) async fn look(&self, domain: &DomainRecord, host: &HostName) -> Look {
        let label = own_label(domain, &self.config);
        let (mut issuers, mut methods) = (Vec::new(), Vec::new());
        if let Some(acme) = &self.acme {
            let named = |name: &Option<String>| name.as_deref().map_or_else(Default::default, ToOwned::to_owned);
            issuers.extend(acme.requests.authorities.iter().map(|authority| named(&authority.issuer)));
            methods.extend(acme.requests.challenges.iter().map(|kind| kind.as_str()));
        } else {
            issuers.push(String::new());
        }
        let issuers: Vec<_> = issuers.iter().map(|name| Issuer { name, ..Issuer::default() }).collect();
        let needs_proof = domain.is_added && !self.config.owns(host);
        let began = Instant::now();
        let look = self
            .dns
            .look(&Question {
                host,
                own_label: label.as_ref(),
                target: self.config.target.as_ref(),
                addresses: &self.config.addresses,
                proof: needs_proof.then_some(domain.proof.as_str()),
                issuers: &issuers,
                methods: &methods,
            })
            .await;
        self.metrics.looked(began.elapsed());
        look
    }

    /// Its records are right, and nothing has to be ordered.
    async fn ready(&self, mut domain: DomainRecord, host: &HostName) -> Result<(), DomainsError> {
        if self.acme.is_none() {
            self.enter(&mut domain, DomainState::Verified, &Reason::None {});
            domain.next_at = self.now() + schedule::LIVE_LOOK;
            return self.write(&domain, &[]).await;
        }
        let was_failing = domain.state == DomainState::Failing;
        // A renewal that fails is not mended by records that are right.
        if domain.failures == 0 {
            self.enter(&mut domain, DomainState::Live, &Reason::None {});
        }
        let is_live = was_failing && domain.state == DomainState::Live;
        let mut events: Vec<_> = is_live.then(|| event("domain.live", &domain)).into_iter().collect();
        events.extend(self.plan_renewal(&mut domain, host, Ask::Authority).await?);
        self.write(&domain, &events).await
    }

    /// DNS could not be asked: its state stays, and so does what an authority said about its renewal.
    pub(super) async fn not_asked(&self, mut domain: DomainRecord, detail: String) -> Result<(), DomainsError> {
        let until = schedule::to_second(self.now() + schedule::ASK_AGAIN);
        domain.next_at = until;
        if domain.not_after.is_none() || domain.failures == 0 {
            let state = domain.state;
            let records = match state {
                DomainState::Claimed | DomainState::Dns => {
                    records_to_set(&domain.host, own_label(&domain, &self.config).as_ref(), &self.config)
                }
                _ => Vec::new(),
            };
            let reason = Reason::Other(OtherReason::DnsDown { detail, until, records });
            self.enter(&mut domain, state, &reason);
        }
        self.write(&domain, &[]).await
    }

    /// Its owner has to change records.
    async fn fault(&self, mut domain: DomainRecord, fault: DnsFault) -> Result<(), DomainsError> {
        let now = self.now();
        let reason = Reason::Dns(fault);
        if domain.not_after.is_none() {
            self.enter(&mut domain, DomainState::Dns, &reason);
            domain.next_at = now + schedule::dns_look(domain.since, now);
            return self.write(&domain, &[]).await;
        }
        let is_new = domain.state != DomainState::Failing;
        self.enter(&mut domain, DomainState::Failing, &reason);
        domain.next_at = now + schedule::FAILING_LOOK;
        // Records that are right are followed by an order at once.
        domain.failures = domain.failures.min(1);
        let events: Vec<_> = is_new.then(|| event("domain.failing", &domain)).into_iter().collect();
        self.write(&domain, &events).await
    }

    /// The tenant of the row does not want it, or a file gives it a certificate.
    async fn remove(&self, mut domain: DomainRecord) -> Result<(), DomainsError> {
        let now = self.now();
        let registry = self.registry().await?;
        let is_over = domain.state == DomainState::Removed && now >= domain.since + KEPT;
        // A tenant that was removed has its domains again when it comes back.
        let is_remembered = domain.is_added && domain.proved_since.is_some();
        if is_over && (!is_remembered || registry.has_tenant(&domain.slug).await?) {
            registry.forget_domain(&domain).await?;
            return Ok(());
        }
        self.enter(&mut domain, DomainState::Removed, &Reason::None {});
        domain.pending = None;
        domain.next_at = if is_over { now + KEPT } else { domain.since + KEPT };
        if is_over && domain.not_after.is_some() {
            registry.forget_certificate(&domain).await?;
            return Ok(());
        }
        self.write(&domain, &[]).await
    }

    /// Decides when a domain with a certificate is looked at next, and when it is renewed. Returns the event that this is
    /// late, the first time.
    pub(super) async fn plan_renewal(
        &self,
        domain: &mut DomainRecord,
        host: &HostName,
        ask: Ask,
    ) -> Result<Option<DomainEvent>, DomainsError> {
        let now = self.now();
        let mut next = now + schedule::LIVE_LOOK;
        let mut late = None;
        if let Some(dates) = self.renewal_dates(domain, host, ask).await? {
            domain.renew_at = Some(dates.renew_at);
            next = next.min(dates.renew_at).min(dates.ask_again);
            if now < dates.late_at {
                next = next.min(dates.late_at);
            } else if !domain.is_late {
                domain.is_late = true;
                late = Some(event("certificate.renewal_late", domain));
            }
        }
        // A renewal that failed waits for its next try.
        domain.next_at = if domain.failures > 0 { now + schedule::back_off(domain.failures) } else { next };
        Ok(late)
    }

    /// Moves a row to a state and a reason, and logs it if they are new.
    pub(super) fn enter(&self, domain: &mut DomainRecord, state: DomainState, reason: &Reason) {
        let before = Reason::read(&domain.reason);
        let state = state.with_certificate(domain.not_after, self.now());
        if domain.state != state {
            domain.since = self.now();
        }
        if domain.state != state || before.name() != reason.name() {
            let DomainRecord { host, slug, .. } = &*domain;
            let (reason, next_step) = (reason.name(), reason.next_step());
            let state = state.as_str();
            if reason.is_empty() {
                tracing::info!(tenant = slug, host, state, "domain");
            } else {
                tracing::warn!(tenant = slug, host, state, reason, next_step, "domain");
            }
        }
        domain.state = state;
        domain.reason = reason.stored();
    }

    /// Writes a row and ends its lease.
    pub(super) async fn write(&self, domain: &DomainRecord, events: &[DomainEvent]) -> Result<(), DomainsError> {
        let registry = self.registry().await?;
        if !registry.write_domain(domain, Lease::End, events).await? {
            tracing::debug!(host = domain.host, "another node goes on with the domain");
        }
        Ok(())
    }
}

/// A look that nothing follows.
fn nothing(written: Result<(), DomainsError>) -> Result<Next, DomainsError> {
    written.map(|()| Next::Nothing)
}

/// An event of a domain, with its state and reason.
pub(super) fn event(kind: &'static str, domain: &DomainRecord) -> DomainEvent {
    let reason = Reason::of(domain, None);
    let not_after: Option<Timestamp> = domain.not_after;
    let detail = json!({
        "state": domain.state.as_str(),
        "reason": reason.name(),
        "next_step": reason.next_step(),
        "expires_at": not_after,
    });
    DomainEvent { kind, detail: detail.to_string() }
}
