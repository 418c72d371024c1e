//! Which tenant has which host: one map look-up, whatever the number of tenants.
//!
//! Most tenants of a large gateway are idle, so a tenant's serving state (account, tokens, database) is created on
//! its first request; until then it is only its configuration and its entries in the maps. Also receives token
//! changes ([`TokenChanges`]), which identify a tenant by slug. A directory is never changed: the next one shares what
//! stays the same with it.

mod shards;

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::time::sleep;

use self::shards::Shards;
use super::written_behind::{self, Due, WriteBehind};
use super::{DatabaseOwners, Tenant, TenantDatabase, Tokens};
use crate::config::TenantConfig;
use crate::host::HostName;
use crate::metrics::DatabaseMetrics;
use crate::shared::announce::TokenChangeListener;
use crate::store::{Connections, DatabaseLimits};

/// All tenants of a gateway, by host.
#[derive(Debug)]
pub struct Directory {
    databases: Arc<TenantDatabases>,
    /// Keys are stored next to the pointer to the entry. With thousands of tenants an entry is in no CPU cache, and
    /// comparing hosts through it would cost two more misses.
    by_host: Shards<HostName, Arc<DirectoryEntry>>,
    by_slug: Shards<BySlug, ()>,
}

/// What the databases of all tenants share.
#[derive(Debug)]
pub struct TenantDatabases {
    /// Their connections.
    pub connections: Arc<Connections>,
    /// Which tenant has which.
    pub owners: DatabaseOwners,
}

/// An entry in the set of slugs. It hashes and compares by the entry's own slug: with very many tenants, a map with
/// copies of them would be twice as large.
#[derive(Clone, Debug)]
struct BySlug(Arc<DirectoryEntry>);

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

/// One tenant, used or not.
#[derive(Debug)]
struct DirectoryEntry {
    config: Arc<TenantConfig>,
    databases: Arc<TenantDatabases>,
    tenant: OnceLock<Arc<Tenant>>,
    /// The same tenant in the previous directory, if that one was still unused when this one was created. A request
    /// may still use the previous directory, and must not get a separate budget.
    before: ArcSwapOption<DirectoryEntry>,
}

impl DirectoryEntry {
    fn new(config: &Arc<TenantConfig>, databases: &Arc<TenantDatabases>, known: Option<&Arc<Self>>) -> Self {
        let (config, databases) = (Arc::clone(config), Arc::clone(databases));
        let entry = Self { config, databases, tenant: OnceLock::new(), before: ArcSwapOption::empty() };
        if let Some(known) = known {
            entry.before.store(Some(Arc::clone(known)));
            if known.used().is_some() {
                entry.tenant();
            } else {
                // No request reaches the directory before the known one any more.
                known.before.store(None);
            }
        }
        entry
    }

    /// The tenant; created if this is its first use.
    fn tenant(&self) -> &Arc<Tenant> {
        self.tenant.get_or_init(|| {
            let tenant = match self.before.swap(None) {
                Some(before) => before.tenant().renewed(&self.config, &self.databases),
                None => Tenant::new(&self.config, &self.databases),
            };
            Arc::new(tenant)
        })
    }

    /// The tenant, if it was used.
    fn used(&self) -> Option<&Arc<Tenant>> {
        let before_is_used = || self.before.load().as_ref().is_some_and(|before| before.used().is_some());
        self.tenant.get().or_else(|| before_is_used().then(|| self.tenant()))
    }
}

impl Directory {
    /// No tenants, and the connections that their databases will share.
    #[must_use]
    pub fn empty(connections: Arc<Connections>) -> Self {
        let databases = Arc::new(TenantDatabases { connections, owners: DatabaseOwners::default() });
        Self { databases, by_host: Shards::default(), by_slug: Shards::default() }
    }

    /// Which tenant has which database.
    #[must_use]
    pub fn owners(&self) -> &DatabaseOwners {
        &self.databases.owners
    }

    /// This directory, to be replaced by later ones. It is compared with which databases the tenants have.
    #[must_use]
    pub fn shared(self) -> Arc<ArcSwap<Self>> {
        let databases = Arc::clone(&self.databases);
        let shared = Arc::new(ArcSwap::from_pointee(self));
        databases.owners.watch(&shared);
        shared
    }

