//! Which tenants of the registry have subscriptions, as far as the nodes know: what the registry has, in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use crate::config::TenantConfig;
use crate::store::registry::SubscribedTenant;

/// What is known.
#[derive(Debug, Default)]
pub struct SubscribedTenants {
    known: Mutex<HashMap<String, Known>>,
    /// What this node has to write, since the registry did not take it.
    unwritten: Mutex<BTreeMap<String, SubscribedTenant>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    place: u64,
    is_subscribed: bool,
}

/// Identifies where a database is. Contains no address.
fn place_of(tenant: &TenantConfig) -> u64 {
    let digest = Sha256::digest(tenant.database.identity());
    u64::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}

fn text_of(place: u64) -> String {
    format!("{place:016x}")
}

impl SubscribedTenants {
    /// Whether a tenant has subscriptions. `None` if that is unknown for its current database.
    #[must_use]
    pub fn is_subscribed(&self, tenant: &TenantConfig) -> Option<bool> {
        let known = self.lock().get(&*tenant.slug).cloned()?;
        (known.place == place_of(tenant)).then_some(known.is_subscribed)
    }

    /// Whether a tenant is known to have subscriptions.
    #[must_use]
    pub fn has_subscriptions(&self, tenant: &TenantConfig) -> bool {
        let known = self.lock().get(&*tenant.slug).filter(|known| known.is_subscribed).cloned();
        known.is_some_and(|known| known.place == place_of(tenant))
    }

    /// What is to be written about a tenant.
    pub(super) fn record(tenant: &TenantConfig, is_subscribed: bool) -> SubscribedTenant {
        SubscribedTenant { slug: tenant.slug.to_string(), place: text_of(place_of(tenant)), is_subscribed }
    }

    /// Takes over what the registry has.
    pub(super) fn take(&self, tenants: impl IntoIterator<Item = SubscribedTenant>) {
        let mut all = self.lock();
        for SubscribedTenant { slug, place, is_subscribed } in tenants {
            let place = u64::from_str_radix(&place, 16).unwrap_or_default();
            all.insert(slug, Known { place, is_subscribed });
        }
    }

    /// Forgets that tenants have no subscriptions: the registry was restored to a time when they had none.
    pub(super) fn forget_unsubscribed(&self) {
        self.lock().retain(|_, known| known.is_subscribed);
    }

    /// Notes what could not be written to the registry. Until then only this node knows it.
    pub(super) fn keep_unwritten(&self, tenants: Vec<SubscribedTenant>) {
        let subscribed: Vec<_> = tenants.iter().filter(|tenant| tenant.is_subscribed).cloned().collect();
        let tenants = tenants.into_iter().map(|tenant| (tenant.slug.clone(), tenant));
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).extend(tenants);
        self.take(subscribed);
    }

    /// Takes what the registry did not take.
    pub(super) fn take_unwritten(&self) -> Vec<SubscribedTenant> {
        let unwritten = std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        unwritten.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        // Each change is a single call to the map.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
