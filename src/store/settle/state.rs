//! What the settlers of a node remember of one database between two of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::DatabaseMetrics;

/// How long after an attempt that could not write the next one is made.
///
/// Larger: what is written is derived later once writing works again, and searches read more until then. Smaller: more
/// searches wait for SQLite's write lock in vain.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SettlerState {
    /// When nothing could be written.
    failed_at: Mutex<Option<Instant>>,
    /// All that was committed before this instant has been derived from.
    settled_until: Mutex<Option<Instant>>,
    /// How many notes were taken since the intake was vacuumed.
    pub(super) taken: AtomicUsize,
    /// Whether requests were refused since more is noted than they wait for.
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