    /// These tenants. Those of the previous directory keep whatever did not change.
    #[must_use]
    pub fn new(tenants: &[Arc<TenantConfig>], before: &Self) -> Self {
        let databases = Arc::clone(&before.databases);
        let mut directory = Self { databases, by_host: Shards::default(), by_slug: Shards::default() };
        tenants.iter().for_each(|tenant| directory.insert(tenant, before));
        directory
    }

    /// This directory with some tenants added or changed, and others removed. Costs what the changes cost, whatever the
    /// number of tenants. The hosts of `put` must be free, or belong to tenants that are changed or removed.
    #[must_use]
    pub fn changed(&self, put: &[Arc<TenantConfig>], removed: &[Arc<str>]) -> Self {
        let mut after = Self {
            databases: Arc::clone(&self.databases),
            by_host: self.by_host.clone(),
            by_slug: self.by_slug.clone(),
        };
        // Before any is added: a host may move from one tenant to another.
        let gone = put.iter().map(|tenant| &tenant.slug).chain(removed);
        for entry in gone.filter_map(|slug| self.entry(slug)) {
            for host in entry.config.hosts() {
                after.by_host.remove(host.as_str());
            }
            after.by_slug.remove(&entry.config.slug);
        }
        put.iter().for_each(|tenant| after.insert(tenant, self));
        after
    }

    /// Adds a tenant, which keeps of the previous directory whatever did not change.
    fn insert(&mut self, tenant: &Arc<TenantConfig>, before: &Self) {
        let known = before.entry(&tenant.slug);
        // A tenant that moves between a file and the registry has another place, and is the same otherwise.
        let has_place_of = |known: &TenantConfig| known.origin.is_registered() == tenant.origin.is_registered();
        let is_same = |known: &TenantConfig| known.is_same(tenant) && has_place_of(known);
        let entry = match known.filter(|known| Arc::ptr_eq(&known.config, tenant) || is_same(&known.config)) {
            Some(same) => Arc::clone(same),
            None => Arc::new(DirectoryEntry::new(tenant, &before.databases, known)),
        };
        for host in entry.config.hosts() {
            self.by_host.insert(host.clone(), Arc::clone(&entry));
        }
        self.by_slug.insert(BySlug(entry), ());
    }

    fn entry(&self, slug: &str) -> Option<&Arc<DirectoryEntry>> {
        self.by_slug.get_key(slug).map(|BySlug(entry)| entry)
    }

    fn entry_at(&self, host: &HostName) -> Option<&Arc<DirectoryEntry>> {
        self.by_host.get(host.as_str())
    }

    /// The tenant that serves a host.
    #[must_use]
    pub fn resolve(&self, host: &HostName) -> Option<&Arc<Tenant>> {
        self.entry_at(host).map(|entry| entry.tenant())
    }

    /// The configuration of the tenant that serves a host.
    #[must_use]
    pub fn config_at(&self, host: &HostName) -> Option<&Arc<TenantConfig>> {
        self.entry_at(host).map(|entry| &entry.config)
    }

    /// A tenant.
    #[must_use]
    pub fn tenant(&self, slug: &str) -> Option<&Arc<Tenant>> {
        self.entry(slug).map(|entry| entry.tenant())
    }

