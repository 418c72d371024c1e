//! Advances a domain by one step of its life, under a lease.

use std::time::Duration;

use jiff::SignedDuration;

use super::error::DomainsError;
use super::ownership::{Entitlement, TAKEN, note_proof};
use super::reason::Reason;
use super::renewal::Ask;
use super::schedule;
use super::shared::Domains;
use super::transition::{Cause, event};
use crate::dns::{DnsCheck, DnsFault, Finding};
use crate::host::HostName;
use crate::store::registry::{DomainRecord, DomainState, Lease};

/// How long a removed domain keeps its row and its certificate, so that it is served at once if it returns.
///
/// Larger: keys of removed domains are kept for longer. Smaller: a mistake costs a certificate.
const KEPT: SignedDuration = SignedDuration::from_hours(24);

/// How long until a domain is checked again that its tenant has and this node does not serve yet.
const NOT_YET: Duration = Duration::from_secs(1);

/// The steps after a check. They may take minutes, and no caller waits for them.
pub(super) enum Next {
    /// Nothing. The row was written.
    Done,
    /// The pending order of the row is resumed.
    Resume(DomainRecord, HostName),
    /// An order, at one of these CAs. With why DNS was unreachable before it.
    Order(DomainRecord, HostName, Vec<usize>, Option<String>),
}

impl Domains {
    /// Does what follows a check.
    pub(super) async fn proceed(&self, next: Next) -> Result<(), DomainsError> {
        match next {
            Next::Done => Ok(()),
            Next::Resume(domain, host) => self.resume_order(domain, &host).await,
            Next::Order(domain, host, allowed, unasked) => self.begin_order(domain, &host, &allowed, unasked).await,
        }
    }

    /// Advances a domain as far as possible now. Losing the lease is not an error: another node continues.
    pub(super) async fn advance(&self, mut domain: DomainRecord) -> Result<Next, DomainsError> {
        let Ok(host) = HostName::parse(&domain.host) else { return done(self.remove(domain).await) };
        if domain.has_lapsed && !self.note_lapse(&mut domain).await? {
            return Ok(Next::Done);
        }
        if domain.state == DomainState::Gone && domain.is_added {
            return done(self.show_gone(domain).await);
        }
        match self.entitlement(&domain, &host).await? {
            Entitlement::Own => {}
            Entitlement::Unproved => return done(self.prove(domain, &host).await),
            Entitlement::Contested(owner) => return done(self.contest(domain, &host, &owner).await),
            Entitlement::OfTable => return done(self.lose(domain, &TAKEN).await),
            Entitlement::NotYet => {
                domain.next_at = self.now() + NOT_YET;
                return done(self.release(&domain, &[]).await);
            }
            Entitlement::Unwanted => return done(self.remove(domain).await),
        }
        if domain.is_added && !domain.is_identified {
            self.identify(&domain.slug).await?;
        }
        if domain.state == DomainState::Removed {
            self.transition(&mut domain, Cause::Returned, &Reason::None {});
        }
        if domain.pending.is_some() {
            return Ok(Next::Resume(domain, host));
        }
        let DnsCheck { ownership, finding } = self.check(&domain, &host).await;
        let now = self.now();
        domain.checked_at = Some(now);
        note_proof(&mut domain, ownership);
        let is_due = domain.not_after.is_some() && domain.renew_at.is_none_or(|at| at <= now);
        match finding {
            Finding::Ready { issuers } if self.acme.is_some() && (is_due || domain.not_after.is_none()) => {
                Ok(Next::Order(domain, host, issuers, None))
            }
            Finding::Ready { .. } => done(self.ready(domain, &host).await),
            Finding::Unknown(cause) if is_due => Ok(Next::Order(domain, host, self.all_cas(), Some(cause))),
            Finding::Unknown(cause) => done(self.not_asked(domain, cause).await),
            Finding::Fault(fault) => {
                let is_hopeless = matches!(fault, DnsFault::ProofMissing { .. } | DnsFault::Caa { .. });
                if is_due && !is_hopeless && domain.failures == 0 {
                    // The CA may see it otherwise: a CDN may pass a challenge through.
                    return Ok(Next::Order(domain, host, self.all_cas(), None));
                }
                done(self.fault(domain, fault).await)
            }
        }
    }

