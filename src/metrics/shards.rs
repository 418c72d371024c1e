//! Metrics that every request counts in: each thread counts in a shard of its own, and a scrape adds the shards up.
//!
//! In a counter that all threads share, a core waits for the cache line that another core changed last, and with each
//! core more so. A request counts in a dozen of them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use crossbeam_utils::CachePadded;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{LabelPair, Metric, MetricFamily};

/// How many shards there are a core. More costs memory and makes a scrape longer; fewer, and threads that come and go make
/// two busy ones share a shard.
const A_CORE: usize = 2;

/// The next thread's place.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's place: threads take them in turn, when they first count.
    static PLACE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
}

/// How many shards there are.
pub(super) fn count() -> usize {
    A_CORE * available_parallelism().map_or(1, usize::from)
}

/// What there is of each shard. Cloning shares it.
#[derive(Debug)]
pub(super) struct Shards<T>(Arc<[CachePadded<T>]>);

impl<T> Shards<T> {
    /// The calling thread's own.
    pub(super) fn own(&self) -> &T {
        &self.0[PLACE.get() % self.0.len()]
    }

    /// Of all threads.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &**shard)
    }
}

impl<T> FromIterator<T> for Shards<T> {
    fn from_iter<I: IntoIterator<Item = T>>(shards: I) -> Self {
        Self(shards.into_iter().map(CachePadded::new).collect())
    }
}

impl<T> Clone for Shards<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Parts of one counter or histogram, which are scraped as one.
pub(super) struct Sum<C>(pub(super) Vec<C>);

impl<C: Collector> Collector for Sum<C> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.first().map(Collector::desc).unwrap_or_default()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        for part in self.0.iter().map(Collector::collect) {
            match families.is_empty() {
                true => families = part,
                false => families.iter_mut().zip(part).for_each(|(family, part)| append(family, part)),
            }
        }
        families.iter_mut().for_each(add_up);
        families
    }
}

/// Appends the series of a part. It need not have all that the family has.
fn append(family: &mut MetricFamily, mut part: MetricFamily) {
    family.mut_metric().append(&mut part.take_metric());
}

/// Makes one of the series that have the same labels.
fn add_up(family: &mut MetricFamily) {
    fn values(metric: &Metric) -> impl Iterator<Item = &str> {
        metric.get_label().iter().map(LabelPair::value)
    }
    let series = family.mut_metric();
    // Labels stand in one order in all series of a family.
    series.sort_by(|one, other| values(one).cmp(values(other)));
    series.dedup_by(|next, sum| {
        let is_same = next.get_label() == sum.get_label();
        if is_same {
            add(sum, next);
        }
        is_same
    });
}

fn add(sum: &mut Metric, part: &Metric) {
    let mut counter = sum.get_counter().clone();
    counter.set_value(counter.get_value() + part.get_counter().get_value());
    sum.set_counter(counter);
    let (mut histogram, more) = (sum.get_histogram().clone(), part.get_histogram());
    histogram.set_sample_count(histogram.get_sample_count() + more.get_sample_count());
    histogram.set_sample_sum(histogram.get_sample_sum() + more.get_sample_sum());
    let mut buckets = histogram.get_bucket().to_vec();
    for (bucket, more) in buckets.iter_mut().zip(more.get_bucket()) {
        bucket.set_cumulative_count(bucket.cumulative_count() + more.cumulative_count());
    }
    histogram.set_bucket(buckets);
    sum.set_histogram(histogram);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use prometheus::{Encoder, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

    use super::*;

    fn scraped(registry: &Registry) -> String {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_thread_keeps_its_shard_and_the_next_one_has_another() {
        let shards: Shards<usize> = (0..1000).collect();
        let own = *shards.own();
        assert_eq!(*shards.own(), own);
        let of_another = shards.clone();
        assert_ne!(thread::spawn(move || *of_another.own()).join().unwrap(), own);
    }

    #[test]
    fn counters_are_scraped_as_their_sum_whatever_series_a_part_has() {
        let part = || IntCounterVec::new(Opts::new("asked", "Help."), &["by", "of"]).unwrap();
        let parts = [part(), part(), part()];
        parts[0].with_label_values(&["b", "x"]).inc_by(1);
        parts[0].with_label_values(&["a", "x"]).inc_by(20);
        parts[2].with_label_values(&["a", "x"]).inc_by(300);
        parts[2].with_label_values(&["a", "y"]).inc_by(4000);
        let registry = Registry::new();
        registry.register(Box::new(Sum(parts.to_vec()))).unwrap();
        let expected = [
            "# HELP asked Help.",
            "# TYPE asked counter",
            r#"asked{by="a",of="x"} 320"#,
            r#"asked{by="a",of="y"} 4000"#,
            r#"asked{by="b",of="x"} 1"#,
            "",
        ];
        assert_eq!(scraped(&registry), expected.join("\n"));
    }

    #[test]
    fn histograms_are_scraped_as_one() {
        let options = || HistogramOpts::new("took", "Help.").buckets(vec![1.0, 2.0]);
        let part = || HistogramVec::new(options(), &["by"]).unwrap();
        let parts = [part(), part()];
        for (at, took) in [(0, 0.5), (0, 5.0), (1, 0.25), (1, 1.5)] {
            parts[at].with_label_values(&["a"]).observe(took);
        }
        let registry = Registry::new();
        registry.register(Box::new(Sum(parts.to_vec()))).unwrap();
        let expected = [
            "# HELP took Help.",
            "# TYPE took histogram",
            r#"took_bucket{by="a",le="1"} 2"#,
            r#"took_bucket{by="a",le="2"} 3"#,
            r#"took_bucket{by="a",le="+Inf"} 4"#,
            r#"took_sum{by="a"} 7.25"#,
            r#"took_count{by="a"} 4"#,
            "",
        ];
        assert_eq!(scraped(&registry), expected.join("\n"));
    }
}
