//! What the gate counts of requests that it takes no further.

use prometheus::{IntCounterVec, IntGauge};

use super::register::{Register, begin};

/// Requests at the gate.
#[derive(Clone, Debug)]
pub struct GateMetrics {
    /// Requests that are worked on.
    pub in_flight: IntGauge,
    /// Requests refused to protect the gateway, by `reason`: `in_flight`, `bad_tokens`.
    pub refused: IntCounterVec,
}

impl GateMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        let refused = register.counters(
            "formgate_requests_refused_total",
            "Requests refused to protect the gateway, by reason.",
            &["reason"],
        );
        begin(&refused, &["in_flight", "bad_tokens"]);
        Self { refused, in_flight: register.gauge("formgate_requests_in_flight", "Requests that are worked on.") }
    }
}
