//! The number of connections per client address.
//!
//! Owns the count behind the limit on connections per address. [`network_of`] defines what counts as one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::gate::network_of;

/// The number of open connections of each address.
#[derive(Debug)]
pub struct Addresses {
    open: Mutex<HashMap<IpAddr, u32>>,
    limit: u32,
}

/// One counted connection of an address; dropping it ends the count.
#[derive(Debug)]
pub(super) struct AddressPermit {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    /// No connections yet, and at most `limit` per address.
    #[must_use]
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), limit })
    }

    /// Counts one more connection, unless the address has reached its limit.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let address = network_of(address);
        let mut open = self.open();
        let count = open.entry(address).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(AddressPermit { addresses: Arc::clone(self), address })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self.addresses.open();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}
