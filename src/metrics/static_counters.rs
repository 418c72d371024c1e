//! Counters whose series are all known at compile time, so that their labels are looked up only once: a request pays
//! more for looking up labels than for counting.

use std::marker::PhantomData;
use std::sync::Arc;

use prometheus::IntCounter;

use super::register::Registrar;

/// The series of such a counter: the rows of a table with two label values each.
pub trait LabelSet: Copy + 'static {
    /// The labels.
    const LABELS: [&'static str; 2];
    /// The values of every row, by index.
    const VALUES: &'static [[&'static str; 2]];

    /// The index of the row.
    fn index(self) -> usize;
}

/// A counter per row of `K`; all start at 0.
#[derive(Debug)]
pub struct StaticCounters<K> {
    counters: Arc<[IntCounter]>,
    kind: PhantomData<K>,
}

impl<K: LabelSet> StaticCounters<K> {
    pub(super) fn new(registrar: &Registrar<'_>, name: &str, help: &str) -> Self {
        let counters = registrar.counters(name, help, &K::LABELS);
        let counters = K::VALUES.iter().map(|values| counters.with_label_values(values)).collect();
        Self { counters, kind: PhantomData }
    }

    /// Counts one.
    pub fn count(&self, one: K) {
        self.counters[one.index()].inc();
    }

    /// The current count.
    #[must_use]
    pub fn get(&self, of: K) -> u64 {
        self.counters[of.index()].get()
    }
}

impl<K> Clone for StaticCounters<K> {
    fn clone(&self) -> Self {
        Self { counters: Arc::clone(&self.counters), kind: PhantomData }
    }
}

/// A decision of the rate limit: what was decided, and on what basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// Admitted by the window in this process; no Redis is configured.
    AdmittedEmbedded,
    /// Admitted by the shared window.
    AdmittedShared,
    /// Admitted by this node's own window, because Redis does not answer.
    AdmittedLocal,
    /// Admitted by policy, because Redis does not answer.
    AdmittedAllow,
    /// Refused by the window in this process; no Redis is configured.
    RefusedEmbedded,
    /// Refused by the shared window.
    RefusedShared,
    /// Refused by an earlier answer of the shared window.
    RefusedMemory,
    /// Refused by this node's own window, because Redis does not answer.
    RefusedLocal,
    /// Refused by policy, because Redis does not answer.
    RefusedDeny,
}

impl LabelSet for RateDecision {
    const LABELS: [&'static str; 2] = ["decision", "by"];
    const VALUES: &'static [[&'static str; 2]] = &[
        ["admitted", "embedded"],
        ["admitted", "shared"],
        ["admitted", "local"],
        ["admitted", "allow"],
        ["refused", "embedded"],
        ["refused", "shared"],
        ["refused", "memory"],
        ["refused", "local"],
        ["refused", "deny"],
    ];

    fn index(self) -> usize {
        self as usize
    }
}

/// A check of a well-formed token: where the answer came from, and the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// Known, from the cache.
    KnownByMemory,
    /// Known to the database.
    KnownByDatabase,
    /// Unknown, from the cache.
    UnknownByMemory,
    /// Unknown to the database.
    UnknownByDatabase,
    /// Another request's look-up, which this one waited for, failed.
    FailedByMemory,
    /// The database could not answer.
    FailedByDatabase,
}

impl LabelSet for TokenCheck {
    const LABELS: [&'static str; 2] = ["by", "result"];
    const VALUES: &'static [[&'static str; 2]] = &[
        ["memory", "known"],
        ["database", "known"],
        ["memory", "unknown"],
        ["database", "unknown"],
        ["memory", "failed"],
        ["database", "failed"],
    ];

    fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, Registry, TextEncoder};

    use super::*;

    /// Counts the kind at index `n` `n + 1` times, and returns what a scrape would show.
    fn scraped<K: LabelSet>(all: &[K]) -> Vec<u64> {
        let registry = Registry::new();
        let counters = StaticCounters::new(&Registrar(&registry), "counted", "Help.");
        for (at, one) in all.iter().enumerate() {
            (0..=at).for_each(|_| counters.count(*one));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let count = |values: &[&str; 2]| {
            let mut labels = [0, 1].map(|at| format!("{}=\"{}\"", K::LABELS[at], values[at]));
            labels.sort();
            let series = format!("counted{{{}}} ", labels.join(","));
            text.lines().find_map(|line| line.strip_prefix(&series)).expect("a series").parse().unwrap()
        };
        K::VALUES.iter().map(count).collect()
    }

    #[test]
    fn each_kind_counts_in_the_series_of_its_own_labels() {
        use RateDecision as Rate;
        let all = [Rate::AdmittedEmbedded, Rate::AdmittedShared, Rate::AdmittedLocal, Rate::AdmittedAllow];
        let refused =
            [Rate::RefusedEmbedded, Rate::RefusedShared, Rate::RefusedMemory, Rate::RefusedLocal, Rate::RefusedDeny];
        assert_eq!(scraped(&[&all[..], &refused].concat()), (1..=9).collect::<Vec<_>>());
        use TokenCheck as Check;
        let known = [Check::KnownByMemory, Check::KnownByDatabase, Check::UnknownByMemory, Check::UnknownByDatabase];
        let failed = [Check::FailedByMemory, Check::FailedByDatabase];
        assert_eq!(scraped(&[&known[..], &failed].concat()), (1..=6).collect::<Vec<_>>());
    }
}
