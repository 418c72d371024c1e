//! What formgate counts, in the Prometheus text format.
//!
//! Owns every metric's name, help and labels; a label never holds a host, a path or a token.

use prometheus::{Encoder, IntCounterVec, Opts, Registry, TextEncoder};

/// All metrics of one gateway.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// TLS handshakes by `result`: `done`, `unknown_name`, `timeout`, `failed`.
    pub handshakes: IntCounterVec,
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
        Self { handshakes: counter("formgate_handshakes_total", "TLS handshakes by result.", &["result"]), registry }
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
