//! The background task that walks domains through their life: works on rows that are due, several at once.
//!
//! `turns` decides which rows are next, and this task which of them begin. A tenant may have a thousand domains whose name
//! servers hang, so some capacity is reserved for tenants with few running domains, and some for domains that a person waits
//! for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::{self, JoinSet};

use super::budgets;
use super::error::DomainsError;
use super::life::Next;
use super::needed::Needed;
use super::reason::{CA_ACCOUNT, DNS_DOWN, Reason};
use super::shared::Domains;
use crate::background::{Run, Task};
use crate::store::Registry;
use crate::store::registry::{DomainCount, DomainFilter, DomainRecord, DomainState, DueDomain, StoredCounts};

/// How often rows that are due are read.
///
/// Larger: a domain that was added through another node is checked later. Smaller: more statements.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How many domains this node works on at once.
///
/// Larger: more connections to CAs and name servers. Smaller: many domains that are added at once wait.
const AT_ONCE: usize = 16;

/// How many domains of one tenant this node works on while domains of others wait.
///
/// Larger: a tenant whose name servers hang keeps others waiting. Smaller: tenants take turns more often.
const SHARE: usize = 4;

/// How many more domains it works on for tenants below their share.
///
/// Larger: more connections at once. Smaller: while one tenant uses all the rest, others wait until one of its domains is done.
const RESERVED: usize = 4;

/// How many more domains it works on for which a person waits.
///
/// Larger: more connections at once. Smaller: a person waits for others.
const ASKED_AT_ONCE: usize = 8;

/// How many rows that are due are read at once.
///
/// Larger: a statement takes longer. Smaller: more statements, and fewer tenants to choose from at random.
const READ: u32 = 64;

/// How often rows are created for every host, and not only for new ones. A restore of the registry is noticed at once.
///
/// Larger: a host whose row is lost waits for longer. Smaller: each node has more statements that change nothing, some for
/// every host.
const CREATE_INTERVAL: Duration = Duration::from_hours(6);

/// How often the rows of full budgets are removed.
///
/// Larger: more useless rows. Smaller: more statements.
const FORGET_INTERVAL: Duration = Duration::from_mins(10);

/// How often the stored counts are read for the metrics.
///
/// Larger: metrics and readiness are older. Smaller: more statements.
const READ_COUNTS_INTERVAL: Duration = Duration::from_secs(5);

/// How often the domains are counted, by one node for all.
///
/// Larger: metrics and readiness are older. Smaller: more work for the registry.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// Counting takes at most this fraction of the time, as a divisor.
///
/// Larger: with very many domains, metrics and readiness are older. Smaller: the registry works more.
const COUNT_SHARE: u32 = 100;

/// How many failing domains readiness names.
///
/// Larger: a probe that runs every second gets a very large response. Smaller: fewer faults are visible without the list.
const MAX_NAMED: u32 = 100;

/// The task.
#[derive(Debug)]
pub struct DomainWorker {
    domains: Arc<Domains>,
    working: JoinSet<()>,
    /// The domains that are worked on.
    begun: HashMap<task::Id, Working>,
    /// Rows that are due, the next one first.
    due: Vec<DueDomain>,
    /// Whether there were more of them.
    is_more: bool,
    /// When they were read.
    read_at: Option<Instant>,
    needed: Needed,
    /// When rows were created for every host.
    created_at: Option<Instant>,
    /// How often the registry had been restored by then.
    restores: u64,
    /// When full budgets were removed.
    forgot_at: Option<Instant>,
    counted_at: Option<Instant>,
}

