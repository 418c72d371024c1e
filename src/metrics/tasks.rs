//! Metrics of background tasks: when each last completed all its work.

use jiff::Timestamp;
use prometheus::{IntGaugeVec, Registry};

use super::register::Registrar;

/// All background tasks.
#[derive(Clone, Debug)]
pub struct TaskMetrics {
    last_success: IntGaugeVec,
}

impl TaskMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        Self {
            last_success: registrar.gauges(
                "formgate_task_last_success_timestamp_seconds",
                "When a background task last succeeded, or was started.",
                &["task"],
            ),
        }
    }

    /// Metrics that are exported nowhere.
    #[must_use]
    pub fn unregistered() -> Self {
        Self::new(&Registrar(&Registry::new()))
    }

    /// Records a success.
    pub(crate) fn succeeded(&self, task: &str, at: Timestamp) {
        self.last_success.with_label_values(&[task]).set(at.as_second());
    }

    /// The last success of a task, in seconds since 1970.
    #[cfg(test)]
    pub(crate) fn last_success(&self, task: &str) -> i64 {
        self.last_success.with_label_values(&[task]).get()
    }
}
