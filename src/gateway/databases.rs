//! Inspects all tenants' databases in the background: which can't be used, which have an altered schema, which hold
//! wrongly derived rows, and which have subscriptions of webhooks.
//!
//! A gateway starts without opening its tenants' databases. This finds a wrong password or a database that was never
//! migrated before its callers do. Databases are inspected one after another, each over its own connection, which is
//! closed afterwards. A database in use is not opened, except when a count of its rows is due: its
//! [breaker](crate::store::Breaker) knows whether it works.
//!
//! Nodes of a registry divide its tenants: each inspects those that it looks after, at a pace by which all nodes together
//! open as many databases as one would. A database that can't be used is left to another node.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::background::{Run, Task};
use crate::config::TenantConfig;
use crate::metrics::DatabaseMetrics;
use crate::registry::{Duty, Following};
use crate::store::{DatabaseConcern, OWN_DATABASE, Store, StoreError, SubscriptionCounts, with_causes};
use crate::tenant::{Directory, TenantDatabase};
use crate::webhooks::Webhooks;

/// The pause between two rounds.
///
/// Larger: a fault of an unused database is reported later. Smaller: quiet databases are opened more often.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(60);

/// The minimum pause between two databases.
///
/// Larger: a round through thousands of databases takes longer. Smaller: opening them takes more of the servers'
/// time.
const BETWEEN_DATABASES: Duration = Duration::from_millis(100);

/// The pause after a database, as a multiple of the time that its inspection took.
///
/// Larger: as for [`BETWEEN_DATABASES`]. Smaller: counting takes more of the servers' time.
const REST: u32 = 3;

/// How often wrong rows are counted after none were found. A count takes seconds for a million submissions.
///
/// Larger: wrong rows are reported later. Smaller: databases do this work more often.
const COUNTED_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// How many new faults of one round are logged one by one.
///
/// Larger: when a server with many tenants goes down, the log fills with them. Smaller: fewer are named in the log.
const LOGGED: usize = 10;

/// What the inspection found.
#[derive(Debug)]
pub(super) struct Databases {
    directory: Arc<ArcSwap<Directory>>,
    following: Option<Arc<Following>>,
    webhooks: Option<Webhooks>,
    metrics: DatabaseMetrics,
    /// By tenant slug.
    found: Mutex<HashMap<Arc<str>, InspectedDatabase>>,
    changed: Notify,
}

/// The background task that inspects them.
pub(super) struct DatabaseInspection(pub(super) Arc<Databases>);

impl Task for DatabaseInspection {
    const NAME: &'static str = "databases";

    fn interval(&self) -> Duration {
        BETWEEN_ROUNDS
    }

    async fn woken(&mut self) {
        self.0.changed.notified().await;
    }

    async fn run(&mut self) -> Run {
        self.0.inspect().await;
        Run::Succeeded
    }
}

/// What is known of one database.
#[derive(Clone, Debug)]
struct InspectedDatabase {
    /// The tenant's configuration at the time; a changed one may name another database.
    tenant: Arc<TenantConfig>,
    /// Why it can't be used.
    fault: Option<String>,
    /// How its schema was altered.
    altered: Vec<DatabaseConcern>,
    /// How many rows are wrongly derived, and when they were counted.
    counted: Option<(u64, Instant)>,
    subscriptions: SubscriptionCounts,
    /// How many removals the guard of SCIM holds.
    held: u64,
}

impl InspectedDatabase {
    fn not_inspected(tenant: &Arc<TenantConfig>) -> Self {
        Self {
            tenant: Arc::clone(tenant),
            fault: None,
            altered: Vec::new(),
            counted: None,
            subscriptions: SubscriptionCounts::default(),
            held: 0,
        }
    }

    /// Whether the tenant still has the configuration with which it was inspected.
    fn is_current(&self, directory: &Directory) -> bool {
        directory.config(&self.tenant.slug).is_some_and(|tenant| Arc::ptr_eq(tenant, &self.tenant))
    }

    fn is_count_due(&self) -> bool {
        self.counted.is_none_or(|(wrong, at)| wrong > 0 || at.elapsed() > COUNTED_EVERY)
    }
}

impl Databases {
    /// Has webhooks look at the databases that have subscriptions. With a registry, the nodes divide its tenants.
    pub(super) fn new(
        directory: Arc<ArcSwap<Directory>>,
        following: Option<Arc<Following>>,
        webhooks: Option<Webhooks>,
        metrics: DatabaseMetrics,
    ) -> Self {
        Self { directory, following, webhooks, metrics, found: Mutex::default(), changed: Notify::new() }
    }

    /// Starts a round now, because the tenants changed.
    pub(super) fn inspect_soon(&self) {
        self.changed.notify_one();
    }

