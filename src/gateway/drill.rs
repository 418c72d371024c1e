//! Logs at the start of a drill what it leaves alone, and which databases its requests write to: those that the
//! configuration names, which may still be the real ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{GatewayConfig, Mode, TenantConfig};
use crate::regular_file;

/// Logs it, if the node is one of a drill.
pub(super) fn announce(config: &GatewayConfig, tenants: &[Arc<TenantConfig>]) {
    if config.mode != Mode::Drill {
        return;
    }
    tracing::warn!("this node is a drill: {}", Mode::TURNED_OFF);
    let (mut servers, mut folders) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    for database in tenants.iter().map(|tenant| &tenant.database) {
        match database.file() {
            Some(file) => {
                let folder = file.parent().unwrap_or(file);
                let own = folder.to_owned();
                let found = regular_file::ask(file, move |_| own.canonicalize());
                *folders.entry(found.unwrap_or_else(|_| folder.to_owned())).or_default() += 1;
            }
            None => *servers.entry(database.server_address()).or_default() += 1,
        }
    }
    for (server, databases) in servers {
        tracing::warn!(server, databases, "requests write to databases of this server");
    }
    for (folder, databases) in folders {
        tracing::warn!(folder = %folder.display(), databases, "requests write to databases in this folder");
    }
    if let Some(registry) = &config.registry {
        tracing::warn!(registry = ?registry.database, "the registry is only read");
    }
}
