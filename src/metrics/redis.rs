//! Metrics of the shared Redis.

use prometheus::{Histogram, IntCounterVec, IntGauge};

use super::register::{Registrar, init_series};

/// Calls to the Redis that the nodes share.
#[derive(Clone, Debug)]
pub struct RedisMetrics {
    /// Whether it answers: 1 or 0.
    pub up: IntGauge,
    /// Duration of answered calls.
    pub call_duration: Histogram,
    /// Failed calls, by `reason`: `down` (no connection is open), `timeout`, `connection` (it broke), `refused`
    /// (Redis answered with an error).
    pub failures: IntCounterVec,
    /// Shards of a cluster that do not answer.
    pub shards_down: IntGauge,
    /// Whether it may evict windows: 1 or 0.
    pub evicts: IntGauge,
    /// Whether it refuses calls of background work: 1 or 0.
    pub refuses: IntGauge,
}

/// A call to a nearby Redis takes a fraction of a millisecond, and times out after 500 ms unless configured
/// otherwise.
const BUCKETS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5];

impl RedisMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let failures = registrar.counters(
            "formgate_redis_failures_total",
            "Calls to the shared Redis that came to nothing, by reason.",
            &["reason"],
        );
        init_series(&failures, &["down", "timeout", "connection", "refused"]);
        Self {
            up: registrar.gauge("formgate_redis_up", "Whether the shared Redis responds."),
            call_duration: registrar.histogram(
                "formgate_redis_call_duration_seconds",
                "Time of successful calls to the shared Redis.",
                &BUCKETS,
            ),
            failures,
            shards_down: registrar
                .gauge("formgate_redis_shards_down", "Shards of the shared Redis cluster that do not respond."),
            evicts: registrar
                .gauge("formgate_redis_evicts", "Whether the shared Redis may evict keys, and with them budgets."),
            refuses: registrar.gauge(
                "formgate_redis_refuses",
                "Whether the shared Redis refuses calls that this node makes in the background.",
            ),
        }
    }
}
