//! Passes on, within this node, on which servers the databases of new and changed tenants are: webhooks are kept away from
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::config::TenantConfig;

/// Where tenants are announced before they are served.
#[derive(Clone, Debug)]
pub struct DatabaseServers(mpsc::UnboundedSender<BTreeSet<String>>);

impl DatabaseServers {
    /// An announcer, and the hosts and ports that it announces.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<BTreeSet<String>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// The host and port of each Postgres server.
    pub fn of<'t>(tenants: impl IntoIterator<Item = &'t Arc<TenantConfig>>) -> BTreeSet<String> {
        tenants.into_iter().filter_map(|tenant| tenant.database.host()).collect()
    }

    /// Announces the servers of tenants.
    pub fn announce<'t>(&self, tenants: impl IntoIterator<Item = &'t Arc<TenantConfig>>) {
        let servers = Self::of(tenants);
        if !servers.is_empty() {
            // The receiver lives as long as the gateway.
            let _ = self.0.send(servers);
        }
    }
}