    /// Every used tenant: the others have nothing to write or close.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.by_slug.keys().filter_map(|BySlug(entry)| entry.used())
    }

    /// The database of a tenant, if it was opened, or failed to open.
    #[must_use]
    pub fn in_use(&self, slug: &str) -> Option<&TenantDatabase> {
        let database = &self.entry(slug)?.used()?.database;
        database.is_known().then_some(database)
    }

    /// Every tenant's configuration.
    pub fn configs(&self) -> impl Iterator<Item = &Arc<TenantConfig>> {
        self.by_slug.keys().map(|BySlug(entry)| &entry.config)
    }

    /// Whether this directory was derived from another one by changes.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        self.by_slug.shares_with(&other.by_slug)
    }

    /// The configurations of tenants that this directory has and another one lacks, or has in another form. If one of them
    /// was derived from the other, this costs what the changes cost.
    pub fn configs_apart<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = &'s Arc<TenantConfig>> {
        let apart = self.by_slug.keys_apart(&other.by_slug).map(|BySlug(entry)| &entry.config);
        apart.filter(|config| other.config(&config.slug).is_none_or(|known| !Arc::ptr_eq(known, config)))
    }

    /// A tenant's configuration.
    #[must_use]
    pub fn config(&self, slug: &str) -> Option<&Arc<TenantConfig>> {
        self.entry(slug).map(|entry| &entry.config)
    }

    /// How many tenants there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_slug.len()
    }

    /// Whether there is no tenant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The databases in use here that `after` does not use.
    #[must_use]
    pub fn removed_in(&self, after: &Self) -> Vec<RemovedDatabase> {
        self.tenants().filter(|tenant| !after.keeps(tenant)).map(RemovedDatabase::of).collect()
    }

    /// The same of some tenants only.
    #[must_use]
    pub fn removed_of(&self, slugs: &[Arc<str>], after: &Self) -> Vec<RemovedDatabase> {
        let used = slugs.iter().filter_map(|slug| self.entry(slug)?.used());
        used.filter(|tenant| !after.keeps(tenant)).map(RemovedDatabase::of).collect()
    }

    fn keeps(&self, tenant: &Tenant) -> bool {
        let entry = self.entry(&tenant.slug);
        entry.is_some_and(|entry| Arc::ptr_eq(&entry.tenant().database, &tenant.database))
    }
}

/// A database that is no longer configured, or with a different number of connections, and the tenant whose requests
/// may still use it.
#[derive(Debug)]
pub struct RemovedDatabase {
    user: Weak<Tenant>,
    slug: Arc<str>,
    tokens: Arc<Tokens>,
    database: Arc<TenantDatabase>,
}

impl RemovedDatabase {
    fn of(tenant: &Arc<Tenant>) -> Self {
        Self {
            user: Arc::downgrade(tenant),
            slug: Arc::clone(&tenant.slug),
            tokens: Arc::clone(&tenant.tokens),
            database: Arc::clone(&tenant.database),
        }
    }

    /// Whose it was.
    #[must_use]
    pub fn slug(&self) -> &Arc<str> {
        &self.slug
    }

    /// Whether a request may still use it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.user.strong_count() > 0
    }

    /// Writes what its requests left.
    #[must_use]
    pub fn write_behind(&self) -> Option<WriteBehind> {
        WriteBehind::find(&self.slug, &self.tokens, &self.database, Due::All)
    }

    /// Closes the connections, after waiting for those in use.
    pub async fn close(self) {
        self.database.close().await;
    }
}

/// How often it is checked whether requests still use a database that is no longer configured.
///
/// Larger: its connections stay open for longer. Smaller: more checks for nothing.
const IN_USE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Closes databases that are no longer configured, each after the last request that uses it.
pub async fn close_removed(mut left: Vec<RemovedDatabase>) {
    while !left.is_empty() {
        let unused: Vec<_> = left.extract_if(.., |left| !left.is_in_use()).collect();
        // Uses noted by requests that were in flight when the database was left out.
        written_behind::write(unused.iter().filter_map(RemovedDatabase::write_behind).collect()).await;
        for left in unused {
            left.close().await;
        }
        sleep(IN_USE_CHECK_INTERVAL).await;
    }
}

impl Default for Directory {
    /// No tenants, and connections without exported metrics.
    fn default() -> Self {
        Self::empty(Connections::new(DatabaseLimits::default(), DatabaseMetrics::unregistered()))
    }
}

/// Applies token changes to tenants: they invalidate cached look-ups.
#[derive(Debug)]
pub struct TokenChanges {
    /// The tenants.
    pub directory: Arc<ArcSwap<Directory>>,
    /// How often changes were missed.
    pub missed: Arc<AtomicU64>,
}

impl TokenChangeListener for TokenChanges {
    fn tenant_changed(&self, slug: &str) {
        // Nothing is cached for a tenant that was not used.
        if let Some(tenant) = self.directory.load().entry(slug).and_then(|entry| entry.used()) {
            tenant.tokens.changed();
        }
    }

    fn changes_missed(&self) {
        self.missed.fetch_add(1, Ordering::AcqRel);
    }
}
