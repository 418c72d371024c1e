//! How many requests to receivers are made at once: by the node, for a tenant, to a host, and to slow hosts together.
//!
//! Waiting is fair, and in the order of the narrowest limit first, so that requests that wait for a busy host hold no
//! permit of the node. Many tenants may send to one host, as that of an automation service: at most one request of each waits for
//! the limits that are common, so they take turns, and how fast it answers one tenant says nothing about the others.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::WebhookConfig;
use crate::outbound::Target;

/// How long the median request to a slow receiver takes.
///
/// Larger: receivers that do their work before they answer may use up the permits. Smaller: ordinary ones far away
/// share a quarter of them.
const SLOW: Duration = Duration::from_secs(2);

/// Slow receivers together may use one in this many permits of the node.
///
/// Larger: they are served later. Smaller: they delay the others.
const SLOW_SHARE: usize = 4;

/// Of how many requests to a host the median is taken.
///
/// Larger: a host that has become slow is noticed later. Smaller: a few slow answers make it one.
const REMEMBERED: usize = 9;

/// How many slow ways are remembered that no request uses: those that were used last.
///
/// Larger: an account that sends to ever new slow hosts occupies more memory. Smaller: a slow receiver delays the first
/// requests of others, until it is known to be slow again.
const MAX_SLOW: usize = 1024;

/// How many KiB bodies in flight may have together.
///
/// Larger: more memory. Smaller: long bodies wait for each other.
const MAX_KIB: u32 = 64 * 1024;

/// The limits of a node.
#[derive(Debug)]
pub(super) struct Permits {
    node: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    per_tenant: usize,
    per_host: usize,
    tenants: Shared<Arc<str>, Semaphore>,
    hosts: Shared<String, Semaphore>,
    ways: Shared<(Arc<str>, String), Way>,
}

/// What a tenant sends to one host and port.
#[derive(Debug)]
struct Way {
    /// Held while a request waits.
    turn: Arc<Semaphore>,
    /// How long the latest requests took, and when the last one ended.
    took: Mutex<(VecDeque<Duration>, Option<Instant>)>,
}

impl Way {
    fn new() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), took: Mutex::default() }
    }

    fn is_slow(&self) -> bool {
        self.slow_at().is_some()
    }

    /// When its last request ended, if it is slow.
    fn slow_at(&self) -> Option<Instant> {
        let (took, ended) = &*self.took.lock().unwrap_or_else(PoisonError::into_inner);
        let mut took: Vec<_> = took.iter().copied().collect();
        took.sort_unstable();
        let is_slow = took.get(took.len() / 2).is_some_and(|median| took.len() == REMEMBERED && *median >= SLOW);
        ended.filter(|_| is_slow)
    }

    fn note(&self, duration: Duration) {
        let (took, ended) = &mut *self.took.lock().unwrap_or_else(PoisonError::into_inner);
        if took.len() == REMEMBERED {
            took.pop_front();
        }
        took.push_back(duration);
        *ended = Some(Instant::now());
    }
}

/// Values that live at least as long as they are used.
#[derive(Debug)]
struct Shared<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K: Hash + Eq, V> Shared<K, V> {
    /// A value, or a new one. Of those that are not in use, the [`MAX_SLOW`] are kept for which `last` returns the latest
    /// instants.
    fn get(&self, key: K, new: impl FnOnce() -> V, last: impl Fn(&V) -> Option<Instant>) -> Arc<V> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key) {
            return Arc::clone(known);
        }
        // Before the map would grow, so each value is looked at a few times at most.
        if all.len() == all.capacity() {
            let is_unused = |value: &Arc<V>| Arc::strong_count(value) == 1;
            let mut kept: Vec<_> =
                all.values().filter(|value| is_unused(value)).filter_map(|value| last(value)).collect();
            kept.sort_unstable();
            let first = kept.len().checked_sub(MAX_SLOW).map(|at| kept[at]);
            let is_kept = |value: &V| last(value).is_some_and(|at| first.is_none_or(|first| at >= first));
            all.retain(|_, value| !is_unused(value) || is_kept(value));
        }
        Arc::clone(all.entry(key).or_insert_with(|| Arc::new(new())))
    }
}

/// The permits of a tenant and a host, for one subscription.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    tenant: Arc<Semaphore>,
    host: Arc<Semaphore>,
    way: Arc<Way>,
}

