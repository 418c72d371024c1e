//! What the settlers of a node remember of one database between two of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::DatabaseMetrics;

/// How long after an attempt that could not write the next one is made.
///
/// Larger: what is written is derived later once writing works again, and searches read more until then. Smaller: more
/// searches wait for SQLite's write lock in vain.
const HINDERED: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct State {
    /// When nothing could be written.
    hindered_at: Mutex<Option<Instant>>,
    /// All that was committed before this instant has been derived from.
    settled_until: Mutex<Option<Instant>>,
    /// How many notes were taken since the intake was vacuumed.
    pub(super) taken: AtomicUsize,
    /// Whether requests were refused since more is noted than they wait for.
    pub(super) is_behind: AtomicBool,
}

impl State {
    pub(super) fn is_hindered(&self) -> bool {
        let hindered_at = self.hindered_at.lock().unwrap_or_else(PoisonError::into_inner);
        hindered_at.is_some_and(|at| at.elapsed() < HINDERED)
    }

    pub(super) fn note_hindered(&self) {
        *self.hindered_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(super) fn is_settled_since(&self, asked: Instant) -> bool {
        let settled_until = self.settled_until.lock().unwrap_or_else(PoisonError::into_inner);
        settled_until.is_some_and(|until| until >= asked)
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
