//! The background task that walks domains through their life: takes rows that are due, some at once.
//!
//! `turns` decides what comes next, and this what is begun: a tenant may have a thousand domains, each with name servers that
//! hang, so some of the work is only for tenants that have little of it, and some only for domains that a person waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::{self, JoinSet};

use super::life::Next;
use super::needed::Needed;
use super::reason::DNS_DOWN;
use super::{Domains, DomainsError, Reason, budgets};
use crate::background::{Run, Task};
use crate::store::Registry;
use crate::store::registry::{DomainCount, DomainFilter, DomainRecord, DomainState, DueDomain, StoredCounts};

/// How often rows that are due are looked for.
///
/// Larger: a domain that was added through another node is looked at later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How many domains this node works on at once.
///
/// Larger: more connections to authorities and name servers. Smaller: many domains that are added at once wait.
const AT_ONCE: usize = 16;

/// How many domains of one tenant this node works on while domains of others wait.
///
/// Larger: a tenant whose name servers hang keeps others waiting. Smaller: tenants take turns more often.
const SHARE: usize = 4;

/// How many it works on in addition for tenants that have not their share.
///
/// Larger: more connections at once. Smaller: next to one that has everything, a tenant waits until one of those is done.
const KEPT: usize = 4;

/// How many domains for which a person waits it works on in addition.
///
/// Larger: more connections at once. Smaller: a person waits for others.
const ASKED_AT_ONCE: usize = 8;

/// How many rows that are due are read at once.
///
/// Larger: a statement takes longer. Smaller: more statements, and fewer tenants among which chance decides.
const READ: u32 = 64;

/// How often rows are made for every host, and not only for new ones. A restore of the registry is noticed at once.
///
/// Larger: a host whose row is lost waits for longer. Smaller: each node has more statements that change nothing, some for
/// every host.
const MAKE_INTERVAL: Duration = Duration::from_hours(6);

/// How often the rows of budgets are removed that are full.
///
/// Larger: more rows that say nothing. Smaller: more statements.
const FORGET_INTERVAL: Duration = Duration::from_mins(10);

/// How often what was counted for the metrics is read.
///
/// Larger: metrics and readiness are older. Smaller: more statements.
const READ_COUNTS_INTERVAL: Duration = Duration::from_secs(5);

/// How often the domains are counted, by one node for all.
///
/// Larger: metrics and readiness are older. Smaller: more work for the registry.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// Counting takes at most one part in so many of the time.
///
/// Larger: with very many domains, metrics and readiness are older. Smaller: the registry works more.
const COUNT_SHARE: u32 = 100;

/// How many domains that fail are named in readiness.
///
/// Larger: a probe that comes every second gets a very large answer. Smaller: fewer faults are visible without the list.
const MAX_NAMED: u32 = 100;

/// The task.
#[derive(Debug)]
pub struct DomainWorker {
    domains: Arc<Domains>,
    working: JoinSet<()>,
    /// What is worked on.
    begun: HashMap<task::Id, Begun>,
    /// Rows that are due, the next one first.
    due: Vec<DueDomain>,
    /// Whether there were more of them.
    is_more: bool,
    /// When they were read.
    read_at: Option<Instant>,
    needed: Needed,
    /// When rows were made for every host.
    made_at: Option<Instant>,
    /// How often the registry had been restored by then.
    restores: u64,
    /// When budgets that are full were removed.
    forgot_at: Option<Instant>,
    counted_at: Option<Instant>,
}

/// A domain that is worked on.
#[derive(Debug)]
struct Begun {
    slug: String,
    /// Whether a person waits for it: until it was looked at, and not for the order that may follow.
    is_asked: Arc<AtomicBool>,
}

impl DomainWorker {
    /// Works on the domains of a gateway.
    #[must_use]
    pub fn new(domains: Arc<Domains>) -> Self {
        Self {
            domains,
            working: JoinSet::new(),
            begun: HashMap::new(),
            due: Vec::new(),
            is_more: false,
            read_at: None,
            needed: Needed::default(),
            made_at: None,
            restores: 0,
            forgot_at: None,
            counted_at: None,
        }
    }

    async fn work(&mut self) -> Result<(), DomainsError> {
        self.domains.trouble.rights.check(self.domains.registry().await?).await?;
        let directory = self.domains.directory.load_full();
        let restores = self.domains.following.restores();
        if self.made_at.is_none_or(|at| at.elapsed() >= MAKE_INTERVAL) || self.restores != restores {
            self.needed.forget();
            (self.made_at, self.restores) = (Some(Instant::now()), restores);
        }
        if self.forgot_at.is_none_or(|at| at.elapsed() >= FORGET_INTERVAL) {
            self.forgot_at = Some(Instant::now());
            self.domains.registry().await?.forget_full_budgets().await?;
        }
        self.needed.make(&self.domains, &directory).await?;
        while let Some(ended) = self.working.try_join_next_with_id() {
            self.ended(ended);
        }
        while self.begin().await? {}
        if self.counted_at.is_none_or(|at| at.elapsed() >= READ_COUNTS_INTERVAL) {
            self.counted_at = Some(Instant::now());
            self.count().await?;
        }
        Ok(())
    }

