//! The folders that a running gateway watches for changes of its configuration and certificates.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::{GatewayConfig, TenantConfig};

/// The folders in which a change of a file matters. Folders and not files: a file is replaced by a rename more often than
/// it is written to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFolders {
    /// Of the configuration, and of what it includes.
    pub configuration: BTreeSet<PathBuf>,
    /// Folders of certificates, up to a limit.
    pub certificates: BTreeSet<PathBuf>,
}

/// How many folders of certificates are watched. Each costs the kernel a kilobyte and one of the watches that a user may
/// have, which are 8,192 on small machines. With fewer, more renewals are noticed only when their host is next asked for.
const MAX_CERTIFICATE_FOLDERS: usize = 256;

impl WatchedFolders {
    pub(super) fn of(
        configuration: BTreeSet<PathBuf>,
        gateway: Option<&GatewayConfig>,
        tenants: &[Arc<TenantConfig>],
    ) -> Self {
        let own = tenants.iter().flat_map(|tenant| tenant.certificates.iter().map(|(_, files)| files));
        let files = gateway.and_then(|gateway| gateway.certificate.as_ref()).into_iter().chain(own);
        let mut certificates = BTreeSet::new();
        for folder in files.flat_map(|files| [&files.certificate, &files.private_key]).filter_map(|file| file.parent())
        {
            if certificates.len() < MAX_CERTIFICATE_FOLDERS && !certificates.contains(folder) {
                certificates.insert(folder.to_owned());
            }
        }
        Self { configuration, certificates }
    }
}
