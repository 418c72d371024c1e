//! Finds out which tenants have subscriptions, where nobody knows: a webhook must not wait until its tenant's turn comes in the
//! round of inspections.
//!
//! With a registry, nodes tell each other ([`crate::registry::SubscribedTenants`]), so this is for tenants that are new or
//! have another database. Without, it is for all tenants when the node starts. Each database is opened over a connection of
//! its own, which is closed afterwards, and a limited number at a time. SQLite files that were written last come first: those
//! that were written while no node ran are among them.
//!
//! A SQLite file with nothing to do for its subscriptions is not opened again until its commit stamp changes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::Hub;
use crate::background::{Run, Task};
use crate::config::TenantConfig;
use crate::registry::Duty;
use crate::store::{CommitStamp, HasSubscriptions, Store, StoreError, with_causes};
use crate::tenant::{Directory, TenantDatabase};

/// How often the next ones are opened, and those again that could not be.
///
/// Larger: after an outage, webhooks are later. Smaller: more attempts while it lasts.
const INTERVAL: Duration = Duration::from_secs(30);

/// How many SQLite files, and how many other databases, are opened at once at first.
///
/// Larger: while a node starts, requests wait for the processor, and servers for each other. Smaller: webhooks of quiet
/// tenants are late after a start.
const AT_ONCE: usize = 16;

/// How many databases one run opens. The others are left to the next run.
///
/// Larger: a start takes more of the servers' time. Smaller: with many tenants, their webhooks are late after a start.
const A_RUN: usize = 4_000;

/// How many results are noted together at most.
///
/// Larger: one write to the registry takes longer. Smaller: more of them.
const NOTED_AT_ONCE: usize = 100;

/// The tenants of which it is known whether they have subscriptions, each with the configuration that it had.
#[derive(Debug, Default)]
pub(super) struct Surveyed(Mutex<HashMap<Arc<str>, Weak<TenantConfig>>>);

impl Surveyed {
    pub(super) fn note(&self, found: &[(Arc<TenantConfig>, bool)]) {
        let mut surveyed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        surveyed.extend(found.iter().map(|(tenant, _)| (Arc::clone(&tenant.slug), Arc::downgrade(tenant))));
    }

    fn has(&self, tenant: &Arc<TenantConfig>) -> bool {
        let surveyed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        surveyed.get(&tenant.slug).is_some_and(|known| known.ptr_eq(&Arc::downgrade(tenant)))
    }

    fn forget_gone(&self, directory: &Directory) {
        let mut surveyed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        surveyed.retain(|slug, _| directory.config(slug).is_some());
    }
}

/// The background task.
#[derive(Debug)]
pub struct Survey {
    hub: Arc<Hub>,
}

impl Task for Survey {
    const NAME: &'static str = "subscriptions";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn woken(&mut self) {
        self.hub.share_changed.notified().await;
    }

    async fn run(&mut self) -> Run {
        // Also if it panics.
        let _first = self.hub.first_survey.clone().drop_guard();
        let hub = Arc::clone(&self.hub);
        // Comparing thousands of addresses takes a while.
        let unknown = tokio::task::spawn_blocking(move || unknown(&hub)).await.unwrap_or_default();
        let (files, others): (Vec<_>, Vec<_>) =
            unknown.into_iter().partition(|tenant| tenant.database.file().is_some());
        let find = |tenants: Vec<_>| {
            stream::iter(tenants.into_iter().map(|tenant| self.find(tenant))).buffer_unordered(AT_ONCE)
        };
        // One that hangs holds up no other.
        let mut found = stream::select(find(files), find(others)).ready_chunks(NOTED_AT_ONCE);
        while let Some(found) = found.next().await {
            self.hub.note_subscribed(&found.into_iter().flatten().collect::<Vec<_>>()).await;
        }
        Run::Succeeded
    }
}

impl Survey {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    /// Whether a tenant has subscriptions. None if its database can't be asked now.
    async fn find(&self, tenant: Arc<TenantConfig>) -> Option<(Arc<TenantConfig>, bool)> {
        // Before it is read: a later commit changes it.
        let stamp = CommitStamp::of(&tenant.database).await;
        let open = self.hub.directory.load().in_use(&tenant.slug).and_then(TenantDatabase::if_open);
        // An open store may be that of a file that was replaced.
        let found = match open.filter(|store| store.is_in_place()) {
            Some(store) => store.has_subscriptions().await,
            None => ask(&tenant).await,
        };
        match found {
            Ok(found) => {
                let duty = self.hub.duty(&tenant.slug);
                if let Some(stamp) = stamp.filter(|_| found == HasSubscriptions::AtRest && duty == Duty::Keeper) {
                    self.hub.watched.rest(&tenant.slug, duty, stamp, self.hub.config.sweep);
                }
                Some((tenant, found != HasSubscriptions::No))
            }
            Err(error) => {
                // The inspection logs it.
                tracing::debug!(tenant = &*tenant.slug, cause = with_causes(&error), "its subscriptions are not known");
                None
            }
        }
    }
}

/// Tenants that this node looks after, and of which it is not known whether they have subscriptions: those whose files were
/// changed last first.
fn unknown(hub: &Hub) -> Vec<Arc<TenantConfig>> {
    let directory = hub.directory.load_full();
    hub.surveyed.forget_gone(&directory);
    let is_unknown = |tenant: &&Arc<TenantConfig>| {
        if hub.surveyed.has(tenant) {
            return false;
        }
        match &hub.following {
            Some(following) if tenant.origin.is_registered() => {
                following.keepers().duty(tenant) == Duty::Keeper
                    && following.subscribed().is_subscribed(tenant).is_none()
            }
            _ => true,
        }
    };
    let mut unknown: Vec<_> = directory.configs().filter(is_unknown).cloned().collect();
    let changed = |tenant: &Arc<TenantConfig>| CommitStamp::latest(&tenant.database).map(|stamp| stamp.changed());
    unknown.sort_by_cached_key(|tenant| Reverse(changed(tenant)));
    unknown.truncate(A_RUN);
    unknown
}

async fn ask(tenant: &TenantConfig) -> Result<HasSubscriptions, StoreError> {
    let store = Store::open(&tenant.database, 1).await?;
    let found = store.has_subscriptions().await;
    store.close().await;
    found
}