    /// The certificate of a live domain has expired. Returns whether this node still has the lease.
    async fn note_lapse(&self, domain: &mut DomainRecord) -> Result<bool, DomainsError> {
        domain.has_lapsed = false;
        domain.since = domain.not_after.unwrap_or(domain.since);
        let DomainRecord { host, slug, .. } = &*domain;
        let (state, next_step) = (domain.state.as_str(), Reason::of(domain, None).next_step());
        tracing::warn!(tenant = slug, host, state, reason = "expired", next_step, "domain changed state");
        let events = [event("domain.failing", domain)];
        Ok(self.registry().await?.write_domain(domain, Lease::Keep, &events).await?)
    }

    /// All CAs.
    fn all_cas(&self) -> Vec<usize> {
        (0..self.acme.as_ref().map_or(0, |acme| acme.requests.authorities.len())).collect()
    }

    /// Its records are right, and nothing has to be ordered.
    async fn ready(&self, mut domain: DomainRecord, host: &HostName) -> Result<(), DomainsError> {
        if self.acme.is_none() {
            self.transition(&mut domain, Cause::Verified, &Reason::None {});
            domain.next_at = self.now() + schedule::LIVE_CHECK;
            return self.release(&domain, &[]).await;
        }
        let was_failing = domain.state == DomainState::Failing;
        // Correct records alone do not clear a failed renewal.
        if domain.failures == 0 {
            self.transition(&mut domain, Cause::Ready, &Reason::None {});
        }
        let is_live = was_failing && domain.state == DomainState::Live;
        let mut events: Vec<_> = is_live.then(|| event("domain.live", &domain)).into_iter().collect();
        events.extend(self.plan_renewal(&mut domain, host, Ask::Ca).await?);
        self.release(&domain, &events).await
    }

    /// Its owner has to change records.
    async fn fault(&self, mut domain: DomainRecord, fault: DnsFault) -> Result<(), DomainsError> {
        let now = self.now();
        let reason = Reason::Dns(fault);
        if domain.not_after.is_none() {
            self.transition(&mut domain, Cause::WrongRecords, &reason);
            domain.next_at = now + schedule::until_dns_check(domain.since, now);
            return self.release(&domain, &[]).await;
        }
        let is_new = domain.state != DomainState::Failing;
        self.transition(&mut domain, Cause::WrongRecords, &reason);
        domain.next_at = now + schedule::FAILING_CHECK;
        // Once the records are right, the next order begins at once.
        domain.failures = domain.failures.min(1);
        let events: Vec<_> = is_new.then(|| event("domain.failing", &domain)).into_iter().collect();
        self.release(&domain, &events).await
    }

    /// The tenant of the row does not want it, or it has a certificate file.
    async fn remove(&self, mut domain: DomainRecord) -> Result<(), DomainsError> {
        let now = self.now();
        let registry = self.registry().await?;
        let is_over = domain.state == DomainState::Removed && now >= domain.since + KEPT;
        // A tenant that returns after it was removed has its domains again.
        let is_remembered = domain.is_added && domain.proved_since.is_some();
        if is_over && (!is_remembered || registry.has_tenant(&domain.slug).await?) {
            registry.forget_domain(&domain).await?;
            return Ok(());
        }
        self.transition(&mut domain, Cause::Unwanted, &Reason::None {});
        domain.pending = None;
        domain.next_at = if is_over { now + KEPT } else { domain.since + KEPT };
        if is_over && domain.not_after.is_some() {
            registry.forget_certificate(&domain).await?;
            return Ok(());
        }
        self.release(&domain, &[]).await
    }
}

/// A check that nothing follows.
fn done(written: Result<(), DomainsError>) -> Result<Next, DomainsError> {
    written.map(|()| Next::Done)
}