    /// The tenants whose databases have an altered schema, and how.
    pub(super) fn altered(&self) -> Vec<(Arc<str>, String)> {
        let directory = self.directory.load();
        let found = self.lock();
        let current = found.iter().filter(|(_, found)| found.is_current(&directory));
        current
            .flat_map(|(slug, found)| found.altered.iter().map(|concern| (Arc::clone(slug), concern.to_string())))
            .collect()
    }

    /// The tenants whose databases don't work, and why.
    pub(super) fn faulty(&self) -> Vec<(Arc<str>, String)> {
        let directory = self.directory.load();
        let in_use = |slug: &str| directory.in_use(slug).is_some();
        let used =
            directory.tenants().filter_map(|tenant| Some((Arc::clone(&tenant.slug), tenant.database.trouble()?)));
        let found = self.lock();
        let unused = found.iter().filter_map(|(slug, found)| {
            let fault = found.fault.as_ref().filter(|_| !in_use(slug) && found.is_current(&directory))?;
            Some((Arc::clone(slug), fault.clone()))
        });
        let shared = directory.owners().all_refused();
        let shared = shared.into_iter().map(|(slug, error)| (slug, in_full(&error)));
        // Each once: one that is refused may be in use, and was perhaps inspected.
        let all: BTreeMap<_, _> = unused.chain(used).chain(shared).collect();
        all.into_iter().collect()
    }

    async fn inspect(&self) {
        if let Some(webhooks) = &self.webhooks {
            webhooks.surveyed().await;
        }
        let (tenants, between) = self.inspected_tenants().await;
        let mut new_faults = 0;
        for tenant in &tenants {
            if !self.is_inspected(tenant) {
                continue;
            }
            let began = Instant::now();
            let before = self.lock().get(&tenant.slug).filter(|found| Arc::ptr_eq(&found.tenant, tenant)).cloned();
            let before = before.unwrap_or_else(|| InspectedDatabase::not_inspected(tenant));
            let found = self.inspect_one(tenant, &before).await;
            new_faults += usize::from(found.fault.is_some() && found.fault != before.fault);
            self.metrics.held(&tenant.slug, found.held);
            if self.directory.load().config(&tenant.slug).is_none() {
                // It was removed meanwhile, and may be erased: nothing of it is to come back.
                self.metrics.held(&tenant.slug, 0);
                continue;
            }
            report(&found, &before, new_faults <= LOGGED);
            self.lock().insert(Arc::clone(&tenant.slug), found);
            self.publish();
            sleep(between.max(REST * began.elapsed())).await;
        }
        if new_faults > LOGGED {
            tracing::warn!(
                databases = new_faults - LOGGED,
                "more databases can't be used: `formgate check` names them all"
            );
        }
        let directory = self.directory.load();
        self.lock().retain(|slug, _| {
            let is_kept = directory.config(slug).is_some_and(|tenant| self.is_inspected(tenant));
            if !is_kept {
                self.metrics.held(slug, 0);
            }
            is_kept
        });
        self.publish();
    }

    /// The tenants of this node's share, those with subscriptions first, and the pause between two of them. The smaller the
    /// share, the longer the pause: a round takes every node as long as it would take one node alone.
    async fn inspected_tenants(&self) -> (Vec<Arc<TenantConfig>>, Duration) {
        let directory = self.directory.load_full();
        if let Some(following) = &self.following {
            following.check_files(directory.configs()).await;
        }
        let mut tenants: Vec<_> = directory.configs().filter(|tenant| self.is_inspected(tenant)).cloned().collect();
        if let Some(webhooks) = &self.webhooks {
            tenants.sort_by_cached_key(|tenant| !webhooks.is_watched(&tenant.slug));
        }
        let nodes = self.following.as_ref().map_or(1, |following| following.keepers().nodes());
        // A tenant of a file is inspected by every node.
        let all: usize = directory.configs().map(|tenant| if tenant.origin.is_registered() { 1 } else { nodes }).sum();
        let [all, own] = [all, tenants.len().max(1)].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        (tenants, BETWEEN_DATABASES * all / own)
    }

    /// Whether this node looks after a tenant, or has to find out whether it can again.
    fn is_inspected(&self, tenant: &TenantConfig) -> bool {
        self.following.as_ref().is_none_or(|following| {
            let keepers = following.keepers();
            keepers.duty(tenant) == Duty::Keeper || keepers.is_unable(&tenant.slug)
        })
    }