    fn ended(&mut self, ended: Result<(task::Id, ()), task::JoinError>) {
        self.begun.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
    }

    /// Begins what there is room for. Returns whether anything was begun.
    async fn begin(&mut self) -> Result<bool, DomainsError> {
        let registry = self.domains.registry().await?;
        let is_old = self.read_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if is_old || self.is_more && self.due.is_empty() {
            let (now, due) = registry.due_domains(READ).await?;
            self.domains.note_clock(now);
            (self.is_more, self.due, self.read_at) = (due.len() >= READ as usize, due, Some(Instant::now()));
        }
        let next = chosen(&mut self.due, self.begun.values());
        let leased = registry.lease_domains(self.domains.following.node().id(), &next).await?;
        let is_begun = !leased.is_empty();
        // Other nodes were faster: what they have left is read with the next run.
        self.is_more &= is_begun;
        for domain in leased {
            let domains = Arc::clone(&self.domains);
            let is_asked = next.iter().any(|due| due.is_asked && due.host == domain.host && due.slug == domain.slug);
            let is_asked = Arc::new(AtomicBool::new(is_asked));
            let begun = Begun { slug: domain.slug.clone(), is_asked: Arc::clone(&is_asked) };
            let task = self.working.spawn(async move {
                let host = domain.host.clone();
                let outcome = match domains.look_at(domain).await {
                    Ok(Next::Nothing) => Ok(()),
                    Ok(next) => {
                        if is_asked.swap(false, Ordering::Relaxed) {
                            domains.look_soon();
                        }
                        domains.follow(next).await
                    }
                    Err(error) => Err(error),
                };
                domains.trouble.note_domain(&host, &outcome);
            });
            self.begun.insert(task.id(), begun);
        }
        Ok(is_begun)
    }

    /// Shows what was counted, and counts if it is time and no other node does.
    async fn count(&self) -> Result<(), DomainsError> {
        let (domains, metrics) = (&self.domains, &self.domains.metrics);
        let registry = domains.registry().await?;
        let StoredCounts { counts, is_due } = registry.stored_counts().await?;
        let counts = if is_due && registry.lease_counting().await? {
            let began = Instant::now();
            let counts = Counts::read(registry).await?;
            let text = serde_json::to_string(&counts).expect("texts and numbers are always JSON");
            registry.store_counts(&text, COUNT_INTERVAL.max(began.elapsed() * COUNT_SHARE)).await?;
            counts
        } else {
            serde_json::from_str(&counts).unwrap_or_default()
        };
        metrics.counted(&DomainState::ALL.map(DomainState::as_str), &counts.states);
        let unasked =
            counts.states.iter().filter(|(_, reason, _)| reason == DNS_DOWN).map(|(.., count)| count.cast_unsigned());
        domains.unasked.store(unasked.sum(), Ordering::Relaxed);
        metrics.late.set(counts.late);
        domains.failing.store(Arc::new(counts.failing.into_iter().map(|(slug, fault)| (slug.into(), fault)).collect()));
        domains.try_keys(registry).await?;
        let Some(acme) = &domains.acme else { return Ok(()) };
        for (at, (authority, limits)) in acme.requests.authorities.iter().zip(&acme.limits).enumerate() {
            let (left, _) = budgets::orders_left(registry, &authority.name, *limits, budgets::Order::Renewal).await?;
            metrics.authority(&authority.name, left, !domains.breakers.is_open(at, Instant::now()));
        }
        Ok(())
    }
}

/// What one node counts for all.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Counts {
    /// States, reasons and numbers.
    states: Vec<(String, String, i64)>,
    /// Certificates that should have been renewed.
    late: i64,
    /// The first domains that fail: tenants, with what is wrong.
    failing: Vec<(String, String)>,
}

impl Counts {
    async fn read(registry: &Registry) -> Result<Self, DomainsError> {
        let states = registry.count_domains().await?.into_iter();
        let states = states.map(|DomainCount { state, reason, count }| (state.as_str().to_owned(), reason, count));
        let failing = DomainFilter { state: Some(DomainState::Failing), ..DomainFilter::default() };
        let failing = registry.list_domains(&failing, MAX_NAMED).await?;
        let fault = |row: &DomainRecord| {
            let reason = Reason::of(row, None);
            (row.slug.clone(), format!("{}: {}. {}", row.host, reason.name(), reason.next_step()))
        };
        Ok(Self {
            states: states.collect(),
            late: registry.count_late_domains().await?,
            failing: failing.iter().map(fault).collect(),
        })
    }
}

