//! The folders that a running gateway watches for changes of its configuration and certificates.
//!
//! Owns which folders these are; `gateway` watches them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::{GatewayConfig, TenantConfig};

/// The folders in which a change of a file matters. Watches folders, not files: files are more often replaced by a
/// rename than written in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFolders {
    /// Folders of the configuration files, included ones too.
    pub configuration: BTreeSet<PathBuf>,
    /// Folders of certificates, up to a limit.
    pub certificates: BTreeSet<PathBuf>,
}

/// The maximum number of watched certificate folders. Larger: each costs the kernel a kilobyte and one inotify watch,
/// of which a user may have 8,192 on small machines. Smaller: more renewals are noticed only when a client next asks
/// for the host.
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
