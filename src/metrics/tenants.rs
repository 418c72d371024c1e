//! Metrics by tenant: separately for the busiest tenants, together for the others.
//!
//! Each label costs Prometheus memory for its whole retention period, and a gateway may have a hundred thousand
//! tenants. So only as many tenants as the operator allows have their own label; `other` covers the rest. The busiest
//! tenants change, and a tenant with a new label is counted under it from then on. Each series only grows. One that
//! is removed and returns starts at 0, which Prometheus treats as a restart.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::StatusCode;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::register::Registrar;

/// How many tenants have their own label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantLabels {
    /// None.
    None,
    /// The busiest ones.
    Top(usize),
    /// Every tenant that was ever used.
    All,
}

impl Default for TenantLabels {
    /// Enough to show which tenants cause the load, few enough for the smallest Prometheus.
    fn default() -> Self {
        Self::Top(50)
    }
}

/// The label of tenants without their own. A tenant with this slug is counted there too.
pub(super) const OTHER: &str = "other";

/// The status classes. 429 is separate, since it concerns the caller's budget rather than the request.
const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "429", "5xx"];

/// From an answer out of memory to a statement at its time limit. Each bucket is multiplied by the number of labels.
const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

/// The minimum pause between two rankings of tenants.
///
/// Larger: a tenant that causes the current load stays unnamed for longer. Smaller: labels come and go with single
/// requests.
const RANKING: Duration = Duration::from_secs(15);

/// The counts of one tenant. It is a part of the tenant, so that a request has it at hand.
#[derive(Debug)]
pub struct TenantMeter {
    slug: Arc<str>,
    /// Requests since the last ranking.
    new: AtomicU64,
    /// Its series, while the tenant has its own label.
    series: ArcSwapOption<TenantSeries>,
}

impl TenantMeter {
    /// The meter of a tenant without counts.
    #[must_use]
    pub fn new(slug: &Arc<str>) -> Self {
        Self { slug: Arc::clone(slug), new: AtomicU64::new(0), series: ArcSwapOption::empty() }
    }

    /// Whether the tenant had no requests since the last ranking.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.new.load(Ordering::Relaxed) == 0
    }
}

/// Requests by tenant.
#[derive(Clone, Debug)]
pub struct TenantMetrics(Arc<TenantMetricsInner>);

#[derive(Debug)]
struct TenantMetricsInner {
    labels: TenantLabels,
    requests: IntCounterVec,
    durations: HistogramVec,
    other: TenantSeries,
    /// Whether all labels are taken.
    full: AtomicBool,
    ranking: Mutex<Ranking>,
}

/// The series of one tenant, or of the rest.
#[derive(Debug)]
struct TenantSeries {
    requests: [IntCounter; CLASSES.len()],
    duration: Histogram,
}

#[derive(Debug)]
struct Ranking {
    at: Instant,
    /// Tenants with requests since then.
    active: Vec<Arc<TenantMeter>>,
    /// Decayed counts of earlier requests.
    scores: HashMap<Arc<str>, (u64, Arc<TenantMeter>)>,
    /// Tenants with their own label.
    named: HashMap<Arc<str>, Arc<TenantMeter>>,
}

impl TenantMetrics {
    pub(super) fn new(registrar: &Registrar<'_>, labels: TenantLabels) -> Self {
        let requests = registrar.counters(
            "formgate_tenant_requests_total",
            "Requests of a tenant by class of status; those of the less busy ones under `other`.",
            &["tenant", "class"],
        );
        let durations = registrar.histograms(
            "formgate_tenant_request_duration_seconds",
            "Time from head to response, by tenant.",
            &["tenant"],
            &BUCKETS,
        );
        let other = TenantSeries::new(&requests, &durations, OTHER);
        let ranking = Ranking { at: Instant::now(), active: Vec::new(), scores: HashMap::new(), named: HashMap::new() };
        let full = AtomicBool::new(labels.most() == 0);
        Self(Arc::new(TenantMetricsInner { labels, requests, durations, other, full, ranking: Mutex::new(ranking) }))
    }

    /// Counts one answered request of a tenant.
    pub fn count(&self, tenant: &Arc<TenantMeter>, status: StatusCode, took: Duration) {
        let this = &*self.0;
        // The first request since the last ranking adds the tenant to the list; later ones need not.
        if matches!(this.labels, TenantLabels::Top(_)) && tenant.new.fetch_add(1, Ordering::Relaxed) == 0 {
            this.ranking().active.push(Arc::clone(tenant));
        }
        if tenant.series.load().is_none() && !this.full.load(Ordering::Relaxed) {
            this.assign_label(tenant);
        }
        tenant.series.load().as_deref().unwrap_or(&this.other).count(status, took);
    }

