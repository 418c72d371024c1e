//! What formgate counts, in the Prometheus text format.
//!
//! Owns every metric's name, help and labels; a label never holds a host, a path or a token.

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

/// All metrics of one gateway.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// TLS handshakes by `result`: `done`, `unknown_name`, `timeout`, `failed`.
    pub handshakes: IntCounterVec,
    /// TCP connections accepted, whatever came of them.
    pub connections_accepted: IntCounter,
    /// Connections open after their handshake, by `protocol`: `http/1.1`, `h2`.
    pub connections_open: IntGaugeVec,
}

impl Metrics {
    /// Registers every metric.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels).expect("a valid metric name");
            registry.register(Box::new(counter.clone())).expect("each name is registered once");
            counter
        };
        let total = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("a valid metric name");
            registry.register(Box::new(counter.clone())).expect("each name is registered once");
            counter
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels).expect("a valid metric name");
            registry.register(Box::new(gauge.clone())).expect("each name is registered once");
            gauge
        };
        Self {
            handshakes: counter("formgate_handshakes_total", "TLS handshakes by result.", &["result"]),
            connections_accepted: total("formgate_connections_accepted_total", "TCP connections accepted."),
            connections_open: gauge(
                "formgate_connections_open",
                "Connections open after their handshake, by protocol.",
                &["protocol"],
            ),
            registry,
        }
    }

    /// The text exposition, version 0.0.4.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).expect("writing to memory does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