    async fn inspect_one(&self, tenant: &Arc<TenantConfig>, before: &InspectedDatabase) -> InspectedDatabase {
        let mut found = before.clone();
        let in_use = self.directory.load().in_use(&tenant.slug).map(TenantDatabase::if_open);
        if let Some(open) = in_use
            && !before.is_count_due()
        {
            match open {
                None => found.fault = None,
                Some(store) if self.is_owner(tenant, &store, &mut found) => {
                    self.note(&mut found, inspect_open(&store).await).await;
                }
                Some(_) => {}
            }
            return found;
        }
        match Store::open(&tenant.database, 1).await {
            Ok(store) if !self.is_owner(tenant, &store, &mut found) => store.close().await,
            Ok(store) => {
                let (wrong, inspected) = inspect_store(store, before.is_count_due()).await;
                self.note(&mut found, inspected).await;
                // A count that timed out would time out again a minute later, so it counts as done.
                found.counted = wrong.map(|wrong| (wrong.unwrap_or_default(), Instant::now())).or(found.counted);
            }
            Err(error) => {
                found.fault = Some(with_causes(&error));
                self.note_able(&tenant.slug, false);
            }
        }
        found
    }

    /// Whether an opened database is that of the tenant, not of another one at another address. No other node could serve it
    /// either.
    fn is_owner(&self, tenant: &TenantConfig, store: &Store, found: &mut InspectedDatabase) -> bool {
        self.note_able(&tenant.slug, true);
        let directory = self.directory.load();
        let claimed = directory.owners().claim(&tenant.slug, &tenant.database, store.physical_id());
        found.fault = claimed.err().map(|error| in_full(&error));
        found.fault.is_none()
    }

    /// Leaves a database that can't be used to a node that can use it.
    fn note_able(&self, slug: &Arc<str>, is_able: bool) {
        if let Some(following) = &self.following {
            following.note_able([(slug, is_able)]);
        }
    }

    /// A look that fails is repeated in the next round.
    async fn note(&self, found: &mut InspectedDatabase, (concerns, counts, held): Inspected) {
        if let Ok(concerns) = concerns {
            found.altered = concerns.into_iter().filter(DatabaseConcern::is_altered).collect();
        }
        found.held = held.unwrap_or(found.held);
        let Ok(counts) = counts else { return };
        if let Some(webhooks) = &self.webhooks {
            webhooks.note_subscribed(&[(Arc::clone(&found.tenant), counts.are_any())]).await;
        }
        found.subscriptions = counts;
    }

    fn publish(&self) {
        let found = self.lock();
        let faulty = found.values().filter(|found| found.fault.is_some()).count();
        let altered = found.values().filter(|found| !found.altered.is_empty()).count();
        let wrong: u64 = found.values().filter_map(|found| found.counted).map(|(wrong, _)| wrong).sum();
        self.metrics.inspected(faulty, altered, wrong);
        if let Some(webhooks) = &self.webhooks {
            webhooks.publish(found.values().map(|found| &found.subscriptions));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, InspectedDatabase>> {
        // Each change is a single call to the map.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What each inspection reads: how the schema was altered, among other concerns, how many subscriptions there are, and how many
/// removals are held.
type Inspected =
    (Result<Vec<DatabaseConcern>, StoreError>, Result<SubscriptionCounts, StoreError>, Result<u64, StoreError>);

async fn inspect_open(store: &Store) -> Inspected {
    (store.concerns().await, store.count_subscriptions().await, store.count_held().await)
}

/// What is wrong with a database that another tenant has, and the next step.
fn in_full(error: &StoreError) -> String {
    format!("{}: {OWN_DATABASE}", with_causes(error))
}

/// Inspects a database, and closes it. Counts its wrong rows if a count is due; the inner `None` means that the count failed.
async fn inspect_store(store: Store, is_count_due: bool) -> (Option<Option<u64>>, Inspected) {
    let wrong = if is_count_due { Some(store.count_wrong().await.ok()) } else { None };
    let inspected = inspect_open(&store).await;
    store.close().await;
    (wrong, inspected)
}

/// Logs what changed since the last inspection.
fn report(found: &InspectedDatabase, before: &InspectedDatabase, names_fault: bool) {
    let slug = &*found.tenant.slug;
    match (&found.fault, &before.fault) {
        (Some(cause), before) if before.as_ref() != Some(cause) && names_fault => {
            tracing::warn!(tenant = slug, cause, "a database can't be used; `formgate check` names the remedy");
        }
        (None, Some(_)) => tracing::info!(tenant = slug, "a database can be used again"),
        _ => {}
    }
    for concern in found.altered.iter().filter(|concern| !before.altered.contains(concern)) {
        let (cause, remedy) = (concern.to_string(), concern.remedy(slug));
        tracing::warn!(tenant = slug, cause, remedy, "the schema of a database is not the one that this version needs");
    }
    if found.altered.is_empty() && !before.altered.is_empty() {
        tracing::info!(tenant = slug, "the schema of a database is restored");
    }
    let wrong = |found: &InspectedDatabase| found.counted.map_or(0, |(wrong, _)| wrong);
    if wrong(found) > 0 && wrong(found) != wrong(before) {
        let remedy = format!("formgate reindex --tenant {slug}");
        tracing::warn!(tenant = slug, rows = wrong(found), remedy, "search tables are inconsistent");
    }
}
