//! Warnings about certificate chains that can be served but that some clients refuse.
//!
//! The concerns themselves belong to [`certificate`]; files that can't be served at all are faults of the
//! configuration.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::certificate::{self, CertificateFiles, Roots};
use crate::config::{GatewayConfig, TenantConfig};

/// The warnings by file; none if no listener uses TLS. Skips invalid pairs, which are already faults.
pub(super) fn warnings(gateway: Option<&GatewayConfig>, tenants: &[Arc<TenantConfig>]) -> Vec<String> {
    let Some(shared) = gateway.and_then(|gateway| gateway.certificate.as_ref()) else { return Vec::new() };
    let own = tenants.iter().flat_map(|tenant| tenant.certificates.iter().map(|(_, files)| files));
    let mut seen = HashSet::new();
    let files = std::iter::once(shared).chain(own).filter(|files| seen.insert(&files.certificate));
    let (roots, now) = (Roots::of_system(), Timestamp::now());
    let of_files = |files: &CertificateFiles| {
        let chain = certificate::read(files).map(|certificate| certificate.key.cert.clone()).unwrap_or_default();
        let file = files.certificate.display().to_string();
        let concerns = certificate::concerns(&chain, &roots, now).into_iter();
        concerns.map(move |concern| format!("warning: `{file}`: {concern}: {}", concern.remedy()))
    };
    files.flat_map(of_files).collect()
}
