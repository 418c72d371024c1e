//! Retries a whole transaction that collided with another one.
//!
//! Collisions are deadlocks, serialization failures, a locked SQLite file, and violations of a unique or foreign key
//! by a row that another writer has just inserted or deleted. They are not the caller's fault. Nothing was written,
//! and the next try sees what the other transaction did.

use std::time::Duration;

use rand::RngExt;
use sqlx::sqlite::SqliteError;

use super::error::StoreError;
use crate::metrics::DatabaseFailure;

/// How often a transaction is tried.
///
/// Larger: a collision that never ends is reported later. Smaller: callers see collisions that a moment would have
/// resolved.
const MAX_TRIES: u32 = 6;

/// The longest wait before the second try. It doubles with each further try.
///
/// Larger: callers wait longer after a collision. Smaller: the same transactions collide again.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// An error that may contain a [`StoreError`].
pub(in crate::store) trait AsStoreError {
    fn as_store_error(&self) -> Option<&StoreError>;
}

impl AsStoreError for StoreError {
    fn as_store_error(&self) -> Option<&StoreError> {
        Some(self)
    }
}

/// Runs a transaction, and again while it collides with others, each time after a longer wait with random jitter. An
/// `AsyncFn` would need no `async move`, but the compiler can't see then that its future is `Send`.
///
/// # Errors
/// Those of `transaction`.
pub(in crate::store) async fn run<T, E: AsStoreError, F: Future<Output = Result<T, E>>>(
    transaction: impl Fn() -> F,
) -> Result<T, E> {
    let mut failed = 0;
    loop {
        match transaction().await {
            Err(error) if failed + 1 < MAX_TRIES && error.as_store_error().is_some_and(is_collision) => {
                failed += 1;
                tracing::debug!(failed, "a transaction collided with another one; retrying");
                tokio::time::sleep(pause(failed)).await;
            }
            outcome => return outcome,
        }
    }
}

/// The pause after a transaction has collided so many times.
pub(in crate::store) fn pause(failed: u32) -> Duration {
    let jitter = rand::rng().random_range(0.5..=1.0);
    (FIRST_WAIT * 2_u32.pow(failed.saturating_sub(1).min(MAX_TRIES))).mul_f64(jitter)
}

/// Whether a transaction collided with another one.
pub(in crate::store) fn is_collision(error: &StoreError) -> bool {
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
