//! The background task that walks domains through their life: takes rows that are due, some at once.
//!
//! The longest due comes first, except that a tenant with its share of the work waits for the others: a tenant may have a
//! thousand domains, each with name servers that hang.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{self, JoinSet};

use super::needed::Needed;
use super::reason::DNS_DOWN;
use super::{Domains, DomainsError, Reason, budgets};
use crate::background::{Run, Task};
use crate::store::registry::{DomainCount, DomainFilter, DomainRecord, DomainState};
use crate::store::with_causes;
use crate::tenant::Directory;

/// How often rows that are due are looked for.
///
/// Larger: a domain that was added through another node is looked at later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long a lease lasts unless it is kept.
///
/// Larger: the work of a node that died goes on later. Smaller: a slow registry costs leases.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// How many domains this node works on at once.
///
/// Larger: more connections to authorities and name servers. Smaller: many domains that are added at once wait.
const AT_ONCE: usize = 16;

/// How many domains of one tenant this node works on while domains of others wait.
///
/// Larger: a tenant whose name servers hang keeps others waiting. Smaller: more statements to take many domains.
const SHARE: usize = 4;

/// How often rows are made for every host, and not only for new ones. A restore of the registry is noticed at once.
///
/// Larger: a host whose row is lost waits for longer. Smaller: more statements that change nothing.
const MAKE_INTERVAL: Duration = Duration::from_mins(10);

/// How often the domains are counted for the metrics.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// How many domains that fail are named in readiness.
///
/// Larger: a probe that comes every second gets a very large answer. Smaller: fewer faults are visible without the list.
const MAX_NAMED: u32 = 100;

/// The task.
#[derive(Debug)]
pub struct DomainWorker {
    domains: Arc<Domains>,
    working: JoinSet<()>,
    /// The tenant of each domain that is worked on.
    tenants: HashMap<task::Id, String>,
    needed: Needed,
    /// The directory whose hosts have rows.
    seen: Option<Arc<Directory>>,
    /// When rows were made for every host.
    made_at: Option<Instant>,
    /// How often the registry had been restored by then.
    restores: u64,
    counted_at: Option<Instant>,
    /// Whether the last failure was logged.
    is_failing: Arc<AtomicBool>,
}

impl DomainWorker {
    /// Works on the domains of a gateway.
    #[must_use]
    pub fn new(domains: Arc<Domains>) -> Self {
        Self {
            domains,
            working: JoinSet::new(),
            tenants: HashMap::new(),
            needed: Needed::default(),
            seen: None,
            made_at: None,
            restores: 0,
            counted_at: None,
            is_failing: Arc::default(),
        }
    }

    async fn work(&mut self) -> Result<(), DomainsError> {
        let directory = self.domains.directory.load_full();
        let restores = self.domains.following.restores();
        if self.made_at.is_none_or(|at| at.elapsed() >= MAKE_INTERVAL) || self.restores != restores {
            self.needed.forget();
            (self.seen, self.made_at, self.restores) = (None, Some(Instant::now()), restores);
        }
        if self.seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &directory)) {
            self.needed.make(&self.domains, &directory).await?;
            self.seen = Some(directory);
        }
        while let Some(ended) = self.working.try_join_next_with_id() {
            self.tenants.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        }
        let registry = self.domains.registry().await?;
        loop {
            let free = (AT_ONCE - self.working.len()).min(SHARE);
            if free == 0 {
                break;
            }
            let free = u32::try_from(free).unwrap_or(u32::MAX);
            let node = self.domains.following.node().id();
            let (now, leased) = registry.lease_domains(node, free, LEASE, &busy(&self.tenants)).await?;
            self.domains.note_clock(now);
            if leased.is_empty() {
                break;
            }
            for domain in leased {
                let (domains, is_failing) = (Arc::clone(&self.domains), Arc::clone(&self.is_failing));
                let slug = domain.slug.clone();
                let task = self.working.spawn(async move {
                    let host = domain.host.clone();
                    let outcome = domains.advance(domain).await;
                    note(&outcome, &host, &is_failing);
                    // There may be more of them.
                    domains.look_soon();
                });
                self.tenants.insert(task.id(), slug);
            }
        }
        if self.counted_at.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL) {
            self.counted_at = Some(Instant::now());
            self.count().await?;
        }
        Ok(())
    }

    async fn count(&self) -> Result<(), DomainsError> {
        let (domains, metrics) = (&self.domains, &self.domains.metrics);
        let registry = domains.registry().await?;
        let counts = registry.count_domains().await?;
        let read = |DomainCount { state, reason, count }: &DomainCount| (state.as_str(), reason.clone(), *count);
        let counts: Vec<_> = counts.iter().map(read).collect();
        metrics.counted(&DomainState::ALL.map(DomainState::as_str), &counts);
        let unasked =
            counts.iter().filter(|(_, reason, _)| reason == DNS_DOWN).map(|(.., count)| count.cast_unsigned());
        domains.unasked.store(unasked.sum(), Ordering::Relaxed);
        metrics.late.set(registry.count_late_domains().await?);
        let failing = DomainFilter { state: Some(DomainState::Failing), ..DomainFilter::default() };
        let failing = registry.list_domains(&failing, MAX_NAMED).await?;
        let fault = |row: &DomainRecord| {
            let reason = Reason::read(&row.reason);
            (row.slug.as_str().into(), format!("{}: {}. {}", row.host, reason.name(), reason.next_step()))
        };
        domains.failing.store(Arc::new(failing.iter().map(fault).collect()));
        domains.try_keys(registry).await?;
        let Some(acme) = &domains.acme else { return Ok(()) };
        for (at, (authority, limits)) in acme.requests.authorities.iter().zip(&acme.limits).enumerate() {
            let (left, _) = budgets::orders_left(registry, &authority.name, *limits, budgets::Order::Renewal).await?;
            metrics.authority(&authority.name, left, !domains.breakers.is_open(at, Instant::now()));
        }
        Ok(())
    }
}

impl Task for DomainWorker {
    const NAME: &'static str = "domains";

    fn interval(&self) -> Duration {
        LOOK_INTERVAL
    }

    async fn woken(&mut self) {
        self.domains.changed.notified().await;
    }

    async fn run(&mut self) -> Run {
        let outcome = self.work().await;
        note(&outcome, "", &self.is_failing);
        if outcome.is_ok() { Run::Succeeded } else { Run::Failed }
    }
}

/// The tenants that have their share of this node's work.
fn busy(tenants: &HashMap<task::Id, String>) -> Vec<&str> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for slug in tenants.values() {
        *counts.entry(slug).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count >= SHARE).map(|(slug, _)| slug).collect()
}

/// Logs the first failure of several in a row. A lease ends by itself.
fn note(outcome: &Result<(), DomainsError>, host: &str, is_failing: &AtomicBool) {
    match outcome {
        Ok(()) => is_failing.store(false, Ordering::Relaxed),
        // It is logged when it changes, and not for each domain.
        Err(error @ (DomainsError::Unopened(_) | DomainsError::Damaged)) => {
            tracing::debug!(cause = with_causes(error), host, "nothing can be ordered");
        }
        Err(error) => {
            if !is_failing.swap(true, Ordering::Relaxed) {
                tracing::error!(cause = with_causes(error), host, "domains can't be looked after");
            }
        }
    }
}