impl Task for DomainWorker {
    const NAME: &'static str = "domains";

    fn interval(&self) -> Duration {
        LOOK_INTERVAL
    }

    async fn woken(&mut self) {
        tokio::select! {
            // What changed here may be due now.
            () = self.domains.changed.notified() => self.read_at = None,
            // There is room for another one.
            Some(ended) = self.working.join_next_with_id() => self.ended(ended),
        }
    }

    async fn run(&mut self) -> Run {
        let outcome = self.work().await;
        self.domains.trouble.note_work(&outcome);
        if outcome.is_ok() { Run::Succeeded } else { Run::Failed }
    }
}

/// Takes those out of the rows that are due, in their order, which may be begun beside what is worked on.
fn chosen<'b>(due: &mut Vec<DueDomain>, begun: impl Iterator<Item = &'b Begun>) -> Vec<DueDomain> {
    let (mut asked, mut others) = (0, 0);
    let mut of_tenants: HashMap<String, usize> = HashMap::new();
    for begun in begun {
        let counted = if begun.is_asked.load(Ordering::Relaxed) { &mut asked } else { &mut others };
        *counted += 1;
        *of_tenants.entry(begun.slug.clone()).or_default() += 1;
    }
    let mut next = Vec::new();
    // Those of tenants that have their share come after all others.
    for is_beyond in [false, true] {
        let mut left = Vec::with_capacity(due.len());
        for domain in due.drain(..) {
            let of_tenant = of_tenants.entry(domain.slug.clone()).or_default();
            let is_free = match (domain.is_asked, is_beyond) {
                (true, _) => asked < ASKED_AT_ONCE,
                (false, false) => others < AT_ONCE + KEPT && *of_tenant < SHARE,
                (false, true) => others < AT_ONCE,
            };
            if !is_free {
                left.push(domain);
                continue;
            }
            let counted = if domain.is_asked { &mut asked } else { &mut others };
            *counted += 1;
            *of_tenant += 1;
            next.push(domain);
        }
        *due = left;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(host: &str, slug: &str, is_asked: bool) -> DueDomain {
        DueDomain { host: host.to_owned(), slug: slug.to_owned(), is_asked }
    }

    fn hosts(chosen: &[DueDomain]) -> Vec<&str> {
        chosen.iter().map(|domain| &*domain.host).collect()
    }

    #[test]
    fn a_tenant_with_many_domains_leaves_room_for_others_and_for_those_that_wait() {
        let many = || (0..50).map(|n| due(&format!("h{n}"), "many", false));
        let mut rows: Vec<_> = many().collect();
        let begun: Vec<_> = chosen(&mut rows, [].iter());
        assert_eq!((begun.len(), rows.len()), (AT_ONCE, 50 - AT_ONCE));
        let begun: Vec<_> =
            begun.iter().map(|due| Begun { slug: due.slug.clone(), is_asked: Arc::default() }).collect();
        assert!(chosen(&mut rows, begun.iter()).is_empty());
        let mut rows: Vec<_> = many().chain([due("new", "one", false), due("asked", "many", true)]).collect();
        assert_eq!(hosts(&chosen(&mut rows, begun.iter())), ["new", "asked"]);

        let mut rows: Vec<_> = many().chain((0..3).map(|n| due(&format!("o{n}"), "other", false))).collect();
        let both = chosen(&mut rows, [].iter());
        assert_eq!(hosts(&both)[..7], ["h0", "h1", "h2", "h3", "o0", "o1", "o2"], "its share first, and then the rest");
        assert_eq!(both.len(), AT_ONCE);

        let mut rows: Vec<_> = (0..50).map(|n| due(&format!("a{n}"), &format!("t{n}"), true)).collect();
        assert_eq!(chosen(&mut rows, [].iter()).len(), ASKED_AT_ONCE);
    }

    #[test]
    fn a_place_for_those_that_wait_is_free_again_after_the_look() {
        let asked = |n: usize| due(&format!("a{n}"), &format!("t{n}"), true);
        let begun: Vec<_> = (0..ASKED_AT_ONCE)
            .map(|n| Begun { slug: format!("t{n}"), is_asked: Arc::new(AtomicBool::new(true)) })
            .collect();
        let mut rows = vec![asked(50), asked(51)];
        assert!(chosen(&mut rows, begun.iter()).is_empty());
        // Its order may take minutes.
        begun[0].is_asked.store(false, Ordering::Relaxed);
        assert_eq!(hosts(&chosen(&mut rows, begun.iter())), ["a50"]);
    }
}
