//! Warnings about certificate chains that are served, and that some clients refuse.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::{GatewayConfig, TenantConfig};
use crate::tenant::certificate::{Roots, concerns, read_chain};

/// The warnings, by file; none where nothing speaks TLS. Files that can't be read are faults already.
pub(super) fn warnings(gateway: Option<&GatewayConfig>, tenants: &[Arc<TenantConfig>]) -> Vec<String> {
    let Some(shared) = gateway.and_then(|gateway| gateway.certificate.as_ref()) else { return Vec::new() };
    let own = tenants.iter().flat_map(|tenant| tenant.certificates.iter().map(|(_, files)| files));
    let files: BTreeSet<&Path> = std::iter::once(shared).chain(own).map(|files| &*files.certificate).collect();
    let (roots, now) = (Roots::of_system(), Timestamp::now());
    let of_file = |file: &Path| {
        let concerns = concerns(&read_chain(file).unwrap_or_default(), &roots, now).into_iter();
        let file = file.display().to_string();
        concerns.map(move |concern| format!("warning: `{file}`: {concern}: {}", concern.remedy()))
    };
    files.into_iter().flat_map(of_file).collect()
}
