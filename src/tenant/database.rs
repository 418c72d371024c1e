//! A tenant's database as serving sees it: opened when first needed, and again after it could not be.
//!
//! A database that can't be opened is tried at most once a second, whatever the number of requests that want it, and
//! its tenant is refused meanwhile; the others don't notice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;

use crate::store::{DatabaseLocation, Store, StoreError};

/// How long a failed opening is remembered. Longer, and a mended tenant waits; shorter, and a broken one keeps the
/// database server busy with connections that fail.
const RETRY: Duration = Duration::from_secs(1);

/// The database of one tenant.
#[derive(Debug)]
pub struct TenantDatabase {
    slug: String,
    location: DatabaseLocation,
    max_connections: u32,
    open: ArcSwapOption<Store>,
    /// Held while one request opens the database and others wait for it; the last failure.
    opening: Mutex<Option<Failure>>,
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    error: Arc<StoreError>,
}

impl TenantDatabase {
    pub(super) fn new(slug: String, location: DatabaseLocation, max_connections: u32) -> Self {
        Self { slug, location, max_connections, open: ArcSwapOption::empty(), opening: Mutex::new(None) }
    }

    /// Whether this is the database at a location, with as many connections.
    pub(super) fn is(&self, location: &DatabaseLocation, max_connections: u32) -> bool {
        self.location == *location && self.max_connections == max_connections
    }

    /// The open store.
    ///
    /// # Errors
    /// Why it can't be opened; logged when it is new.
    pub async fn store(&self) -> Result<Arc<Store>, Arc<StoreError>> {
        if let Some(store) = self.open.load_full() {
            return Ok(store);
        }
        let mut last_failure = self.opening.lock().await;
        if let Some(store) = self.open.load_full() {
            return Ok(store);
        }
        if let Some(failure) = last_failure.as_ref().filter(|failure| failure.at.elapsed() < RETRY) {
            return Err(Arc::clone(&failure.error));
        }
        match Store::open(&self.location, self.max_connections).await {
            Ok(store) => {
                if last_failure.take().is_some() {
                    tracing::info!(tenant = self.slug, "the tenant's database is back");
                }
                let store = Arc::new(store);
                self.open.store(Some(Arc::clone(&store)));
                Ok(store)
            }
            Err(error) => {
                let error = Arc::new(error);
                if last_failure.as_ref().is_none_or(|last| last.error.to_string() != error.to_string()) {
                    self.log(&error);
                }
                *last_failure = Some(Failure { at: Instant::now(), error: Arc::clone(&error) });
                Err(error)
            }
        }
    }

    fn log(&self, error: &StoreError) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        match error {
            StoreError::SchemaOlder { .. } => {
                let mend = format!("formgate migrate --tenant {}", self.slug);
                tracing::error!(tenant = self.slug, %error, mend, "the tenant is not served until its database is migrated");
            }
            StoreError::Unavailable(_)
            | StoreError::Folder { .. }
            | StoreError::Migration(_)
            | StoreError::Statement(_) => {
                tracing::error!(tenant = self.slug, %error, cause, "the tenant's database can't be opened");
            }
        }
    }

    /// The store if it is open: what only tidies up need not open it.
    #[must_use]
    pub fn if_open(&self) -> Option<Arc<Store>> {
        self.open.load_full()
    }

    /// Closes the connections, waiting for those in use.
    pub async fn close(&self) {
        if let Some(store) = self.open.swap(None) {
            store.close().await;
        }
    }
}
