//! Which tenant has which host: one look-up in a map, whatever the number of tenants.
//!
//! Most of many tenants are quiet, so what serves one (its budget, its tokens, its database) is made when it is first
//! asked for; until then a tenant is its configuration and its places in the maps. Also where word of changed tokens
//! arrives ([`TokenChanges`]), which names a tenant by its slug.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::last_used::{Due, Writes};
use super::{Tenant, TenantDatabase, Tokens};
use crate::config::{Config, TenantConfig};
use crate::host::HostName;
use crate::metrics::DatabaseMetrics;
use crate::shared::announce::Listener;
use crate::store::{Connections, DatabaseLimits};

/// All tenants of a gateway by their hosts.
#[derive(Debug)]
pub struct Directory {
    /// Those of their databases.
    connections: Arc<Connections>,
    /// A host stands beside its entry, which is in no cache of thousands: told by the entry, it would be two more places to
    /// fetch.
    by_host: HashMap<HostName, Arc<Entry>>,
    by_slug: HashSet<BySlug>,
}

/// An entry at its place among the slugs. The slug itself stands in the entry alone: with very many tenants a map of them
/// would be as large again.
#[derive(Debug)]
struct BySlug(Arc<Entry>);

impl Borrow<str> for BySlug {
    fn borrow(&self) -> &str {
        &self.0.config.slug
    }
}

impl PartialEq for BySlug {
    fn eq(&self, other: &Self) -> bool {
        self.0.config.slug == other.0.config.slug
    }
}

impl Eq for BySlug {}

impl Hash for BySlug {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.config.slug.hash(state);
    }
}

/// One tenant, asked for or not.
#[derive(Debug)]
struct Entry {
    config: Arc<TenantConfig>,
    connections: Arc<Connections>,
    tenant: OnceLock<Arc<Tenant>>,
    /// The same tenant in the directory before, where it had not been asked for when this one was made: a request that
    /// still looks there may do so, and must not get a budget of its own.
    before: ArcSwapOption<Entry>,
}

impl Entry {
    fn new(config: &Arc<TenantConfig>, connections: &Arc<Connections>, known: Option<&Arc<Self>>) -> Self {
        let (config, connections) = (Arc::clone(config), Arc::clone(connections));
        let entry = Self { config, connections, tenant: OnceLock::new(), before: ArcSwapOption::empty() };
        if let Some(known) = known {
            entry.before.store(Some(Arc::clone(known)));
            if known.awake().is_some() {
                entry.tenant();
            } else {
                // Nobody looks any more where the known one was made from.
                known.before.store(None);
            }
        }
        entry
    }

    /// The tenant, made now if nobody asked for it before.
    fn tenant(&self) -> &Arc<Tenant> {
        self.tenant.get_or_init(|| {
            let tenant = match self.before.swap(None) {
                Some(before) => before.tenant().renewed(&self.config, &self.connections),
                None => Tenant::new(&self.config, &self.connections),
            };
            Arc::new(tenant)
        })
    }

    /// The tenant, if anybody asked for it.
    fn awake(&self) -> Option<&Arc<Tenant>> {
        let before_is_awake = || self.before.load().as_ref().is_some_and(|before| before.awake().is_some());
        self.tenant.get().or_else(|| before_is_awake().then(|| self.tenant()))
    }
}

impl Directory {
    /// No tenants yet, and the connections that their databases will share.
    #[must_use]
    pub fn empty(connections: Arc<Connections>) -> Self {
        Self { connections, by_host: HashMap::new(), by_slug: HashSet::new() }
    }

