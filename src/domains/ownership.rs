//! Which tenant has a domain: the one with it in the operator's table, or else the first that proves it. Once another
//! tenant has a proof for long enough and the owner has none, the domain moves.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::error::DomainsError;
use super::reason::{OtherReason, Reason, proof_of};
use super::schedule;
use super::shared::Domains;
use super::transition::Cause;
use crate::dns::{DnsCheck, Finding, Ownership, Proof};
use crate::host::HostName;
use crate::registry::FollowError;
use crate::store::registry::{DomainProof, DomainRecord, DomainState, HostOwner};

/// After how long a claim without a proof ends.
///
/// Larger: names that nobody can prove are looked up for longer. Smaller: an owner who takes days to set a record has to add
/// the domain again.
const CLAIM_LASTS: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How long the row of a domain that a tenant has lost shows why.
const GONE_SHOWN: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How long the proof of a domain that another tenant has proved must have existed.
const CONTEST: SignedDuration = SignedDuration::from_hours(72);

/// Another tenant has it, and no record moves it.
pub(super) const TAKEN: Reason = Reason::Other(OtherReason::Taken { record: None, moves_at: None });

/// No tenant has proved it in time.
const CLAIM_EXPIRED: Reason = Reason::Other(OtherReason::ClaimExpired {});

/// How often a contested domain is checked.
const CONTEST_CHECK: Duration = Duration::from_hours(1);

/// What a tenant may have of a domain that its row is about.
pub(super) enum Entitlement {
    /// The tenant of the row has it, and it has no certificate file.
    Own,
    /// The tenant of the row claims it, and no tenant has proved it.
    Unproved,
    /// The tenant of the row claims it, and another tenant has proved it.
    Contested(String),
    /// The tenant of the row claims it, and another tenant has it in its table.
    OfTable,
    /// This node does not know the change yet.
    NotYet,
    /// The tenant of the row does not want it, or it has a certificate file.
    Unwanted,
}

impl Domains {
    /// What the tenant of a row may have.
    pub(super) async fn entitlement(&self, domain: &DomainRecord, host: &HostName) -> Result<Entitlement, FollowError> {
        let registry = self.registry().await?;
        let (owner, is_registered) = (registry.owner_of(&domain.host).await?, registry.has_tenant(&domain.slug).await?);
        let directory = self.directory.load();
        let served = directory.config_at(host);
        let of_file = served.filter(|tenant| !tenant.origin.is_registered());
        let is_own = |slug: &str| slug == domain.slug;
        let is_owner = of_file.map_or_else(|| owner.as_ref().is_some_and(|it| is_own(&it.slug)), |it| is_own(&it.slug));
        if is_owner {
            return Ok(match served {
                Some(tenant) if !is_own(&tenant.slug) => Entitlement::NotYet,
                None => Entitlement::NotYet,
                Some(_) if self.needs_certificate(&directory, host) => Entitlement::Own,
                Some(_) => Entitlement::Unwanted,
            });
        }
        if !domain.is_added || !is_registered || domain.state == DomainState::Removed {
            return Ok(Entitlement::Unwanted);
        }
        Ok(match owner {
            _ if of_file.is_some() => Entitlement::OfTable,
            Some(HostOwner { is_of_table: true, .. }) => Entitlement::OfTable,
            Some(HostOwner { slug, .. }) => Entitlement::Contested(slug),
            None => Entitlement::Unproved,
        })
    }

    /// Notes which database a tenant has: if another account gets its slug, that account does not get its domains. A
    /// database that can't be opened is read at the next check.
    pub(super) async fn identify(&self, slug: &str) -> Result<(), DomainsError> {
        let directory = self.directory.load_full();
        let Some((tenant, config)) = directory.tenant(slug).zip(directory.config(slug)) else { return Ok(()) };
        if let Ok(store) = tenant.database.store().await {
            let (location, identity) = (config.database_identity(), store.identity().as_str());
            self.registry().await?.note_identity(slug, &location, identity).await?;
        }
        Ok(())
    }

    /// No tenant has proved it: the first that does gets it, however many claim it.
    pub(super) async fn prove(&self, mut domain: DomainRecord, host: &HostName) -> Result<(), DomainsError> {
        let DnsCheck { ownership, finding } = self.check(&domain, host).await;
        let now = self.now();
        domain.checked_at = Some(now);
        note_proof(&mut domain, ownership);
        let is_proved = matches!(ownership, Ownership::Proved(_));
        match finding {
            Finding::Unknown(cause) if !is_proved => self.not_asked(domain, cause).await,
            Finding::Fault(_) if !is_proved && is_expired(&domain, now) => self.lose(domain, &CLAIM_EXPIRED).await,
            Finding::Fault(fault) if !is_proved => {
                domain.proved_since = None;
                self.transition(&mut domain, Cause::Unproved, &Reason::Dns(fault));
                domain.next_at = now + schedule::until_dns_check(domain.since, now);
                self.release(&domain, &[]).await
            }
            finding => {
                domain.proved_since.get_or_insert(now);
                self.take(domain, None, finding).await
            }
        }
    }

