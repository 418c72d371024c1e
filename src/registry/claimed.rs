//! What the tenants of the files have, and which tenant of the registry wants the same.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Problem, RegisteredTenant, TenantConfig};
use crate::host::HostName;

/// The tenants of the files by what only one tenant may have.
#[derive(Debug, Default)]
pub struct FileTenants {
    by_slug: HashMap<Arc<str>, Arc<TenantConfig>>,
    by_host: HashMap<HostName, Arc<TenantConfig>>,
    by_database: HashMap<String, Arc<TenantConfig>>,
}

/// Something that a tenant of a file has, and a tenant of the registry wants.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// The tenant of the file.
    pub owner: Arc<TenantConfig>,
    /// The key of the tenant that wants it: `slug`, `address`, `domains` or `database`.
    pub key: &'static str,
    /// What both want, in a few words: ``the host `acme.example.com` ``.
    pub what: String,
}

impl FileTenants {
    /// Those of a configuration. Resolves the paths of SQLite databases, which blocks.
    #[must_use]
    pub fn of(tenants: &[Arc<TenantConfig>]) -> Self {
        let mut files = Self::default();
        for tenant in tenants {
            files.by_slug.insert(Arc::clone(&tenant.slug), Arc::clone(tenant));
            let hosts = tenant.hosts().map(|host| (host.clone(), Arc::clone(tenant)));
            files.by_host.extend(hosts);
            files.by_database.insert(tenant.database_identity(), Arc::clone(tenant));
        }
        files
    }

    /// The tenant with a slug.
    #[must_use]
    pub fn tenant(&self, slug: &str) -> Option<&Arc<TenantConfig>> {
        self.by_slug.get(slug)
    }

    /// The tenant with a host.
    #[must_use]
    pub fn at(&self, host: &HostName) -> Option<&Arc<TenantConfig>> {
        self.by_host.get(host)
    }

    /// The first thing that a tenant of the registry has in common with a tenant of a file.
    #[must_use]
    pub fn conflict(&self, wanted: &RegisteredTenant) -> Option<Conflict> {
        let of = |owner: &Arc<TenantConfig>, key, what| Conflict { owner: Arc::clone(owner), key, what };
        let RegisteredTenant { config, database } = wanted;
        if let Some(owner) = self.by_slug.get(&config.slug) {
            return Some(of(owner, "slug", format!("the slug `{}`", config.slug)));
        }
        for host in config.hosts() {
            if let Some(owner) = self.by_host.get(host) {
                let key = if *host == config.address { "address" } else { "domains" };
                return Some(of(owner, key, format!("the host `{host}`")));
            }
        }
        let owner = self.by_database.get(database)?;
        Some(of(owner, "database", "the database".to_owned()))
    }
}

impl Conflict {
    /// The conflict as a fault of the file, which names both.
    #[must_use]
    pub fn problem(&self, wanted: &TenantConfig) -> Problem {
        let title = format!("{} is that of the tenant `{}` of the registry", self.what, wanted.slug);
        let help = format!(
            "take it out of the file, or out of the registry: `formgate tenant remove {0}`; \
             `formgate tenant adopt {0}` moves a tenant from a file to the registry",
            wanted.slug
        );
        self.owner.problem(title).help(help)
    }
}

/// Every conflict between tenants of files and of the registry, as faults of the files.
#[must_use]
pub fn conflicts<'t>(files: &FileTenants, registered: impl IntoIterator<Item = &'t RegisteredTenant>) -> Vec<Problem> {
    let conflict = |tenant: &RegisteredTenant| Some(files.conflict(tenant)?.problem(&tenant.config));
    registered.into_iter().filter_map(conflict).collect()
}
