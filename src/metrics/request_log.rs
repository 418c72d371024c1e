//! Metrics of the log of requests.

use prometheus::IntCounter;

use super::register::Registrar;

/// The log of each account's requests.
#[derive(Clone, Debug)]
pub struct RequestLogMetrics {
    /// Refusals that were counted in a row of their kind.
    pub counted: IntCounter,
    /// Rows that were dropped before they were written.
    pub dropped: IntCounter,
}

impl RequestLogMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        Self {
            counted: registrar.counter(
                "formgate_request_log_counted_total",
                "Refusals that the request logs count in a row of their kind.",
            ),
            dropped: registrar.counter(
                "formgate_request_log_dropped_total",
                "Rows of request logs that were dropped before they were written.",
            ),
        }
    }
}
