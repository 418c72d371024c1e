//! The states of a domain, and what moves it from one to another.
//!
//! Every state that a node writes comes from this table; a test compares it with [`Cause::state`]. A dash: the state
//! stays.
//!
//! | cause | without a certificate | with a certificate |
//! | --- | --- | --- |
//! | `Returned` | `claimed` | `claimed` |
//! | `Contested` | `claimed` | `claimed` |
//! | `Proved` | `claimed` | `claimed` |
//! | `Unproved` | `dns` | `dns` |
//! | `WrongRecords` | `dns` | `failing` |
//! | `Verified` | `verified` | `verified` |
//! | `Ready` | `live` | `live` |
//! | `Unasked` | – | – |
//! | `OrderBegun` | `issuing` | – |
//! | `OrderWaits` | `queued` | – |
//! | `OrderFailed` | `queued` | – |
//! | `HostFailed` | `queued` | `failing` |
//! | `Issued` | `live` | `live` |
//! | `Lost` | `gone` | `gone` |
//! | `Unwanted` | `removed` | `removed` |
//!
//! A domain whose certificate has expired is `failing` wherever the table says `live`
//! ([`DomainState::with_certificate`]). The registry changes states without a node when a person or the operator decides:
//! a new claim is `claimed`, a domain that was deleted is `removed`, as all of a tenant that was removed, and claims of
//! others are `gone` once a tenant has proved a domain (`store::registry::claiming` and `writing`).

use serde_json::json;

use super::error::DomainsError;
use super::reason::Reason;
use super::shared::Domains;
use crate::instant::Rfc3339Micros;
use crate::store::registry::{DomainEvent, DomainRecord, DomainState, Lease};

/// What moves a domain to another state, or gives its state another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A tenant wants it again after it was removed.
    Returned,
    /// Another tenant has proved it.
    Contested,
    /// Its tenant has proved it, and what its records are is not known.
    Proved,
    /// No tenant has proved it, or its records were wrong when it was proved.
    Unproved,
    /// Its owner has to change records.
    WrongRecords,
    /// Its records are right, and it has no certificate yet, or gets none.
    Verified,
    /// Its records are right, and its certificate can be renewed.
    Ready,
    /// DNS was unreachable.
    Unasked,
    /// A certificate is ordered.
    OrderBegun,
    /// No CA has an order left.
    OrderWaits,
    /// An order failed, and not by a fault of the host.
    OrderFailed,
    /// An order failed by a fault of the host.
    HostFailed,
    /// A CA has issued a certificate.
    Issued,
    /// Another tenant gets it, or its claim has expired.
    Lost,
    /// No tenant wants it, or a file has its certificate.
    Unwanted,
}

impl Cause {
    /// The state after it.
    fn state(self, before: DomainState, has_certificate: bool) -> DomainState {
        match (self, has_certificate) {
            (Self::Returned | Self::Contested | Self::Proved, _) => DomainState::Claimed,
            (Self::Unproved, _) | (Self::WrongRecords, false) => DomainState::Dns,
            (Self::WrongRecords | Self::HostFailed, true) => DomainState::Failing,
            (Self::Verified, _) => DomainState::Verified,
            (Self::Ready | Self::Issued, _) => DomainState::Live,
            (Self::OrderBegun, false) => DomainState::Issuing,
            (Self::OrderWaits | Self::OrderFailed | Self::HostFailed, false) => DomainState::Queued,
            (Self::Unasked, _) | (Self::OrderBegun | Self::OrderWaits | Self::OrderFailed, true) => before,
            (Self::Lost, _) => DomainState::Gone,
            (Self::Unwanted, _) => DomainState::Removed,
        }
    }
}

impl Domains {
    /// Moves a row to the state after a cause, with a reason, and logs it if either is new.
    pub(super) fn transition(&self, domain: &mut DomainRecord, cause: Cause, reason: &Reason) {
        let before = Reason::read(&domain.reason);
        let state =
            cause.state(domain.state, domain.not_after.is_some()).with_certificate(domain.not_after, self.now());
        if domain.state != state {
            domain.since = self.now();
        }
        if domain.state != state || before.name() != reason.name() {
            let DomainRecord { host, slug, .. } = &*domain;
            let (reason, next_step) = (reason.name(), reason.next_step());
            let state = state.as_str();
            if reason.is_empty() {
                tracing::info!(tenant = slug, host, state, "domain changed state");
            } else {
                tracing::warn!(tenant = slug, host, state, reason, next_step, "domain changed state");
            }
        }
        domain.state = state;
        domain.reason = reason.stored();
    }

    /// Writes a row and ends its lease.
    pub(super) async fn release(&self, domain: &DomainRecord, events: &[DomainEvent]) -> Result<(), DomainsError> {
        let registry = self.registry().await?;
        if !registry.write_domain(domain, Lease::End, events).await? {
            tracing::debug!(host = domain.host, "another node has taken over the domain");
        }
        Ok(())
    }
}

/// An event of a domain, with its state and reason.
pub(super) fn event(kind: &'static str, domain: &DomainRecord) -> DomainEvent {
    let reason = Reason::of(domain, None);
    let not_after = domain.not_after.map(Rfc3339Micros);
    let detail = json!({
        "state": domain.state.as_str(),
        "reason": reason.name(),
        "next_step": reason.next_step(),
        "expires_at": not_after,
    });
    DomainEvent { kind, detail: detail.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSES: [Cause; 15] = [
        Cause::Returned,
        Cause::Contested,
        Cause::Proved,
        Cause::Unproved,
        Cause::WrongRecords,
        Cause::Verified,
        Cause::Ready,
        Cause::Unasked,
        Cause::OrderBegun,
        Cause::OrderWaits,
        Cause::OrderFailed,
        Cause::HostFailed,
        Cause::Issued,
        Cause::Lost,
        Cause::Unwanted,
    ];

    #[test]
    fn the_table_says_what_each_cause_does_to_each_state() {
        let cell = |text: &str| text.trim().trim_matches('`').to_owned();
        let rows = include_str!("transition.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
        let rows: Vec<Vec<String>> = rows.map(|row| row.split('|').map(cell).collect()).collect();
        assert_eq!(rows.len(), CAUSES.len());
        for (row, cause) in rows.iter().zip(CAUSES) {
            assert_eq!(row[0], format!("{cause:?}"));
            for (expected, has_certificate) in row[1..].iter().zip([false, true]) {
                for before in DomainState::ALL {
                    let expected = if expected == "–" { before.as_str() } else { expected };
                    assert_eq!(cause.state(before, has_certificate).as_str(), expected, "{cause:?} {before:?}");
                }
            }
        }
    }
}
