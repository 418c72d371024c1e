//! What the edge counts: connections and handshakes.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGaugeVec};

use super::register::{Register, begin};

/// Connections and handshakes.
#[derive(Clone, Debug)]
pub struct EdgeMetrics {
    /// TCP connections accepted, whatever came of them.
    pub connections_accepted: IntCounter,
    /// Connections closed before anything of them was read, by `reason`: `proxy`, a balancer's without a sound PROXY
    /// header.
    pub connections_refused: IntCounterVec,
    /// Connections open after their handshake, by `protocol`: `http/1.1`, `h2`.
    pub connections_open: IntGaugeVec,
    /// Connections that the edge ended, by `reason`: `idle`, `age`, `stalled`, `flood`, `resets`.
    pub connections_ended: IntCounterVec,
    /// TLS handshakes by `result`: `done`, `unknown_name`, `timeout`, `failed`.
    pub handshakes: IntCounterVec,
    /// The seconds that handshakes took which were done.
    pub handshake_duration: Histogram,
}

/// From a resumed handshake on the same machine to the limit.
const HANDSHAKE_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

impl EdgeMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        let connections_refused = register.counters(
            "formgate_connections_refused_total",
            "Connections closed before their handshake, by reason.",
            &["reason"],
        );
        let connections_ended = register.counters(
            "formgate_connections_ended_total",
            "Connections that the gateway ended for what their peers did or left undone, by reason.",
            &["reason"],
        );
        let handshakes = register.counters("formgate_handshakes_total", "TLS handshakes by result.", &["result"]);
        // There from the start, so that an alert on their growth sees the first one.
        begin(&connections_refused, &["proxy", "address"]);
        begin(&connections_ended, &["idle", "age", "stalled", "flood", "resets"]);
        begin(&handshakes, &["done", "unknown_name", "timeout", "failed"]);
        Self {
            connections_refused,
            connections_accepted: register.counter("formgate_connections_accepted_total", "TCP connections accepted."),
            connections_open: register.gauges(
                "formgate_connections_open",
                "Connections open after their handshake, by protocol.",
                &["protocol"],
            ),
            connections_ended,
            handshakes,
            handshake_duration: register.histogram(
                "formgate_handshake_duration_seconds",
                "Time from the accepted socket to the end of the handshake.",
                &HANDSHAKE_BUCKETS,
            ),
        }
    }
}
