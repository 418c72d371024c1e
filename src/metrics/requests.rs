//! Metrics of answered requests: count and duration by route, method and status.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::register::{Registrar, init_series};

/// From a refusal without any call to the time limit of a handler.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0];

/// The label of all other methods: a client can invent any number of them.
const OTHER: &str = "other";

/// Answered requests.
#[derive(Clone, Debug)]
pub struct RequestMetrics(Arc<RequestMetricsInner>);

#[derive(Debug)]
struct RequestMetricsInner {
    requests: IntCounterVec,
    durations: HistogramVec,
    cut: IntCounterVec,
    /// The series in use: looking up labels costs more than counting.
    series: ArcSwap<HashMap<SeriesKey, RequestSeries>>,
}

/// Route, method and status.
type SeriesKey = (&'static str, &'static str, StatusCode);

#[derive(Clone, Debug)]
struct RequestSeries {
    requests: IntCounter,
    duration: Histogram,
}

impl RequestSeries {
    fn count(&self, took: Duration) {
        self.requests.inc();
        self.duration.observe(took.as_secs_f64());
    }
}

impl RequestMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let requests = registrar.counters(
            "formgate_requests_total",
            "Requests by route, method and status; route `none` where none was reached.",
            &["route", "method", "status"],
        );
        let durations = registrar.histograms(
            "formgate_request_duration_seconds",
            "Time from head to response, by route.",
            &["route"],
            &BUCKETS,
        );
        let cut = registrar.counters(
            "formgate_answers_cut_total",
            "Streamed responses that ended early, by cause: client, failure.",
            &["by"],
        );
        init_series(&cut, &["client", "failure"]);
        Self(Arc::new(RequestMetricsInner { requests, durations, cut, series: ArcSwap::default() }))
    }

    /// Counts a streamed answer that ended early.
    pub fn cut(&self, by: &str) {
        self.0.cut.with_label_values(&[by]).inc();
    }

    /// Counts one answered request.
    pub fn count(&self, route: &'static str, method: &Method, status: StatusCode, took: Duration) {
        let this = &*self.0;
        let key = (route, label(method), status);
        if let Some(series) = this.series.load().get(&key) {
            return series.count(took);
        }
        let new = this.series_of(key);
        new.count(took);
        this.series.rcu(|known| {
            let mut more = HashMap::clone(known);
            more.insert(key, new.clone());
            more
        });
    }
}

impl RequestMetricsInner {
    fn series_of(&self, (route, method, status): SeriesKey) -> RequestSeries {
        let requests = self.requests.with_label_values(&[route, method, status.as_str()]);
        RequestSeries { requests, duration: self.durations.with_label_values(&[route]) }
    }
}

fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn a_request_counts_as_what_it_is_and_invented_methods_as_one() {
        let metrics = RequestMetrics::new(&Registrar(&Registry::new()));
        let invented = |name: &[u8]| Method::from_bytes(name).unwrap();
        for method in [Method::GET, Method::GET, Method::POST, invented(b"BREW"), invented(b"WHEN")] {
            metrics.count("GET /me", &method, StatusCode::OK, Duration::from_millis(1));
        }
        metrics.count("GET /me", &Method::GET, StatusCode::UNAUTHORIZED, Duration::from_millis(1));
        metrics.count("none", &Method::GET, StatusCode::OK, Duration::from_millis(1));
        let requests = |labels: [&str; 3]| metrics.0.requests.with_label_values(&labels).get();
        assert_eq!(requests(["GET /me", "GET", "200"]), 2);
        assert_eq!(requests(["GET /me", "POST", "200"]), 1);
        assert_eq!(requests(["GET /me", OTHER, "200"]), 2);
        assert_eq!(requests(["GET /me", "GET", "401"]), 1);
        assert_eq!(requests(["none", "GET", "200"]), 1);
        let observed = |route| metrics.0.durations.with_label_values(&[route]).get_sample_count();
        assert_eq!((observed("GET /me"), observed("none")), (6, 1));
    }
}