    /// Gives labels to the recently busiest tenants. Called on each scrape: without scrapes, labels are not needed.
    pub(super) fn rank(&self) {
        let this = &*self.0;
        let TenantLabels::Top(most) = this.labels else { return };
        let mut ranking = this.ranking();
        if ranking.at.elapsed() < RANKING {
            return;
        }
        ranking.at = Instant::now();
        for tenant in std::mem::take(&mut ranking.active) {
            let new = tenant.new.swap(0, Ordering::Relaxed);
            let (score, known) =
                ranking.scores.entry(Arc::clone(&tenant.slug)).or_insert_with(|| (0, Arc::clone(&tenant)));
            *score += new;
            *known = tenant;
        }
        let Ranking { scores, named, .. } = &mut *ranking;
        let mut ranked: Vec<_> = scores.values().filter(|(_, tenant)| &*tenant.slug != OTHER).collect();
        // On equal scores, a tenant that has a label keeps it.
        ranked.sort_unstable_by_key(|(score, tenant)| std::cmp::Reverse((*score, named.contains_key(&tenant.slug))));
        ranked.truncate(most);
        let busiest: HashMap<_, _> =
            ranked.into_iter().map(|(_, tenant)| (Arc::clone(&tenant.slug), Arc::clone(tenant))).collect();
        let lost: Vec<_> = named.keys().filter(|slug| !busiest.contains_key(*slug)).cloned().collect();
        lost.iter().for_each(|slug| this.remove_label(named, slug));
        busiest.values().for_each(|tenant| this.assign_label_in(named, tenant));
        this.full.store(named.len() >= most, Ordering::Relaxed);
        scores.retain(|_, (score, _)| {
            *score /= 2;
            *score > 0
        });
    }

    /// Removes tenants that no longer exist.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let this = &*self.0;
        let mut ranking = this.ranking();
        let Ranking { active, scores, named, .. } = &mut *ranking;
        active.retain(|tenant| is_there(&tenant.slug));
        scores.retain(|slug, _| is_there(slug));
        let gone: Vec<_> = named.keys().filter(|slug| !is_there(slug)).cloned().collect();
        gone.iter().for_each(|slug| this.remove_label(named, slug));
        this.full.store(named.len() >= this.labels.most(), Ordering::Relaxed);
    }
}

impl TenantLabels {
    fn most(self) -> usize {
        match self {
            Self::None => 0,
            Self::Top(most) => most,
            Self::All => usize::MAX,
        }
    }
}

impl TenantMetricsInner {
    fn ranking(&self) -> std::sync::MutexGuard<'_, Ranking> {
        self.ranking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a tenant a label, if one is free.
    fn assign_label(&self, tenant: &Arc<TenantMeter>) {
        let most = self.labels.most();
        let mut ranking = self.ranking();
        let has_one = ranking.named.contains_key(&tenant.slug);
        if &*tenant.slug != OTHER && (has_one || ranking.named.len() < most) {
            self.assign_label_in(&mut ranking.named, tenant);
        }
        self.full.store(ranking.named.len() >= most, Ordering::Relaxed);
    }

    /// Gives a tenant a label; reuses its earlier series if it has one.
    fn assign_label_in(&self, named: &mut HashMap<Arc<str>, Arc<TenantMeter>>, tenant: &Arc<TenantMeter>) {
        let before = named.insert(Arc::clone(&tenant.slug), Arc::clone(tenant));
        let series = before.and_then(|before| before.series.load_full());
        let new = || Arc::new(TenantSeries::new(&self.requests, &self.durations, &tenant.slug));
        tenant.series.store(Some(series.unwrap_or_else(new)));
    }

    fn remove_label(&self, named: &mut HashMap<Arc<str>, Arc<TenantMeter>>, slug: &str) {
        if let Some(tenant) = named.remove(slug) {
            tenant.series.store(None);
        }
        for class in CLASSES {
            // The series may already be gone.
            let _ = self.requests.remove_label_values(&[slug, class]);
        }
        let _ = self.durations.remove_label_values(&[slug]);
    }
}

impl TenantSeries {
    fn new(requests: &IntCounterVec, durations: &HistogramVec, tenant: &str) -> Self {
        Self {
            requests: CLASSES.map(|class| requests.with_label_values(&[tenant, class])),
            duration: durations.with_label_values(&[tenant]),
        }
    }

