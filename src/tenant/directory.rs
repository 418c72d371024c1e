//! Which tenant has which host: one look-up in a map, whatever the number of tenants.
//!
//! Also where word of changed tokens arrives ([`TokenChanges`]), which names a tenant by its slug.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::Tenant;
use super::host::HostName;
use crate::config::Config;
use crate::metrics::DatabaseMetrics;
use crate::shared::announce::Listener;
use crate::store::{Connections, DatabaseLimits};

/// All tenants of a gateway by their hosts.
#[derive(Debug)]
pub struct Directory {
    /// Those of their databases.
    connections: Arc<Connections>,
    by_host: HashMap<HostName, Arc<Tenant>>,
    by_slug: HashMap<Arc<str>, Arc<Tenant>>,
}

impl Directory {
    /// No tenants yet, and the connections that their databases will share.
    #[must_use]
    pub fn empty(connections: Arc<Connections>) -> Self {
        Self { connections, by_host: HashMap::new(), by_slug: HashMap::new() }
    }

    /// Adds a tenant with its hosts. A configuration in which two tenants claim one host does not come this far.
    pub fn add(&mut self, tenant: Tenant, hosts: impl IntoIterator<Item = HostName>) {
        let tenant = Arc::new(tenant);
        self.by_host.extend(hosts.into_iter().map(|host| (host, Arc::clone(&tenant))));
        self.by_slug.insert(Arc::clone(&tenant.slug), tenant);
    }

    /// The tenants of a configuration; those that were there before go on with what did not change.
    #[must_use]
    pub fn new(config: &Config, before: &Self) -> Self {
        let connections = &before.connections;
        let mut directory = Self::empty(Arc::clone(connections));
        for tenant in &config.tenants {
            let hosts = std::iter::once(&tenant.address).chain(&tenant.domains).cloned();
            let known = before.by_slug.get(tenant.slug.as_str());
            let tenant =
                known.map_or_else(|| Tenant::new(tenant, connections), |known| known.renewed(tenant, connections));
            directory.add(tenant, hosts);
        }
        directory
    }

    /// The tenant that answers at a host.
    #[must_use]
    pub fn resolve(&self, host: &HostName) -> Option<&Arc<Tenant>> {
        self.by_host.get(host)
    }

    /// The tenant with a slug.
    #[must_use]
    pub fn find(&self, slug: &str) -> Option<&Arc<Tenant>> {
        self.by_slug.get(slug)
    }

    /// Every tenant.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_slug.values()
    }
}

impl Default for Directory {
    /// No tenants, and connections that nobody counts.
    fn default() -> Self {
        Self::empty(Connections::new(DatabaseLimits::default(), DatabaseMetrics::unregistered()))
    }
}

/// Takes word of changed tokens to the tenants: what was remembered of them before no longer counts.
#[derive(Debug)]
pub struct TokenChanges {
    /// The tenants.
    pub directory: Arc<ArcSwap<Directory>>,
    /// How often changes were missed.
    pub missed: Arc<AtomicU64>,
}

impl Listener for TokenChanges {
    fn tenant_changed(&self, slug: &str) {
        if let Some(tenant) = self.directory.load().find(slug) {
            tenant.token_changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn changes_missed(&self) {
        self.missed.fetch_add(1, Ordering::AcqRel);
    }
}
