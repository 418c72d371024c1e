//! Where a host is whose certificate is obtained: its state, reason and next step, as the registry has them.

use jiff::Timestamp;

use super::Finding;
use crate::certificate;
use crate::config::{Config, DomainsConfig, TenantConfig};
use crate::domains::{Reason, chosen};
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::store::registry::{DomainRecord, DomainState};
use crate::store::{Registry, StoreError, with_causes};

/// Whether a host gets a certificate of its own: no file gives it one. Reads the gateway's certificate.
pub(super) fn is_obtained(config: &Config, tenant: &TenantConfig, host: &HostName) -> bool {
    let gateway = || config.gateway.certificate.as_ref().and_then(|files| certificate::read(files).ok());
    config.gateway.acme.is_some()
        && tenant.certificate(host).is_none()
        && gateway().is_none_or(|gateway| !gateway.names.covers(host))
}

/// Reads the row of a host.
pub(super) async fn find(
    registry: Result<&Registry, &StoreError>,
    config: &Config,
    tenant: &TenantConfig,
    host: &HostName,
    now: Timestamp,
) -> Finding {
    let rows = match registry {
        Ok(registry) => registry.find_domains(host.as_str()).await.map_err(|error| with_causes(&error)),
        Err(error) => Err(with_causes(error)),
    };
    let rows = match rows {
        Ok(rows) => rows,
        Err(cause) => {
            let what = format!("`{host}`: the registry, which has its certificate, can't be read: {cause}");
            return Finding::warns(what, "nodes serve what they have; repair the registry before it expires");
        }
    };
    match rows.into_iter().find(|row| *row.slug == *tenant.slug) {
        Some(row) => of_row(&row, config.gateway.domains.as_ref(), now),
        None => Finding::stops(
            format!("`{host}` has no certificate, and no node has looked at it yet"),
            "start a node with `[gateway.acme]`: it obtains one",
        ),
    }
}

/// The claim to a host that no tenant has proved, if there is one.
pub(super) async fn find_unproved(registry: &Registry, config: &Config, host: &HostName) -> Option<Finding> {
    let row = chosen(registry, host, None).await.ok()??;
    let (reason, state) = (Reason::of(&row, config.gateway.domains.as_ref()), row.state.as_str());
    let what = format!(
        "`{host}` was added to the tenant `{}`, which has not proved it: it is {state}, {}",
        row.slug,
        reason.name()
    );
    Some(Finding::stops(what, reason.next_step()))
}

fn of_row(row: &DomainRecord, domains: Option<&DomainsConfig>, now: Timestamp) -> Finding {
    let (host, state, reason) = (&row.host, row.state.as_str(), Reason::of(row, domains));
    let name = if reason.is_empty() { String::new() } else { format!(", {}", reason.name()) };
    let what = match row.not_after {
        Some(until) => format!("`{host}` is {state}{name}; obtained, until {}", Rfc3339Micros(until)),
        None => format!("`{host}` is {state}{name}; it has no certificate yet"),
    };
    let step = if reason.is_empty() { "nothing to do".to_owned() } else { reason.next_step() };
    match (row.state, row.not_after) {
        (DomainState::Live, Some(until)) if until > now && reason.is_empty() => Finding::passes(what),
        (_, Some(until)) if until > now => Finding::warns(what, step),
        _ => Finding::stops(what, step),
    }
}
