//! A tenant's database for serving: opened when first needed, and reopened after a failure.
//!
//! A database that can't be opened is tried at most once a second, whatever the number of requests for it. In the
//! meantime its tenant's requests are refused immediately; other tenants are not affected. The same [`Breaker`]
//! guards the statements.
//!
//! Tokens are looked up in the database of the requested tenant. A flood of invented tokens must not lock out callers
//! with known tokens: look-ups use at most half of the connections, and the number of waiting look-ups is limited.
//!
//! While an account moves to another database, its requests wait here for the moment in which nothing may be written, and
//! go on in the other one (`leaving`).

mod leaving;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

pub use self::leaving::DirectUse;
use self::leaving::Leaving;
use super::TenantDatabases;
use crate::deadline::{ONCE_MORE, within};
use crate::rare;
use crate::store::{Breaker, CommitStamp, CountedBy, DatabaseLocation, Store, StoreError, with_causes};

/// Maximum number of waiting look-ups.
///
/// Larger: a flood of invented tokens costs memory. Smaller: callers with valid tokens are refused when they all
/// arrive at once.
const LOOK_UPS_WAITING: u32 = 64;

/// The database of one tenant.
#[derive(Debug)]
pub struct TenantDatabase {
    slug: Arc<str>,
    location: DatabaseLocation,
    max_connections: u32,
    shared: Arc<TenantDatabases>,
    breaker: Arc<Breaker>,
    open: ArcSwapOption<Store>,
    /// Held while one request opens the database and others wait for it.
    opening: Mutex<()>,
    look_ups: Semaphore,
    look_ups_waiting: AtomicU32,
    leaving: Leaving,
}

impl TenantDatabase {
    pub(super) fn new(
        slug: Arc<str>,
        location: DatabaseLocation,
        max_connections: u32,
        shared: &Arc<TenantDatabases>,
    ) -> Self {
        Self {
            slug: Arc::clone(&slug),
            location,
            max_connections,
            shared: Arc::clone(shared),
            breaker: Breaker::new(slug, shared.connections.metrics().clone()),
            open: ArcSwapOption::empty(),
            opening: Mutex::new(()),
            look_ups: Semaphore::new(max_connections.div_ceil(2) as usize),
            look_ups_waiting: AtomicU32::new(0),
            leaving: Leaving::default(),
        }
    }

    /// Whether this is the database at a location.
    pub(super) fn is_at(&self, location: &DatabaseLocation) -> bool {
        self.location == *location
    }

    /// Whether it is a file.
    pub(super) fn is_file(&self) -> bool {
        self.location.file().is_some()
    }

    pub(super) fn max_connections(&self) -> u32 {
        self.max_connections
    }

    /// The open store. Opens it if necessary. While the account is held, waits; once it has moved, the store of its new
    /// database.
    ///
    /// # Errors
    /// Why it can't be opened; [`StoreError::Resting`] for a while after that; [`StoreError::OfAnotherTenant`].
    pub async fn store(&self) -> Result<Arc<Store>, StoreError> {
        let mut database = self;
        loop {
            if database.leaving.is_near()
                && let Some(next) = rare::boxed(|| database.leaving.wait()).await
            {
                database = next;
                continue;
            }
            let store = database.store_here().await?;
            if database.may_be_used() {
                return Ok(store);
            }
        }
    }

    async fn store_here(&self) -> Result<Arc<Store>, StoreError> {
        if let Some(error) = self.refused() {
            return Err(error);
        }
        if let Some(store) = self.open_store() {
            return Ok(store);
        }
        let entry = self.breaker.enter()?;
        let _opening = self.opening.lock().await;
        if let Some(store) = self.open_store() {
            return Ok(store);
        }
        // Before the other file is opened: when its last connection closes, SQLite deletes the WAL at the path.
        self.close().await;
        // The request that this one waited for may have failed.
        let entry = if entry.is_stale() { self.breaker.enter()? } else { entry };
        match self.open().await {
            Ok(store) => {
                entry.succeeded();
                let store = Arc::new(store);
                self.open.store(Some(Arc::clone(&store)));
                Ok(store)
            }
            // That no connection is free says nothing about the database.
            Err(error @ StoreError::Busy) => Err(error),
            Err(error) => {
                entry.broken(&error);
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Store, StoreError> {
        let TenantDatabases { connections, owners } = &*self.shared;
        let opened = Store::open_for_serving(&self.location, self.max_connections, connections, &self.breaker);
        let store = opened.await?;
        if let Err(error) = owners.claim(&self.slug, &self.location, store.physical_id()) {
            store.close().await;
            return Err(error);
        }
        Ok(store)
    }

    fn refused(&self) -> Option<StoreError> {
        self.shared.owners.refused(&self.slug, &self.location)
    }

    /// The open store, unless its file was replaced.
    fn open_store(&self) -> Option<Arc<Store>> {
        self.open.load_full().filter(|store| store.is_in_place())
    }

    /// The open store for looking up a token, and the look-up's permit.
    ///
    /// # Errors
    /// Those of [`Self::store`]; [`StoreError::Busy`] if too many look-ups wait, or this one waited too long.
    pub async fn store_for_look_up(&self) -> Result<(Arc<Store>, SemaphorePermit<'_>), StoreError> {
        let busy = || {
            self.shared.connections.metrics().refused("wait");
            StoreError::Busy
        };
        let permit = match self.look_ups.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = WaitingLookUp::begin(&self.look_ups_waiting).ok_or_else(busy)?;
                let permit = within(self.shared.connections.limits().wait, ONCE_MORE, self.look_ups.acquire()).await;
                permit.ok_or_else(busy)?.expect("it is never closed")
            }
        };
        Ok((self.store().await?, permit))
    }

    /// Shows whether anything was committed in the meantime; `None` if the database would have to be queried for
    /// that.
    pub async fn commit_stamp(&self) -> Option<CommitStamp> {
        CommitStamp::of(&self.location).await
    }

    /// Its current stamp, for a hint that something was committed. None on Postgres. Blocks on the disk.
    #[must_use]
    pub fn latest_stamp(&self) -> Option<CommitStamp> {
        CommitStamp::latest(&self.location)
    }

    /// What counts the writes to it, if it is on Postgres.
    #[must_use]
    pub fn counted_by(&self) -> Option<CountedBy> {
        self.location.counted_by()
    }

    /// What is wrong with the database, while its callers are refused.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let refused = self.refused().map(|error| with_causes(&error));
        refused.or_else(|| self.breaker.trouble()).or_else(|| self.open.load().as_ref()?.backlog())
    }

    /// Whether its state is known: it is open, or its callers are refused.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.open.load().is_some() || self.breaker.is_open()
    }

    /// The store if it is open. Cleanup need not open it.
    #[must_use]
    pub fn if_open(&self) -> Option<Arc<Store>> {
        self.open.load_full()
    }

    /// Counts a request that was refused because too many are in flight.
    pub fn refuse_in_flight(&self) {
        self.shared.connections.metrics().refused("in_flight");
    }

    /// Closes the connections, after waiting for those in use.
    pub async fn close(&self) {
        if let Some(store) = self.open.swap(None) {
            store.close().await;
        }
    }
}

/// A look-up that waits for a permit.
struct WaitingLookUp<'w>(&'w AtomicU32);

impl<'w> WaitingLookUp<'w> {
    fn begin(waiting: &'w AtomicU32) -> Option<Self> {
        let more = |now| (now < LOOK_UPS_WAITING).then_some(now + 1);
        waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(waiting))
    }
}

impl Drop for WaitingLookUp<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
