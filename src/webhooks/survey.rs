//! Finds out which tenants have subscriptions, if that is unknown: webhooks must not wait for the inspection of their tenant.
//!
//! With a registry, nodes share what they know ([`crate::registry::SubscribedTenants`]), so the survey is for tenants that are
//! new or have another database; without a registry, for all tenants when the node starts. Each database is opened with a
//! connection of its own, which is closed afterwards, a limited number at a time. SQLite files that were written last come
//! first, since they may have been written while no node ran.
//!
//! A SQLite file without due events is not opened again until its commit stamp changes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::DeliveryContext;
use crate::background::{Run, Task};
use crate::config::TenantConfig;
use crate::registry::Duty;
use crate::store::{CommitStamp, HasSubscriptions, Store, StoreError, with_causes};
use crate::tenant::{Directory, TenantDatabase};

/// How often the next databases are opened, and again those that failed.
///
/// Larger: after an outage, webhooks are later. Smaller: more attempts during the outage.
const INTERVAL: Duration = Duration::from_secs(30);

/// How many SQLite files, and how many other databases, are opened at once at first.
///
/// Larger: while a node starts, the survey competes with requests. Smaller: webhooks of quiet tenants are late after a start.
const AT_ONCE: usize = 16;

/// How many databases one run opens. The others are left to the next run.
///
/// Larger: a start takes more of the servers' time. Smaller: with many tenants, their webhooks are late after a start.
const A_RUN: usize = 4_000;

/// How many results are noted together at most.
///
/// Larger: one write to the registry takes longer. Smaller: more writes.
const NOTED_AT_ONCE: usize = 100;

/// The surveyed tenants, each with the configuration that it had.
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
    context: Arc<DeliveryContext>,
}

impl Task for Survey {
    const NAME: &'static str = "subscriptions";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn woken(&mut self) {
        self.context.share_changed.notified().await;
    }

    async fn run(&mut self) -> Run {
        // Also if it panics.
        let _first = self.context.first_survey.clone().drop_guard();
        let context = Arc::clone(&self.context);
        // Comparing thousands of addresses takes a while.
        let unknown = tokio::task::spawn_blocking(move || unknown(&context)).await.unwrap_or_default();
        let (files, others): (Vec<_>, Vec<_>) =
            unknown.into_iter().partition(|tenant| tenant.database.file().is_some());
        let find = |tenants: Vec<_>| {
            stream::iter(tenants.into_iter().map(|tenant| self.find(tenant))).buffer_unordered(AT_ONCE)
        };
        // A database that hangs does not delay the others.
        let mut found = stream::select(find(files), find(others)).ready_chunks(NOTED_AT_ONCE);
        while let Some(found) = found.next().await {
            self.context.note_subscribed(&found.into_iter().flatten().collect::<Vec<_>>()).await;
        }
        Run::Succeeded
    }
}

impl Survey {
    pub(super) fn new(context: Arc<DeliveryContext>) -> Self {
        Self { context }
    }

    /// Whether a tenant has subscriptions. `None` if its database is unavailable.
    async fn find(&self, tenant: Arc<TenantConfig>) -> Option<(Arc<TenantConfig>, bool)> {
        // Before it is read: a later commit changes it.
        let stamp = CommitStamp::of(&tenant.database).await;
        let open = self.context.directory.load().in_use(&tenant.slug).and_then(TenantDatabase::if_open);
        // An open store may be that of a file that was replaced.
        let found = match open.filter(|store| store.is_in_place()) {
            Some(store) => store.has_subscriptions().await,
            None => ask(&tenant).await,
        };
        match found {
            Ok(found) => {
                let duty = self.context.duty(&tenant.slug);
                if let Some(stamp) = stamp.filter(|_| found == HasSubscriptions::AtRest && duty == Duty::Keeper) {
                    self.context.watched.rest(&tenant.slug, duty, stamp, self.context.config.sweep);
                }
                Some((tenant, found != HasSubscriptions::No))
            }
            Err(error) => {
                // The inspection logs it.
                tracing::debug!(
                    tenant = &*tenant.slug,
                    cause = with_causes(&error),
                    "could not survey the subscriptions of a tenant"
                );
                None
            }
        }
    }
}

/// Tenants of this node that were not surveyed yet, those with the latest changes of their files first.
fn unknown(context: &DeliveryContext) -> Vec<Arc<TenantConfig>> {
    let directory = context.directory.load_full();
    context.surveyed.forget_gone(&directory);
    let is_unknown = |tenant: &&Arc<TenantConfig>| {
        if context.surveyed.has(tenant) {
            return false;
        }
        match &context.following {
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
