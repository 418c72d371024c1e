//! Which tenant has which database, where the addresses of several lead to one: only one of them is served.
//!
//! Addresses can't tell, since a host has many names. So whoever opens a database says which one it is. Tenants of files have it
//! before those of the registry, and the first in the files before others. Of tenants of the registry, the one that was first
//! on this node has it until the registry says which one was first on any node. A tenant that is refused is served as soon as
//! the other one is gone, or has another database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use arc_swap::ArcSwap;

use super::Directory;
use crate::config::TenantConfig;
use crate::store::registry::{FoundDatabase, SharedDatabase};
use crate::store::{DatabaseLocation, PhysicalId, StoreError};

/// What is known of the databases that were opened on this node, and what the registry says of all.
#[derive(Debug, Default)]
pub struct DatabaseOwners {
    /// The tenants that are served; not set where nothing is.
    served: OnceLock<Weak<ArcSwap<Directory>>>,
    holders: Mutex<HashMap<PhysicalId, Holder>>,
    /// By slug: tenants of the registry whose database another one has.
    refused: ArcSwap<HashMap<String, SharedDatabase>>,
    /// Databases that were found and are not yet written to the registry.
    found: Mutex<HashMap<String, FoundDatabase>>,
}

#[derive(Debug)]
struct Holder {
    slug: Arc<str>,
    address: String,
}

impl DatabaseOwners {
    /// Compares with the tenants that are served.
    pub(super) fn watch(&self, served: &Arc<ArcSwap<Directory>>) {
        // Only the first call counts: there is one directory.
        self.served.set(Arc::downgrade(served)).ok();
    }

    /// A tenant has opened a database.
    ///
    /// # Errors
    /// [`StoreError::OfAnotherTenant`] if another tenant has it.
    pub fn claim(&self, slug: &str, location: &DatabaseLocation, id: Option<PhysicalId>) -> Result<(), StoreError> {
        let Some(id) = id else { return Ok(()) };
        self.hold(slug, location, id)?;
        self.refused(slug, location).map_or(Ok(()), Err)
    }

    fn hold(&self, slug: &str, location: &DatabaseLocation, id: PhysicalId) -> Result<(), StoreError> {
        let address = location.identity();
        let config = self.config(slug);
        let mut holders = lock(&self.holders);
        let holder = holders.get(&id);
        if holder.is_some_and(|holder| *holder.slug == *slug && holder.address == address) {
            return Ok(());
        }
        let other = holder.filter(|other| *other.slug != *slug).and_then(|other| self.current(other));
        // That of a file is not for the registry to decide.
        let is_of_file = |config: &Arc<TenantConfig>| !config.origin.is_registered();
        if config.as_ref().is_some_and(|config| !is_of_file(config)) && !other.as_ref().is_some_and(is_of_file) {
            let found = FoundDatabase { slug: slug.to_owned(), address: address.clone(), database: id.to_string() };
            lock(&self.found).insert(found.slug.clone(), found);
        }
        if let Some(other) = other {
            if !config.as_ref().is_some_and(|config| goes_before(config, &other)) {
                return Err(StoreError::OfAnotherTenant { owner: Arc::clone(&other.slug) });
            }
            self.close(&other.slug);
        }
        // Otherwise it is not there yet.
        if config.is_some() {
            holders.insert(id, Holder { slug: slug.into(), address });
        }
        Ok(())
    }

    /// The tenant of a file that has a database, if it was opened on this node.
    #[must_use]
    pub fn owner_in_file(&self, id: PhysicalId) -> Option<Arc<TenantConfig>> {
        let holders = lock(&self.holders);
        self.current(holders.get(&id)?).filter(|config| !config.origin.is_registered())
    }

    /// Which tenant has the database of a tenant of the registry, as the registry says.
    #[must_use]
    pub fn refused(&self, slug: &str, location: &DatabaseLocation) -> Option<StoreError> {
        let refused = self.refused.load();
        if refused.is_empty() {
            return None;
        }
        let shared = refused.get(slug).filter(|shared| shared.address == location.identity())?;
        Some(StoreError::OfAnotherTenant { owner: shared.owner.as_str().into() })
    }

    /// The tenants that are served and whose database another one has, as the registry says, and why they are refused.
    #[must_use]
    pub fn all_refused(&self) -> Vec<(Arc<str>, StoreError)> {
        let slugs: Vec<_> = self.refused.load().keys().cloned().collect();
        let of_slug = |slug: &String| {
            let config = self.config(slug)?;
            Some((Arc::clone(&config.slug), self.refused(slug, &config.database)?))
        };
        slugs.iter().filter_map(of_slug).collect()
    }

    /// Takes over what the registry says: tenants whose database another one has. Returns those that are new.
    pub fn refuse(&self, shared: Vec<SharedDatabase>) -> Vec<SharedDatabase> {
        let before = self.refused.load();
        if before.is_empty() && shared.is_empty() {
            return Vec::new();
        }
        let new: Vec<_> = shared.iter().filter(|one| before.get(&one.slug) != Some(one)).cloned().collect();
        if new.is_empty() && before.len() == shared.len() {
            return new;
        }
        self.refused.store(Arc::new(shared.into_iter().map(|one| (one.slug.clone(), one)).collect()));
        new.iter().for_each(|one| self.close(&one.slug));
        new
    }

    /// What was found since the last call, to be written to the registry.
    pub fn take_found(&self) -> Vec<FoundDatabase> {
        std::mem::take(&mut *lock(&self.found)).into_values().collect()
    }

    /// Keeps what the registry did not take.
    pub fn keep_found(&self, found: Vec<FoundDatabase>) {
        let found = found.into_iter().map(|one| (one.slug.clone(), one));
        lock(&self.found).extend(found);
    }

    /// What was found is to be written again, since the registry was restored.
    pub fn find_again(&self) {
        lock(&self.holders).clear();
    }

    fn config(&self, slug: &str) -> Option<Arc<TenantConfig>> {
        Some(Arc::clone(self.directory()?.config(slug)?))
    }

    fn directory(&self) -> Option<Arc<Directory>> {
        Some(self.served.get()?.upgrade()?.load_full())
    }

    /// The tenant, if it still is there, with its database at the same address, and is not refused.
    fn current(&self, holder: &Holder) -> Option<Arc<TenantConfig>> {
        self.config(&holder.slug).filter(|config| {
            config.database.identity() == holder.address && self.refused(&holder.slug, &config.database).is_none()
        })
    }

    /// Closes the database of a tenant that is refused from now on, once its requests in flight are answered.
    fn close(&self, slug: &str) {
        let Some(directory) = self.directory() else { return };
        let open = directory.tenants().find(|tenant| *tenant.slug == *slug).map(|tenant| Arc::clone(&tenant.database));
        if let Some(open) = open {
            tokio::spawn(async move { open.close().await });
        }
    }
}

/// Whether a tenant gets a database that another one has on this node: files go before the registry, in their order.
fn goes_before(tenant: &TenantConfig, other: &TenantConfig) -> bool {
    match (tenant.origin.place_in_files(), other.origin.place_in_files()) {
        (Some(place), Some(of_other)) => place < of_other,
        (place, _) => place.is_some(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is a single call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
