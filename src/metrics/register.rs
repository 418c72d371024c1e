//! Creates metrics: each is created once, with its help text, and registered immediately.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, PullingGauge,
    Registry,
};

/// Creates and registers the metrics of all groups.
pub(super) struct Registrar<'r>(pub(super) &'r Registry);

impl Registrar<'_> {
    /// A counter.
    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help))
    }

    /// A counter per value of its labels.
    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// An integer that goes up and down.
    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help))
    }

    /// Such a gauge per value of its labels.
    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A histogram.
    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    /// A histogram per value of its labels.
    pub(super) fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }

    /// A gauge that reads a value counted elsewhere.
    pub(super) fn pulled_gauge(&self, name: &str, help: &str, count: impl Fn() -> f64 + Send + Sync + 'static) {
        self.register(PullingGauge::new(name, help, Box::new(count)));
    }

    fn register<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("a valid name, help and labels");
        self.0.register(Box::new(collector.clone())).expect("each name is registered once");
        collector
    }
}

/// Initializes the series of a label to 0: an alert on an increase can't see the first event of a new series.
pub(super) fn init_series(counters: &IntCounterVec, values: &[&str]) {
    for value in values {
        counters.with_label_values(&[*value]);
    }
}