/// The permits of one request.
#[derive(Debug)]
pub(super) struct Permit(#[expect(dead_code, reason = "held")] Vec<OwnedSemaphorePermit>);

impl Permits {
    pub(super) fn new(config: &WebhookConfig) -> Self {
        let in_flight = config.requests.in_flight as usize;
        Self {
            node: Arc::new(Semaphore::new(in_flight)),
            slow: Arc::new(Semaphore::new((in_flight / SLOW_SHARE).max(1))),
            kib: Arc::new(Semaphore::new(MAX_KIB as usize)),
            per_tenant: config.per_tenant as usize,
            per_host: config.requests.per_host as usize,
            tenants: Shared(Mutex::default()),
            hosts: Shared(Mutex::default()),
            ways: Shared(Mutex::default()),
        }
    }

    /// The limits that apply to a subscription.
    pub(super) fn lane(&self, tenant: &Arc<str>, target: &Target) -> Lane {
        let host = format!("{}:{}", target.host(), target.port());
        Lane {
            tenant: self.tenants.get(Arc::clone(tenant), || Semaphore::new(self.per_tenant), |_| None),
            way: self.ways.get((Arc::clone(tenant), host.clone()), Way::new, Way::slow_at),
            host: self.hosts.get(host, || Semaphore::new(self.per_host), |_| None),
        }
    }

    /// Waits until a request with a body of this many bytes may be made.
    pub(super) async fn acquire(&self, lane: &Lane, bytes: usize) -> Permit {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(MAX_KIB);
        let slow = lane.way.is_slow().then_some((&self.slow, 1));
        let wanted = [(&lane.tenant, 1), (&lane.way.turn, 1), (&lane.host, 1)];
        let mut held = Vec::with_capacity(6);
        for (semaphore, count) in wanted.into_iter().chain(slow).chain([(&self.node, 1), (&self.kib, kib)]) {
            let permit = Arc::clone(semaphore).acquire_many_owned(count).await;
            held.push(permit.expect("it is never closed"));
        }
        // It waits no more.
        drop(held.remove(1));
        Permit(held)
    }
}

impl Lane {
    /// Notes how long a request took.
    pub(super) fn note(&self, took: Duration) {
        self.way.note(took);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn tenants_take_turns_at_a_host_however_many_requests_of_one_wait() {
        let mut config = WebhookConfig::default();
        config.requests.per_host = 1;
        let permits = Arc::new(Permits::new(&config));
        let target = Target::parse("https://hooks.test/").unwrap();
        let lane = |tenant: &str| permits.lane(&tenant.into(), &target);
        let held = permits.acquire(&lane("many"), 0).await;
        let (admitted, mut order) = mpsc::unbounded_channel();
        for tenant in ["many", "many", "many", "one"] {
            let (permits, lane, admitted) = (Arc::clone(&permits), lane(tenant), admitted.clone());
            tokio::spawn(async move {
                let permit = permits.acquire(&lane, 0).await;
                admitted.send((tenant, permit)).unwrap();
            });
            // It waits before the next one comes.
            tokio::task::yield_now().await;
        }
        drop(held);
        let mut tenants = Vec::new();
        for _ in 0..4 {
            let (tenant, _permit) = order.recv().await.unwrap();
            tenants.push(tenant);
        }
        assert_eq!(tenants, ["many", "one", "many", "many"]);
    }

    #[test]
    fn slow_ways_that_are_not_in_use_are_remembered_up_to_a_number_of_the_latest() {
        let permits = Permits::new(&WebhookConfig::default());
        let lane =
            |host: usize| permits.lane(&"many".into(), &Target::parse(&format!("https://h{host}.test/")).unwrap());
        let slow = |host: usize| {
            let lane = lane(host);
            (0..REMEMBERED).for_each(|_| lane.note(SLOW));
        };
        let hosts = 8 * MAX_SLOW;
        (0..hosts).for_each(slow);
        let known = permits.ways.0.lock().unwrap().len();
        assert!(known <= 4 * MAX_SLOW, "{known} of {hosts}");
        assert!(lane(hosts - 1).way.is_slow(), "the latest ones are remembered");
        assert!(!lane(0).way.is_slow(), "the first ones are forgotten");
    }
}
