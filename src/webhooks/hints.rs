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
}

impl Counter {
    /// `names` are those of the database and of the schema.
    pub(super) fn new(by: CountedBy, [database, schema]: [String; 2]) -> Self {
        let name = if matches!(by, CountedBy::Server(_)) { database } else { schema };
        Self { by, name, writes: None }
    }
}

impl Hints {
    pub(super) fn counted(&mut self, counter: Option<Counter>) {
        let is_known = |counter: &Counter| {
            self.counter.as_ref().is_some_and(|known| known.by == counter.by && known.name == counter.name)
        };
        if !counter.as_ref().is_some_and(is_known) {
            self.counter = counter;
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

async fn compare_stamps(hub: &Hub, slugs: Vec<Arc<str>>) {
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
                if before.is_some_and(|before| before != stamp) {
                    hub.watched.note_written(&slug);
                }
            }
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
        let is_written =
            hub.watched.lock().get_mut(slug).and_then(|tenant| tenant.hints.counter.as_mut()).is_some_and(|counter| {
                let before = std::mem::replace(&mut counter.writes, now);
                before != now
            });
        if is_written {
            hub.watched.note_written(slug);
        }
    }
}
