//! What the settlers of a node remember about one database from run to run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::DatabaseMetrics;

/// The pause before the next attempt after one that could not write.
///
/// Larger: searches use an overlay, and read more, for longer after writing works again. Smaller: more searches wait
/// for SQLite's write lock in vain.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SettlerState {
    /// When a settler last found that it can't write.
    failed_at: Mutex<Option<Instant>>,
    /// Everything that was committed before this instant is settled.
    settled_until: Mutex<Option<Instant>>,
    /// How many notes were taken since the last vacuum of the intake.
    pub(super) taken: AtomicUsize,
    /// How many groups were written.
    pub(super) writes: AtomicUsize,
    /// Whether searches are refused because settling takes longer than they wait.
    pub(super) is_behind: AtomicBool,
}

impl SettlerState {
    pub(super) fn cannot_write(&self) -> bool {
        let failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL)
    }

    pub(super) fn note_cannot_write(&self) {
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(super) fn is_settled_since(&self, requested_at: Instant) -> bool {
        let settled_until = self.settled_until.lock().unwrap_or_else(PoisonError::into_inner);
        settled_until.is_some_and(|until| until >= requested_at)
    }

    pub(super) fn note_settled(&self, began: Instant) {
        *self.settled_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
    }

    pub(super) fn set_behind(&self, is_behind: bool, metrics: &DatabaseMetrics) {
        if self.is_behind.swap(is_behind, Ordering::AcqRel) != is_behind {
            metrics.behind(if is_behind { 1 } else { -1 });
        }
    }
}
