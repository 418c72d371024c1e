//! Adds a domain to a tenant, and waits for its first check: for the operator API and for commands alike.
//!
//! [`crate::registry::editing`] has validated the host. Here the registry decides which tenant gets it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::described::new_proof;
use super::reason::{OtherReason, Reason, proof_record};
use crate::host::HostName;
use crate::store::registry::{AskedCheck, DomainAdded, DomainRecord, DomainState, Requester, WriteRefused};
use crate::store::{AuditEntry, Registry, StoreError};

/// How often a domain is read while its check is awaited.
///
/// Larger: responses come later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The outcome of adding a domain.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Which tenant has it.
    pub claim: DomainClaim,
    /// The row of the domain and the tenant, if there is one.
    pub domain: Option<DomainRecord>,
    /// Whether the tenant did not claim it before.
    pub is_new: bool,
    /// Its first check, for [`await_check`].
    pub first_look: AskedCheck,
}

/// Which tenant has a domain that was to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainClaim {
    /// It is new, and has to be proved. The tenant is at this revision.
    Added(i64),
    /// The tenant had it already, at this revision.
    Same(i64),
    /// Another tenant has proved it, and has it until a proof moves it.
    Contested,
    /// Another tenant has it in its table, where no proof moves it.
    Taken {
        /// Which tenant has it.
        owner: String,
    },
    /// There is no such tenant in the registry.
    UnknownTenant,
}

/// What the audit log of a tenant says about a domain that was added. `is_contested`: another tenant has proved it.
#[must_use]
pub fn entry_of_added(host: &HostName, is_contested: bool) -> AuditEntry {
    let details = if is_contested { json!({ "contested": true }) } else { json!({}) };
    AuditEntry { action: "domain.added", subject: format!("domain {host}"), details }
}

/// What it says about one that was removed.
#[must_use]
pub fn entry_of_removed(host: &HostName) -> AuditEntry {
    AuditEntry { action: "domain.removed", subject: format!("domain {host}"), details: json!({}) }
}

/// Adds a domain to a tenant for the operator.
///
/// # Errors
/// [`WriteRefused::Store`].
pub async fn claim(registry: &Registry, slug: &str, host: &HostName) -> Result<Claimed, WriteRefused> {
    let before = find(registry, host, slug).await?;
    let now = Timestamp::now();
    let added = registry.add_domain(slug, host.as_str(), &new_proof(), now, Requester::Operator).await?;
    let mut domain = find(registry, host, slug).await?;
    let claim = match added {
        DomainAdded::Added(revision) => DomainClaim::Added(revision),
        DomainAdded::Same => match registry.find(slug).await? {
            Some(row) => DomainClaim::Same(row.revision),
            None => DomainClaim::UnknownTenant,
        },
        DomainAdded::Contested { .. } => {
            domain.as_mut().into_iter().for_each(contest);
            DomainClaim::Contested
        }
        DomainAdded::Taken { owner } => DomainClaim::Taken { owner },
        DomainAdded::UnknownTenant => DomainClaim::UnknownTenant,
    };
    let is_there = |row: &DomainRecord| row.is_added && !matches!(row.state, DomainState::Gone | DomainState::Removed);
    let is_new = match &claim {
        DomainClaim::Added(_) => true,
        DomainClaim::Contested => !before.as_ref().is_some_and(is_there),
        DomainClaim::Same(_) | DomainClaim::Taken { .. } | DomainClaim::UnknownTenant => false,
    };
    let first_look = AskedCheck::after(before.and_then(|before| before.checked_at));
    Ok(Claimed { claim, domain, is_new, first_look })
}

/// What a check of a contested domain will find, before the first check.
fn contest(domain: &mut DomainRecord) {
    if Reason::read(&domain.reason).is_empty() {
        let record = proof_record(&domain.host, &domain.proof);
        domain.reason = Reason::Other(OtherReason::Taken { record: Some(record), moves_at: None }).stored();
    }
}

async fn find(registry: &Registry, host: &HostName, slug: &str) -> Result<Option<DomainRecord>, StoreError> {
    let rows = registry.find_domains(host.as_str()).await?;
    Ok(rows.into_iter().find(|row| row.slug == slug))
}

/// The row of a host: that of a tenant, or else that of the owner, or else the oldest. `None` if it was removed.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn chosen(
    registry: &Registry,
    host: &HostName,
    slug: Option<&str>,
) -> Result<Option<DomainRecord>, StoreError> {
    let mut rows = registry.find_domains(host.as_str()).await?;
    rows.retain(|row| row.state != DomainState::Removed && slug.is_none_or(|slug| row.slug == slug));
    let owner = registry.owner_of(host.as_str()).await?;
    let is_owner = |row: &DomainRecord| owner.as_ref().is_some_and(|owner| owner.slug == row.slug);
    let found = rows.into_iter().min_by_key(|row| (!is_owner(row), row.state == DomainState::Gone));
    let contests = |row: &DomainRecord| row.is_added && owner.is_some() && !is_owner(row);
    Ok(found.map(|mut row| {
        if contests(&row) {
            contest(&mut row);
        }
        row
    }))
}

/// Waits until a check is done, or at most for a time. Returns the row of the domain, if it still exists, and whether it was
/// checked.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn await_check(
    registry: &Registry,
    host: &HostName,
    slug: &str,
    check: AskedCheck,
    wait: Duration,
) -> Result<(Option<DomainRecord>, bool), StoreError> {
    let deadline = Instant::now() + wait;
    loop {
        let row = chosen(registry, host, Some(slug)).await?;
        let is_looked_at = row.as_ref().is_none_or(|row| check.is_done(row));
        if is_looked_at || Instant::now() >= deadline {
            return Ok((row, is_looked_at));
        }
        sleep(LOOK_INTERVAL).await;
    }
}