    fn count(&self, status: StatusCode, took: Duration) {
        self.requests[class(status)].inc();
        self.duration.observe(took.as_secs_f64());
    }
}

/// The index of a status in [`CLASSES`].
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

    /// Metrics, and the meters of tenants with requests.
    struct TestMetrics {
        metrics: TenantMetrics,
        meters: HashMap<String, Arc<TenantMeter>>,
    }

    impl TestMetrics {
        fn new(labels: TenantLabels) -> Self {
            let metrics = TenantMetrics::new(&Registrar(&Registry::new()), labels);
            Self { metrics, meters: HashMap::new() }
        }

        fn request(&mut self, tenant: &str, times: usize) {
            let new = || Arc::new(TenantMeter::new(&tenant.into()));
            let meter = self.meters.entry(tenant.to_owned()).or_insert_with(new);
            (0..times).for_each(|_| self.metrics.count(meter, StatusCode::OK, Duration::from_millis(1)));
        }

        fn counted(&self, tenant: &str) -> u64 {
            if tenant == OTHER {
                return self.metrics.0.other.requests[class(StatusCode::OK)].get();
            }
            self.metrics.0.requests.with_label_values(&[tenant, "2xx"]).get()
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = self.metrics.0.ranking().named.keys().map(ToString::to_string).collect();
            names.sort();
            names
        }

        fn let_time_pass(&self) {
            self.metrics.0.ranking().at -= RANKING;
            self.metrics.rank();
        }
    }

    #[test]
    fn the_first_tenants_get_labels_and_the_rest_are_counted_together() {
        let mut test = TestMetrics::new(TenantLabels::Top(2));
        for (tenant, times) in [("a", 1), ("b", 2), ("c", 4), ("d", 8)] {
            test.request(tenant, times);
        }
        assert_eq!((test.counted("a"), test.counted("b"), test.counted(OTHER)), (1, 2, 12));
    }

    #[test]
    fn the_busiest_tenants_take_over_the_labels_and_no_series_shrinks() {
        let mut test = TestMetrics::new(TenantLabels::Top(2));
        for (tenant, times) in [("a", 1), ("b", 2), ("c", 4), ("d", 8)] {
            test.request(tenant, times);
        }
        test.let_time_pass();
        assert_eq!(test.names(), ["c", "d"]);
        test.request("d", 3);
        test.request("a", 1);
        assert_eq!((test.counted("d"), test.counted(OTHER)), (3, 13));
    }

    #[test]
    fn an_idle_tenant_loses_its_label() {
        let mut test = TestMetrics::new(TenantLabels::Top(1));
        test.request("a", 100);
        for _ in 0..8 {
            test.let_time_pass();
        }
        test.request("b", 1);
        test.let_time_pass();
        assert_eq!(test.names(), ["b"]);
    }

    #[test]
    fn all_labels_every_tenant_and_none_labels_no_tenant() {
        let (mut all, mut none) = (TestMetrics::new(TenantLabels::All), TestMetrics::new(TenantLabels::None));
        for tenant in 0..100 {
            all.request(&format!("t{tenant}"), 1);
            none.request(&format!("t{tenant}"), 1);
        }
        assert_eq!((all.names().len(), all.counted(OTHER)), (100, 0));
        assert_eq!((none.names().len(), none.counted(OTHER)), (0, 100));
    }

    #[test]
    fn a_removed_tenant_leaves_no_series_and_frees_its_label() {
        for labels in [TenantLabels::All, TenantLabels::Top(2)] {
            let mut test = TestMetrics::new(labels);
            test.request("a", 1);
            test.request("b", 1);
            test.metrics.retain(|tenant| tenant == "b");
            assert_eq!(test.names(), ["b"]);
            assert_eq!(test.counted("a"), 0);
            test.request("c", 1);
            assert_eq!((test.counted("c"), test.counted(OTHER)), (1, 0));
        }
    }

    #[test]
    fn a_tenant_that_returns_continues_its_series() {
        let mut test = TestMetrics::new(TenantLabels::All);
        test.request("a", 1);
        test.meters.clear();
        test.request("a", 1);
        test.let_time_pass();
        assert_eq!((test.names(), test.counted("a")), (vec!["a".to_owned()], 2));
    }

    #[test]
    fn a_tenant_named_other_is_counted_among_the_others() {
        for labels in [TenantLabels::All, TenantLabels::Top(2)] {
            let mut test = TestMetrics::new(labels);
            test.request(OTHER, 3);
            test.let_time_pass();
            assert_eq!((test.names().len(), test.counted(OTHER)), (0, 3));
        }
    }
}
