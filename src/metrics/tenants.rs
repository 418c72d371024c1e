//! What is counted by tenant: for the busiest ones each, for the rest together.
//!
//! Each label costs Prometheus memory for as long as it looks back, and a gateway may have a hundred thousand tenants:
//! so only as many as the operator allows have a label of their own, and `other` has the rest. Who is busy changes, and
//! a tenant that gets its own label is counted under it from then on: each series only ever grows, and one that is gone
//! and comes back begins at 0, which Prometheus takes for a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::StatusCode;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::register::Register;

/// How many tenants have a label of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantLabels {
    /// None is counted by itself.
    None,
    /// The busiest ones.
    Top(usize),
    /// Every one that was ever asked for.
    All,
}

impl Default for TenantLabels {
    /// Enough to see who makes the load, few enough for the smallest Prometheus.
    fn default() -> Self {
        Self::Top(50)
    }
}

/// Where the tenants without a label of their own are counted. No slug has this form by chance: an operator who calls a
/// tenant so sees it among the rest.
const OTHER: &str = "other";

/// The classes of statuses; 429 is apart, since it is the caller's budget and not a fault of the request.
const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "429", "5xx"];

/// From an answer out of memory to a statement at its limit. More would be multiplied by every tenant.
const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

/// How often it is looked who is busy. Longer, and a tenant that makes the load of the moment stays unnamed; shorter,
/// and labels come and go with single requests.
const RANKING: Duration = Duration::from_secs(15);

/// Requests by tenant.
#[derive(Clone, Debug)]
pub struct TenantMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    labels: TenantLabels,
    requests: IntCounterVec,
    durations: HistogramVec,
    /// Those with a label of their own.
    named: ArcSwap<HashMap<Arc<str>, Arc<Series>>>,
    other: Arc<Series>,
    ranking: Mutex<Ranking>,
}

/// What is counted of one tenant, or of the rest.
#[derive(Debug)]
struct Series {
    requests: [IntCounter; CLASSES.len()],
    duration: Histogram,
}

#[derive(Debug)]
struct Ranking {
    at: Instant,
    /// Requests since then.
    new: HashMap<Arc<str>, u64>,
    /// Requests before, those of long ago counting less and less.
    scores: HashMap<Arc<str>, u64>,
}

impl TenantMetrics {
    pub(super) fn new(register: &Register<'_>, labels: TenantLabels) -> Self {
        let requests = register.counters(
            "formgate_tenant_requests_total",
            "Requests of a tenant by class of status; those of the less busy ones under `other`.",
            &["tenant", "class"],
        );
        let durations = register.histograms(
            "formgate_tenant_request_duration_seconds",
            "Time from head to answer, by tenant.",
            &["tenant"],
            &BUCKETS,
        );
        let other = Arc::new(Series::new(&requests, &durations, OTHER));
        let ranking = Ranking { at: Instant::now(), new: HashMap::new(), scores: HashMap::new() };
        let (named, ranking) = (ArcSwap::default(), Mutex::new(ranking));
        Self(Arc::new(Inner { labels, requests, durations, named, other, ranking }))
    }

    /// Counts one answered request of a tenant.
    pub fn request(&self, tenant: &Arc<str>, status: StatusCode, took: Duration) {
        let this = &*self.0;
        let series = match this.labels {
            TenantLabels::None => Arc::clone(&this.other),
            TenantLabels::Top(_) | TenantLabels::All => self.series(tenant),
        };
        series.requests[class(status)].inc();
        series.duration.observe(took.as_secs_f64());
    }

    /// Gives labels to those who were busiest lately. Asked at each scrape: where nobody looks, nobody need be named.
    pub(super) fn rank(&self) {
        let this = &*self.0;
        let TenantLabels::Top(most) = this.labels else { return };
        let mut ranking = this.ranking();
        if ranking.at.elapsed() < RANKING {
            return;
        }
        ranking.at = Instant::now();
        let new = std::mem::take(&mut ranking.new);
        for (tenant, requests) in new {
            *ranking.scores.entry(tenant).or_default() += requests;
        }
        let named = this.named.load();
        let mut ranked: Vec<_> = ranking.scores.iter().map(|(tenant, score)| (*score, Arc::clone(tenant))).collect();
        // Who has a label keeps it against one that is as busy.
        ranked.sort_unstable_by_key(|(score, tenant)| std::cmp::Reverse((*score, named.contains_key(tenant))));
        ranked.truncate(most);
        let busiest = ranked.into_iter().map(|(_, tenant)| {
            let series = named.get(&tenant).map_or_else(|| Arc::new(this.series_of(&tenant)), Arc::clone);
            (tenant, series)
        });
        let busiest: HashMap<_, _> = busiest.collect();
        this.forget(named.keys().filter(|tenant| !busiest.contains_key(*tenant)));
        this.named.store(Arc::new(busiest));
        ranking.scores.retain(|_, score| {
            *score /= 2;
            *score > 0
        });
    }