/// A domain that is worked on.
#[derive(Debug)]
struct Working {
    slug: String,
    /// Whether a person waits for it: until it was checked, and not for the order that may follow.
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
            created_at: None,
            restores: 0,
            forgot_at: None,
            counted_at: None,
        }
    }

    async fn work(&mut self) -> Result<(), DomainsError> {
        self.domains.trouble.rights.check(self.domains.registry().await?).await?;
        let directory = self.domains.directory.load_full();
        let restores = self.domains.following.restores();
        if self.created_at.is_none_or(|at| at.elapsed() >= CREATE_INTERVAL) || self.restores != restores {
            self.needed.forget();
            (self.created_at, self.restores) = (Some(Instant::now()), restores);
        }
        if self.forgot_at.is_none_or(|at| at.elapsed() >= FORGET_INTERVAL) {
            self.forgot_at = Some(Instant::now());
            self.domains.registry().await?.forget_full_budgets().await?;
        }
        self.needed.create(&self.domains, &directory).await?;
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

    /// Begins as many domains as there is capacity for. Returns whether any was begun.
    async fn begin(&mut self) -> Result<bool, DomainsError> {
        let registry = self.domains.registry().await?;
        let is_old = self.read_at.is_none_or(|at| at.elapsed() >= POLL_INTERVAL);
        if is_old || self.is_more && self.due.is_empty() {
            let (now, due) = registry.due_domains(READ).await?;
            self.domains.note_clock(now);
            (self.is_more, self.due, self.read_at) = (due.len() >= READ as usize, due, Some(Instant::now()));
        }
        let next = chosen(&mut self.due, self.begun.values());
        let leased = registry.lease_domains(self.domains.following.node().id(), &next).await?;
        let is_begun = !leased.is_empty();
        // If other nodes were faster, the next run reads what they left.
        self.is_more &= is_begun;
        for domain in leased {
            let domains = Arc::clone(&self.domains);
            let is_asked = next.iter().any(|due| due.is_asked && due.host == domain.host && due.slug == domain.slug);
            let is_asked = Arc::new(AtomicBool::new(is_asked));
            let begun = Working { slug: domain.slug.clone(), is_asked: Arc::clone(&is_asked) };
            let task = self.working.spawn(async move {
                let host = domain.host.clone();
                let outcome = match domains.advance(domain).await {
                    Ok(Next::Done) => Ok(()),
                    Ok(next) => {
                        if is_asked.swap(false, Ordering::Relaxed) {
                            domains.wake();
                        }
                        domains.proceed(next).await
                    }
                    Err(error) => Err(error),
                };
                domains.trouble.note_domain(&host, &outcome);
            });
            self.begun.insert(task.id(), begun);
        }
        Ok(is_begun)
    }

    /// Publishes the stored counts, and counts first if it is time and no other node does.
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
        for (of, number) in [(DNS_DOWN, &domains.unasked), (CA_ACCOUNT, &domains.without_account)] {
            let counts = counts.states.iter().filter(|(_, reason, _)| reason == of);
            number.store(counts.map(|(.., count)| count.cast_unsigned()).sum(), Ordering::Relaxed);
        }
        metrics.late.set(counts.late);
        domains.failing.store(Arc::new(counts.failing.into_iter().map(|(slug, fault)| (slug.into(), fault)).collect()));
        domains.try_keys(registry).await?;
        let Some(acme) = &domains.acme else { return Ok(()) };
        for (at, (ca, limits)) in acme.requests.authorities.iter().zip(&acme.limits).enumerate() {
            let (left, _) = budgets::orders_left(registry, &ca.name, *limits, budgets::Order::Renewal).await?;
            metrics.authority(&ca.name, left, !domains.breakers.is_open(at, Instant::now()));
        }
        Ok(())
    }
}

/// The counts that one node writes for all.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Counts {
    /// States, reasons and numbers.
    states: Vec<(String, String, i64)>,
    /// Certificates that should have been renewed.
    late: i64,
    /// The first failing domains: their tenants, with what is wrong.
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
        POLL_INTERVAL
    }

    async fn woken(&mut self) {
        tokio::select! {
            // What changed here may be due now.
            () = self.domains.changed.notified() => self.read_at = None,
            // There is capacity for another domain.
            Some(ended) = self.working.join_next_with_id() => self.ended(ended),
        }
    }

    async fn run(&mut self) -> Run {
        let outcome = self.work().await;
        self.domains.trouble.note_work(&outcome);
        if outcome.is_ok() { Run::Succeeded } else { Run::Failed }
    }
}

/// Removes the rows that may begin now from those that are due, in their order.
fn chosen<'b>(due: &mut Vec<DueDomain>, begun: impl Iterator<Item = &'b Working>) -> Vec<DueDomain> {
    let (mut asked, mut others) = (0, 0);
    let mut of_tenants: HashMap<String, usize> = HashMap::new();
    for begun in begun {
        let counted = if begun.is_asked.load(Ordering::Relaxed) { &mut asked } else { &mut others };
        *counted += 1;
        *of_tenants.entry(begun.slug.clone()).or_default() += 1;
    }
    let mut next = Vec::new();
    // Rows of tenants that have reached their share come last.
    for is_beyond in [false, true] {
        let mut left = Vec::with_capacity(due.len());
        for domain in due.drain(..) {
            let of_tenant = of_tenants.entry(domain.slug.clone()).or_default();
            let is_free = match (domain.is_asked, is_beyond) {
                (true, _) => asked < ASKED_AT_ONCE,
                (false, false) => others < AT_ONCE + RESERVED && *of_tenant < SHARE,
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
            begun.iter().map(|due| Working { slug: due.slug.clone(), is_asked: Arc::default() }).collect();
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
            .map(|n| Working { slug: format!("t{n}"), is_asked: Arc::new(AtomicBool::new(true)) })
            .collect();
        let mut rows = vec![asked(50), asked(51)];
        assert!(chosen(&mut rows, begun.iter()).is_empty());
        // Its order may take minutes.
        begun[0].is_asked.store(false, Ordering::Relaxed);
        assert_eq!(hosts(&chosen(&mut rows, begun.iter())), ["a50"]);
    }
}