    /// The tenants of a configuration; those that were there before go on with what did not change.
    #[must_use]
    pub fn new(config: &Config, before: &Self) -> Self {
        let hosts = config.tenants.iter().map(|tenant| 1 + tenant.domains.len()).sum();
        let mut directory = Self {
            connections: Arc::clone(&before.connections),
            by_host: HashMap::with_capacity(hosts),
            by_slug: HashSet::with_capacity(config.tenants.len()),
        };
        for tenant in &config.tenants {
            let known = before.entry(&tenant.slug);
            let entry = match known.filter(|known| Arc::ptr_eq(&known.config, tenant) || known.config.is_same(tenant)) {
                Some(same) => Arc::clone(same),
                None => Arc::new(Entry::new(tenant, &before.connections, known)),
            };
            let hosts = entry.config.hosts().map(|host| (host.clone(), Arc::clone(&entry)));
            directory.by_host.extend(hosts);
            directory.by_slug.insert(BySlug(entry));
        }
        directory
    }

    fn entry(&self, slug: &str) -> Option<&Arc<Entry>> {
        self.by_slug.get(slug).map(|BySlug(entry)| entry)
    }

    fn entry_at(&self, host: &HostName) -> Option<&Arc<Entry>> {
        self.by_host.get(host)
    }

    /// The tenant that answers at a host.
    #[must_use]
    pub fn resolve(&self, host: &HostName) -> Option<&Arc<Tenant>> {
        self.entry_at(host).map(|entry| entry.tenant())
    }

    /// The tenant that answers at a host, as it is configured.
    #[must_use]
    pub fn config_at(&self, host: &HostName) -> Option<&Arc<TenantConfig>> {
        self.entry_at(host).map(|entry| &entry.config)
    }

    /// Every tenant that was asked for: the others have nothing that could be written or closed.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_slug.iter().filter_map(|BySlug(entry)| entry.awake())
    }

    /// The database of a tenant, if it has been opened, or could not be.
    #[must_use]
    pub fn in_use(&self, slug: &str) -> Option<&TenantDatabase> {
        let database = &self.entry(slug)?.awake()?.database;
        database.is_known().then_some(database)
    }

    /// Every tenant as it is configured.
    pub fn configs(&self) -> impl Iterator<Item = &Arc<TenantConfig>> {
        self.by_slug.iter().map(|BySlug(entry)| &entry.config)
    }

    /// A tenant as it is configured.
    #[must_use]
    pub fn config(&self, slug: &str) -> Option<&Arc<TenantConfig>> {
        self.entry(slug).map(|entry| &entry.config)
    }

    /// The databases in use here that `after` does without.
    #[must_use]
    pub fn left_out_of(&self, after: &Self) -> Vec<LeftOut> {
        let stays = |tenant: &Tenant| {
            let entry = after.entry(&tenant.slug);
            entry.is_some_and(|entry| Arc::ptr_eq(&entry.tenant().database, &tenant.database))
        };
        self.tenants().filter(|tenant| !stays(tenant)).map(LeftOut::of).collect()
    }
}

/// A database that is no longer configured, or with other connections, and the tenant whose requests may still use it.
#[derive(Debug)]
pub struct LeftOut {
    user: Weak<Tenant>,
    slug: Arc<str>,
    tokens: Arc<Tokens>,
    database: Arc<TenantDatabase>,
}

impl LeftOut {
    fn of(tenant: &Arc<Tenant>) -> Self {
        Self {
            user: Arc::downgrade(tenant),
            slug: Arc::clone(&tenant.slug),
            tokens: Arc::clone(&tenant.tokens),
            database: Arc::clone(&tenant.database),
        }
    }

    /// Whether a request may still use it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.user.strong_count() > 0
    }

    /// When its tokens were used, as far as that is not written.
    #[must_use]
    pub fn last_used(&self) -> Option<Writes> {
        Writes::find(&self.slug, &self.tokens, &self.database, Due::All)
    }

    /// Closes the connections, waiting for those in use.
    pub async fn close(self) {
        self.database.close().await;
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
        // Of a tenant that nobody asked for, nothing is remembered.
        if let Some(tenant) = self.directory.load().entry(slug).and_then(|entry| entry.awake()) {
            tenant.tokens.changed();
        }
    }

    fn changes_missed(&self) {
        self.missed.fetch_add(1, Ordering::AcqRel);
    }
}
