//! A domain as JSON: what the operator API and `formgate domain … --json` show.

use serde_json::{Value, json};

use super::reason::{Reason, proof_of};
use crate::config::DomainsConfig;
use crate::dns::Record;
use crate::instant::Rfc3339Micros;
use crate::store::registry::{DomainRecord, DomainState, RegistryEvent};

/// Where a host comes from: it was added as a domain, or the table of its tenant lists it.
const ADDED: &str = "domain";
const TABLE: &str = "table";

/// A domain: one state, one reason, one next step.
#[must_use]
pub fn describe(domain: &DomainRecord, config: &DomainsConfig) -> Value {
    let reason = Reason::of(domain, Some(config));
    let is_sound = reason.is_empty();
    json!({
        "host": domain.host,
        "tenant": domain.slug,
        "owner": if domain.is_added { ADDED } else { TABLE },
        "state": domain.state.as_str(),
        "reason": if is_sound { Value::Null } else { reason.name().into() },
        "next_step": if is_sound { Value::Null } else { reason.next_step().into() },
        "records": reason.records().iter().map(record).collect::<Vec<_>>(),
        "proof": proof_of(domain, config).as_ref().map(record),
        "since": Rfc3339Micros(domain.since),
        "checked_at": domain.checked_at.map(Rfc3339Micros),
        "next_check_at": (domain.state != DomainState::Gone).then_some(Rfc3339Micros(domain.next_at)),
        "expires_at": domain.not_after.map(Rfc3339Micros),
        "renew_at": domain.renew_at.map(Rfc3339Micros),
    })
}

/// A host of a table that has no row: it has a certificate file, or no node has created its row yet.
#[must_use]
pub fn describe_unwatched(host: &str, slug: &str) -> Value {
    json!({
        "host": host,
        "tenant": slug,
        "owner": TABLE,
        "state": Value::Null,
        "reason": Value::Null,
        "next_step": Value::Null,
        "records": [],
        "proof": Value::Null,
        "since": Value::Null,
        "checked_at": Value::Null,
        "next_check_at": Value::Null,
        "expires_at": Value::Null,
        "renew_at": Value::Null,
    })
}

/// An event of the change feed.
#[must_use]
pub fn describe_event(event: &RegistryEvent) -> Value {
    let detail: Value = serde_json::from_str(&event.detail).unwrap_or_default();
    json!({
        "revision": event.revision,
        "slug": event.slug,
        "type": event.kind,
        "host": event.host,
        "domain": detail,
        "at": Rfc3339Micros(event.at),
    })
}

fn record(record: &Record) -> Value {
    json!({
        "action": record.action,
        "type": record.kind.as_str(),
        "name": record.name,
        "relative_name": record.relative,
        "value": record.value,
    })
}

/// The value of the TXT record that proves a new claim.
#[must_use]
pub fn new_proof() -> String {
    format!("formgate-{:032x}", rand::random::<u128>())
}
