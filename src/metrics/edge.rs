//! Metrics of the edge: connections and handshakes.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGaugeVec};

use super::register::{Registrar, init_series};

/// Connections and handshakes.
#[derive(Clone, Debug)]
pub struct EdgeMetrics {
    /// TCP connections accepted, whatever their outcome.
    pub connections_accepted: IntCounter,
    /// Connections closed before anything was read from the client, by `reason`: `proxy` (a load balancer's
    /// connection without a valid PROXY header), `address` (too many from one address).
    pub connections_refused: IntCounterVec,
    /// Connections open after their handshake, by `protocol`: `http/1.1`, `h2`.
    pub connections_open: IntGaugeVec,
    /// Connections that the edge ended, by `reason`: `idle`, `age`, `stalled`, `flood`, `resets`.
    pub connections_ended: IntCounterVec,
    /// TLS handshakes by `result`: `done`, `unknown_name`, `verified` (by an authority), `timeout`, `failed`.
    pub handshakes: IntCounterVec,
    /// Duration of completed handshakes in seconds.
    pub handshake_duration: Histogram,
}

/// From a resumed handshake on the same machine to the time limit.
const HANDSHAKE_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

impl EdgeMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let connections_refused = registrar.counters(
            "formgate_connections_refused_total",
            "Connections closed before their handshake, by reason.",
            &["reason"],
        );
        let connections_ended = registrar.counters(
            "formgate_connections_ended_total",
            "Connections that the gateway ended for what their peers did or left undone, by reason.",
            &["reason"],
        );
        let handshakes = registrar.counters("formgate_handshakes_total", "TLS handshakes by result.", &["result"]);
        // Initialized to 0, so that an alert can see the first one as an increase.
        init_series(&connections_refused, &["proxy", "address"]);
        init_series(&connections_ended, &["idle", "age", "stalled", "flood", "resets"]);
        init_series(&handshakes, &["done", "unknown_name", "verified", "timeout", "failed"]);
        Self {
            connections_refused,
            connections_accepted: registrar.counter("formgate_connections_accepted_total", "TCP connections accepted."),
            connections_open: registrar.gauges(
                "formgate_connections_open",
                "Connections open after their handshake, by protocol.",
                &["protocol"],
            ),
            connections_ended,
            handshakes,
            handshake_duration: registrar.histogram(
                "formgate_handshake_duration_seconds",
                "Time from the accepted socket to the end of the handshake.",
                &HANDSHAKE_BUCKETS,
            ),
        }
    }
}
