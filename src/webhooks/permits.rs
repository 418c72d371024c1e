//! How many requests to receivers run at once: of the node, of a tenant, to a host, and to all slow hosts.
//!
//! Waiting is fair, and begins with the narrowest limit, so requests that wait for a busy host hold no permit of the node. Many
//! tenants may send to one host, such as an automation service: at most one request of each tenant waits for the shared
//! limits, so they take turns, and a host may be slow for one tenant and fast for the others.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::WebhookConfig;
use crate::outbound::Target;

/// How long the median request to a slow receiver takes.
///
/// Larger: receivers that do their work before they respond may use up the permits. Smaller: distant ordinary receivers share
/// a quarter of them.
const SLOW: Duration = Duration::from_secs(2);

/// The part of the node's permits that all slow receivers share, as a divisor.
///
/// Larger: slow receivers get events later. Smaller: they delay the others.
const SLOW_SHARE: usize = 4;

/// Window of the median, in requests to a host.
///
/// Larger: a host that has become slow is noticed later. Smaller: a few slow responses make a host "slow".
const REMEMBERED: usize = 9;

/// How many unused slow routes are kept: the latest ones.
///
/// Larger: an account with many slow hosts uses more memory. Smaller: a slow receiver delays the first requests to others,
/// until it is found to be slow again.
const MAX_SLOW: usize = 1024;

/// The size of all bodies in flight, in KiB.
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
    routes: Shared<(Arc<str>, String), Route>,
}

/// The requests of a tenant to one host and port.
#[derive(Debug)]
struct Route {
    /// Held while a request waits.
    turn: Arc<Semaphore>,
    /// How long the latest requests took, and when the last one ended.
    took: Mutex<(VecDeque<Duration>, Option<Instant>)>,
}

impl Route {
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

/// Values that are shared while they are used.
#[derive(Debug)]
struct Shared<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K: Hash + Eq, V> Shared<K, V> {
    /// A known value, or a new one. Of the unused values, the [`MAX_SLOW`] with the latest instants of `last` are kept.
    fn get(&self, key: K, new: impl FnOnce() -> V, last: impl Fn(&V) -> Option<Instant>) -> Arc<V> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key) {
            return Arc::clone(known);
        }
        // Only before the map would grow, so each value is visited a few times at most.
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

/// The limits of a tenant and a host that apply to one subscription.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    tenant: Arc<Semaphore>,
    host: Arc<Semaphore>,
    route: Arc<Route>,
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
            routes: Shared(Mutex::default()),
        }
    }

    /// The limits that apply to a subscription.
    pub(super) fn limits(&self, tenant: &Arc<str>, target: &Target) -> Limits {
        let host = format!("{}:{}", target.host(), target.port());
        Limits {
            tenant: self.tenants.get(Arc::clone(tenant), || Semaphore::new(self.per_tenant), |_| None),
            route: self.routes.get((Arc::clone(tenant), host.clone()), Route::new, Route::slow_at),
            host: self.hosts.get(host, || Semaphore::new(self.per_host), |_| None),
        }
    }

    /// Waits until a request with a body of this many bytes may run.
    pub(super) async fn acquire(&self, limits: &Limits, bytes: usize) -> Permit {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(MAX_KIB);
        let slow = limits.route.is_slow().then_some((&self.slow, 1));
        let wanted = [(&limits.tenant, 1), (&limits.route.turn, 1), (&limits.host, 1)];
        let mut held = Vec::with_capacity(6);
        for (semaphore, count) in wanted.into_iter().chain(slow).chain([(&self.node, 1), (&self.kib, kib)]) {
            let permit = Arc::clone(semaphore).acquire_many_owned(count).await;
            held.push(permit.expect("it is never closed"));
        }
        // The next request of the tenant may wait now.
        drop(held.remove(1));
        Permit(held)
    }
}

impl Limits {
    /// Notes how long a request took.
    pub(super) fn note(&self, took: Duration) {
        self.route.note(took);
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
        let limits = |tenant: &str| permits.limits(&tenant.into(), &target);
        let held = permits.acquire(&limits("many"), 0).await;
        let (admitted, mut order) = mpsc::unbounded_channel();
        for tenant in ["many", "many", "many", "one"] {
            let (permits, limits, admitted) = (Arc::clone(&permits), limits(tenant), admitted.clone());
            tokio::spawn(async move {
                let permit = permits.acquire(&limits, 0).await;
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
        let limits =
            |host: usize| permits.limits(&"many".into(), &Target::parse(&format!("https://h{host}.test/")).unwrap());
        let slow = |host: usize| {
            let limits = limits(host);
            (0..REMEMBERED).for_each(|_| limits.note(SLOW));
        };
        let hosts = 8 * MAX_SLOW;
        (0..hosts).for_each(slow);
        let known = permits.routes.0.lock().unwrap().len();
        assert!(known <= 4 * MAX_SLOW, "{known} of {hosts}");
        assert!(limits(hosts - 1).route.is_slow(), "the latest ones are remembered");
        assert!(!limits(0).route.is_slow(), "the first ones are forgotten");
    }
}