    /// Forgets tenants that are not there any more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let this = &*self.0;
        let mut ranking = this.ranking();
        ranking.new.retain(|tenant, _| is_there(tenant));
        ranking.scores.retain(|tenant, _| is_there(tenant));
        let mut named = HashMap::clone(&this.named.load());
        this.forget(named.keys().filter(|tenant| !is_there(tenant)));
        named.retain(|tenant, _| is_there(tenant));
        this.named.store(Arc::new(named));
    }

    fn series(&self, tenant: &Arc<str>) -> Arc<Series> {
        let this = &*self.0;
        let known = this.named.load().get(tenant).map(Arc::clone);
        let most = match (this.labels, &known) {
            (TenantLabels::All, Some(series)) => return Arc::clone(series),
            (TenantLabels::All | TenantLabels::None, _) => usize::MAX,
            (TenantLabels::Top(most), _) => most,
        };
        let mut ranking = this.ranking();
        if most < usize::MAX {
            *ranking.new.entry(Arc::clone(tenant)).or_default() += 1;
        }
        if let Some(series) = known {
            return series;
        }
        // Under the lock, as it is now: two requests at once must not make two series.
        let named = this.named.load();
        if let Some(series) = named.get(tenant) {
            return Arc::clone(series);
        }
        if named.len() >= most || &**tenant == OTHER {
            return Arc::clone(&this.other);
        }
        let series = Arc::new(this.series_of(tenant));
        let mut more = HashMap::clone(&named);
        more.insert(Arc::clone(tenant), Arc::clone(&series));
        this.named.store(Arc::new(more));
        series
    }
}

impl Inner {
    fn ranking(&self) -> std::sync::MutexGuard<'_, Ranking> {
        self.ranking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn series_of(&self, tenant: &str) -> Series {
        Series::new(&self.requests, &self.durations, tenant)
    }

    fn forget<'a>(&self, tenants: impl Iterator<Item = &'a Arc<str>>) {
        for tenant in tenants.filter(|tenant| &***tenant != OTHER) {
            for class in CLASSES {
                // It may be gone already: what counts is that it is.
                let _ = self.requests.remove_label_values(&[&**tenant, class]);
            }
            let _ = self.durations.remove_label_values(&[&**tenant]);
        }
    }
}

impl Series {
    fn new(requests: &IntCounterVec, durations: &HistogramVec, tenant: &str) -> Self {
        Self {
            requests: CLASSES.map(|class| requests.with_label_values(&[tenant, class])),
            duration: durations.with_label_values(&[tenant]),
        }
    }
}

/// The place of a status in [`CLASSES`].
fn class(status: StatusCode) -> usize {
    match status.as_u16() {
        429 => 3,
        500.. => 4,
        400.. => 2,
        300.. => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn metrics(labels: TenantLabels) -> TenantMetrics {
        TenantMetrics::new(&Register(&Registry::new()), labels)
    }

    fn ask(metrics: &TenantMetrics, tenant: &str, times: usize) {
        for _ in 0..times {
            metrics.request(&tenant.into(), StatusCode::OK, Duration::from_millis(1));
        }
    }

    fn counted(metrics: &TenantMetrics, tenant: &str) -> u64 {
        metrics.0.requests.with_label_values(&[tenant, "2xx"]).get()
    }

    fn names(metrics: &TenantMetrics) -> Vec<String> {
        let mut names: Vec<_> = metrics.0.named.load().keys().map(ToString::to_string).collect();
        names.sort();
        names
    }

    fn let_time_pass(metrics: &TenantMetrics) {
        metrics.0.ranking().at -= RANKING;
        metrics.rank();
    }

    #[test]
    fn the_first_have_labels_and_the_rest_are_counted_together() {
        let metrics = metrics(TenantLabels::Top(2));
        for (tenant, times) in [("a", 1), ("b", 2), ("c", 4), ("d", 8)] {
            ask(&metrics, tenant, times);
        }
        assert_eq!((counted(&metrics, "a"), counted(&metrics, "b"), counted(&metrics, OTHER)), (1, 2, 12));
    }

    #[test]
    fn the_busiest_take_the_labels_over_and_no_series_ever_shrinks() {
        let metrics = metrics(TenantLabels::Top(2));
        for (tenant, times) in [("a", 1), ("b", 2), ("c", 4), ("d", 8)] {
            ask(&metrics, tenant, times);
        }
        let_time_pass(&metrics);
        assert_eq!(names(&metrics), ["c", "d"]);
        ask(&metrics, "d", 3);
        ask(&metrics, "a", 1);
        assert_eq!((counted(&metrics, "d"), counted(&metrics, OTHER)), (3, 13));
    }

    #[test]
    fn who_is_no_longer_asked_for_makes_room() {
        let metrics = metrics(TenantLabels::Top(1));
        ask(&metrics, "a", 100);
        for _ in 0..8 {
            let_time_pass(&metrics);
        }
        ask(&metrics, "b", 1);
        let_time_pass(&metrics);
        assert_eq!(names(&metrics), ["b"]);
    }

    #[test]
    fn all_means_all_and_none_means_none() {
        let (all, none) = (metrics(TenantLabels::All), metrics(TenantLabels::None));
        for tenant in 0..100 {
            ask(&all, &format!("t{tenant}"), 1);
            ask(&none, &format!("t{tenant}"), 1);
        }
        assert_eq!((names(&all).len(), counted(&all, OTHER)), (100, 0));
        assert_eq!((names(&none).len(), counted(&none, OTHER)), (0, 100));
    }

    #[test]
    fn a_tenant_that_is_gone_leaves_no_series() {
        let metrics = metrics(TenantLabels::All);
        ask(&metrics, "a", 1);
        ask(&metrics, "b", 1);
        metrics.retain(|tenant| tenant == "b");
        assert_eq!(names(&metrics), ["b"]);
        assert_eq!(counted(&metrics, "a"), 0);
    }
}
