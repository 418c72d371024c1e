//! Trying a whole transaction again when it collided with another one.
//!
//! Deadlocks, serialization failures, a locked file, a unique key that another writer took and a row that another writer
//! deleted or came to need a moment ago are no fault of the caller, who is not shown them: nothing was written, and the
//! next try sees what the other one did.

use std::time::Duration;

use rand::RngExt;
use sqlx::sqlite::SqliteError;

use super::error::StoreError;
use crate::metrics::DatabaseFailure;

/// How often a transaction is tried. More hides a collision that never ends; fewer shows callers what a moment mends.
const MAX_TRIES: u32 = 6;

/// The longest wait before the second try; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// An error that may come from a store.
pub(in crate::store) trait AsStoreError {
    fn as_store_error(&self) -> Option<&StoreError>;
}

impl AsStoreError for StoreError {
    fn as_store_error(&self) -> Option<&StoreError> {
        Some(self)
    }
}

/// The tries of one transaction.
#[derive(Debug, Default)]
pub(in crate::store) struct Retry {
    failed: u32,
}

impl Retry {
    /// Whether this is another try than the first.
    pub(in crate::store) fn is_retry(&self) -> bool {
        self.failed > 0
    }

    /// Whether a failed transaction is worth another try; if so, waits for its turn.
    pub(in crate::store) async fn wait_if_retryable(&mut self, error: &impl AsStoreError) -> bool {
        self.failed += 1;
        if self.failed >= MAX_TRIES || !error.as_store_error().is_some_and(is_collision) {
            return false;
        }
        tracing::debug!(failed = self.failed, "a transaction collided and is tried again");
        let longest = FIRST_WAIT * 2_u32.pow(self.failed - 1);
        let jitter = rand::rng().random_range(0.5..=1.0);
        tokio::time::sleep(longest.mul_f64(jitter)).await;
        true
    }
}

fn is_collision(error: &StoreError) -> bool {
    let (StoreError::Unavailable(error) | StoreError::Statement(error)) = error else { return false };
    let sqlx::Error::Database(database) = error else { return false };
    let is_sqlite = database.try_downcast_ref::<SqliteError>().is_some();
    database.is_unique_violation()
        || database.is_foreign_key_violation()
        || match DatabaseFailure::of(error) {
            Some(DatabaseFailure::Collision) => true,
            Some(DatabaseFailure::Locked) => is_sqlite,
            _ => false,
        }
}