    /// The tenant of a row has proved the domain and has it from now on; `from` had it until now. The finding decides whether
    /// it is served.
    async fn take(&self, mut domain: DomainRecord, from: Option<&str>, finding: Finding) -> Result<(), DomainsError> {
        let now = self.now();
        domain.next_at = now;
        match finding {
            Finding::Ready { .. } => self.transition(&mut domain, Cause::Verified, &Reason::None {}),
            Finding::Fault(fault) => self.transition(&mut domain, Cause::Unproved, &Reason::Dns(fault)),
            Finding::Unknown(_) => self.transition(&mut domain, Cause::Proved, &Reason::None {}),
        }
        if self.registry().await?.take_domain(&domain, from, &TAKEN.stored(), now).await? {
            let DomainRecord { host, slug, .. } = &domain;
            match from {
                Some(from) => tracing::warn!(host, from, to = slug, "a proved domain moved to another tenant"),
                None => tracing::info!(tenant = slug, host, "a tenant has proved a domain"),
            }
            self.following.look_soon();
        }
        Ok(())
    }

    /// The tenant of a row does not get it, for a reason that its row shows for a while.
    pub(super) async fn lose(&self, mut domain: DomainRecord, reason: &Reason) -> Result<(), DomainsError> {
        self.transition(&mut domain, Cause::Lost, reason);
        (domain.proved_since, domain.proved_by, domain.pending) = (None, None, None);
        domain.next_at = domain.since + GONE_SHOWN;
        self.release(&domain, &[]).await
    }

    /// Shows why a domain is gone, or forgets it.
    pub(super) async fn show_gone(&self, mut domain: DomainRecord) -> Result<(), DomainsError> {
        if self.now() >= domain.since + GONE_SHOWN {
            self.registry().await?.forget_domain(&domain).await?;
            return Ok(());
        }
        domain.next_at = domain.since + GONE_SHOWN;
        self.release(&domain, &[]).await
    }

    /// Another tenant has proved it: it moves once this tenant's proof has existed for long enough and the owner's is missing.
    pub(super) async fn contest(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        owner: &str,
    ) -> Result<(), DomainsError> {
        let now = self.now();
        let DnsCheck { ownership, finding } = self.check(&domain, host).await;
        domain.checked_at = Some(now);
        note_proof(&mut domain, ownership);
        match ownership {
            Ownership::Proved(_) => {
                domain.proved_since.get_or_insert(now);
            }
            Ownership::Missing => domain.proved_since = None,
            Ownership::Unknown => {}
        }
        if domain.proved_since.is_none() && is_expired(&domain, now) && !matches!(finding, Finding::Unknown(_)) {
            return self.lose(domain, &CLAIM_EXPIRED).await;
        }
        let moves_at = domain.proved_since.map(|since| since + CONTEST);
        let record = proof_of(&domain, &self.config);
        self.transition(&mut domain, Cause::Contested, &Reason::Other(OtherReason::Taken { record, moves_at }));
        domain.next_at = moves_at.map_or(now + CONTEST_CHECK, |at| at.min(now + CONTEST_CHECK));
        if moves_at.is_some_and(|at| at <= now) {
            let rows = self.registry().await?.find_domains(&domain.host).await?;
            let of_owner = match rows.into_iter().find(|row| row.slug == owner) {
                Some(row) => self.check(&row, host).await.ownership,
                None => Ownership::Missing,
            };
            if matches!((ownership, of_owner), (Ownership::Proved(_), Ownership::Missing)) {
                return self.take(domain, Some(owner), finding).await;
            }
            domain.next_at = now + CONTEST_CHECK;
        }
        self.release(&domain, &[]).await
    }
}

/// Notes the proof that a check has found. A check that could not ask DNS changes nothing.
pub(super) fn note_proof(domain: &mut DomainRecord, ownership: Ownership) {
    domain.proved_by = match ownership {
        Ownership::Proved(Proof::OwnLabel) => Some(DomainProof::OwnLabel),
        Ownership::Proved(Proof::Txt) => Some(DomainProof::Txt),
        Ownership::Proved(Proof::NotNeeded) | Ownership::Missing => None,
        Ownership::Unknown => return,
    };
}

/// Whether a claim that is not proved ends.
fn is_expired(domain: &DomainRecord, now: Timestamp) -> bool {
    now >= domain.created_at + CLAIM_LASTS
}
