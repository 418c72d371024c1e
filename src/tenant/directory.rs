//! Which tenant has which host: one look-up in a map, whatever the number of tenants.

use std::collections::HashMap;
use std::sync::Arc;

use super::Tenant;
use super::host::HostName;

/// All tenants of a gateway by their hosts.
#[derive(Debug, Default)]
pub struct Directory {
    by_host: HashMap<HostName, Arc<Tenant>>,
    tenants: Vec<Arc<Tenant>>,
}

impl Directory {
    /// Adds a tenant with its hosts. A configuration in which two tenants claim one host does not come this far.
    pub fn add(&mut self, tenant: Tenant, hosts: impl IntoIterator<Item = HostName>) {
        let tenant = Arc::new(tenant);
        self.by_host.extend(hosts.into_iter().map(|host| (host, Arc::clone(&tenant))));
        self.tenants.push(tenant);
    }

    /// The tenant that answers at a host.
    #[must_use]
    pub fn resolve(&self, host: &HostName) -> Option<&Arc<Tenant>> {
        self.by_host.get(host)
    }

    /// Every tenant.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.tenants.iter()
    }
}
