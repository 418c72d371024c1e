//! Hints that a database was written, for thousands of databases at a small cost and without a connection to each.
//!
//! For a SQLite file, its commit stamp; for Postgres, the counters of writes, by one statement for all watched databases of
//! a server. `LISTEN` would take a connection for each database, be lost behind poolers, and make the commits of a server
//! wait for each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::Hub;
use super::watch::WatchedTenant;
use crate::store::{CommitStamp, CountedBy, with_causes};

/// How long a server may take to return its counters.
///
/// Larger: hints of the others are late while one hangs. Smaller: a server under load gives none.
const LIMIT: Duration = Duration::from_secs(2);

/// What a tenant's database looked like when hints were last gathered.
#[derive(Debug, Default)]
pub(super) struct Hints {
    stamp: Option<CommitStamp>,
    counter: Option<Counter>,
}

/// What counts the writes of a tenant on Postgres.
#[derive(Debug)]
pub(super) struct Counter {
    by: CountedBy,
    /// Of the database or the schema.
    name: String,
    writes: Option<i64>,
    /// Whether the server counts each write.
    is_complete: bool,
}

impl Counter {
    /// `names` are those of the database and of the schema.
    pub(super) fn new(by: CountedBy, [database, schema]: [String; 2], is_complete: bool) -> Self {
        let name = if matches!(by, CountedBy::Server(_)) { database } else { schema };
        Self { by, name, writes: None, is_complete }
    }
}

impl Hints {
    /// Those of a tenant that was last read when its database had a stamp.
    pub(super) fn since(stamp: CommitStamp) -> Self {
        Self { stamp: Some(stamp), counter: None }
    }

    pub(super) fn counted(&mut self, counter: Option<Counter>) {
        let is_known = |counter: &Counter| {
            self.counter.as_ref().is_some_and(|known| known.by == counter.by && known.name == counter.name)
        };
        match counter {
            Some(counter) if is_known(&counter) => {
                self.counter.iter_mut().for_each(|known| known.is_complete = counter.is_complete);
            }
            counter => self.counter = counter,
        }
    }

    /// Whether a write would be noticed: there has been a hint, and each write gives one.
    pub(super) fn are_reliable(&self) -> bool {
        match &self.counter {
            Some(counter) => counter.is_complete && counter.writes.is_some(),
            None => self.stamp.is_some(),
        }
    }
}

/// Marks the watched tenants whose databases were written since the last time.
pub(super) async fn gather(hub: &Hub) {
    let mut files = Vec::new();
    let mut counted: HashMap<CountedBy, Vec<(Arc<str>, String)>> = HashMap::new();
    for (slug, tenant) in hub.watched.lock().iter() {
        match &tenant.hints.counter {
            Some(counter) => {
                counted.entry(counter.by.clone()).or_default().push((Arc::clone(slug), counter.name.clone()));
            }
            None => files.push(Arc::clone(slug)),
        }
    }
    compare_stamps(hub, files).await;
    // At once, and not for ever: a server that hangs must not hold up the hints of the others.
    let servers = counted.iter().map(|(by, tenants)| timeout(LIMIT, compare_writes(hub, by, tenants)));
    join_all(servers).await;
}

/// Watches every tenant for which a request waits, and sets on those requests whether each write will be noticed. Returns
/// whether any request waits.
pub(super) fn wake_readers(hub: &Hub) -> bool {
    let waited_for = hub.noticed_writes.waited_for();
    for slug in &waited_for {
        let is_reliable = hub.watched.lock().get(slug).map(|tenant| tenant.hints.are_reliable());
        hub.noticed_writes.set_reliable(slug, is_reliable.unwrap_or(false));
        if is_reliable.is_none() {
            hub.watched.look_at(slug, hub.duty(slug));
        }
    }
    !waited_for.is_empty()
}

async fn compare_stamps(hub: &Hub, slugs: Vec<Arc<str>>) {
    // Without any, no thread is needed either.
    if slugs.is_empty() {
        return;
    }
    let directory = hub.directory.load_full();
    // Reading metadata may wait for the disk.
    let stamped = tokio::task::spawn_blocking(move || {
        let stamp = |slug: Arc<str>| {
            let stamp = directory.tenant(&slug).map(|tenant| tenant.database.latest_stamp());
            (slug, stamp)
        };
        slugs.into_iter().map(stamp).collect::<Vec<_>>()
    });
    for (slug, stamp) in stamped.await.unwrap_or_default() {
        match stamp {
            None => hub.watched.forget(&slug),
            Some(stamp) => {
                let before = |tenant: &mut WatchedTenant| std::mem::replace(&mut tenant.hints.stamp, stamp);
                let before = hub.watched.lock().get_mut(&slug).map(before);
                if let Some(before) = before {
                    note(hub, &slug, before, stamp);
                }
            }
        }
    }
}

/// Notes what a hint says, compared with the one before.
fn note<T: PartialEq>(hub: &Hub, slug: &str, before: Option<T>, now: Option<T>) {
    match (before, now) {
        (before, now) if before == now => {}
        // What was written between the last look and the first hint gave none.
        (None, Some(_)) => {
            hub.watched.look_within(slug, Duration::ZERO);
            hub.noticed_writes.wake(slug);
        }
        (_, None) => hub.watched.look_within(slug, hub.config.sweep),
        (Some(_), Some(_)) => {
            hub.watched.note_written(slug);
            hub.noticed_writes.note(slug);
        }
    }
}

async fn compare_writes(hub: &Hub, by: &CountedBy, tenants: &[(Arc<str>, String)]) {
    let names: Vec<String> = tenants.iter().map(|(_, name)| name.clone()).collect();
    let mut writes = HashMap::new();
    // Any of them can answer for all; one that is gone or can't be reached must not hide the others.
    for (slug, _) in tenants {
        let database = hub.directory.load().tenant(slug).map(|tenant| Arc::clone(&tenant.database));
        let Some(database) = database else {
            hub.watched.forget(slug);
            continue;
        };
        let asked = async { database.store().await?.writes(by, &names).await };
        match asked.await {
            Ok(found) => {
                writes = found;
                break;
            }
            Err(error) => {
                tracing::debug!(tenant = &**slug, cause = with_causes(&error), "a server's counters could not be read");
            }
        }
    }
    for (slug, name) in tenants {
        let now = writes.get(name).copied();
        let change =
            |tenant: &mut WatchedTenant| Some(std::mem::replace(&mut tenant.hints.counter.as_mut()?.writes, now));
        // Not within the condition, which would hold the lock that noting takes.
        let before = hub.watched.lock().get_mut(slug).and_then(change);
        if let Some(before) = before {
            note(hub, slug, before, now);
        }
    }
}
