//! What the edge counts: connections and handshakes.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::register::Register;

/// Connections and handshakes.
#[derive(Clone, Debug)]
pub struct EdgeMetrics {
    /// TCP connections accepted, whatever came of them.
    pub connections_accepted: IntCounter,
    /// Connections open after their handshake, by `protocol`: `http/1.1`, `h2`.
    pub connections_open: IntGaugeVec,
    /// TLS handshakes by `result`: `done`, `unknown_name`, `timeout`, `failed`.
    pub handshakes: IntCounterVec,
}

impl EdgeMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            connections_accepted: register.counter("formgate_connections_accepted_total", "TCP connections accepted."),
            connections_open: register.gauges(
                "formgate_connections_open",
                "Connections open after their handshake, by protocol.",
                &["protocol"],
            ),
            handshakes: register.counters("formgate_handshakes_total", "TLS handshakes by result.", &["result"]),
        }
    }
}
