//! Hints that a database was written, for thousands of databases at a small cost and without a connection to each.
//!
//! For a SQLite file the hint is its commit stamp; for Postgres, the counters of writes, read with one statement for all
//! watched databases of a server. `LISTEN` would need a connection for each database, would not work behind poolers, and
//! would serialize the commits of a server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::DeliveryContext;
use crate::store::{CommitStamp, CountedBy, with_causes};

/// How long a server may take to return its counters.
///
/// Larger: hints of all servers are late while one hangs. Smaller: a server under load gives no hints.
const LIMIT: Duration = Duration::from_secs(2);

/// The state of a tenant's database when hints were last gathered.
#[derive(Debug, Default)]
pub(super) struct Hints {
    stamp: Option<CommitStamp>,
    counter: Option<Counter>,
}

/// The counter of a tenant's writes on Postgres.
#[derive(Debug)]
pub(super) struct Counter {
    by: CountedBy,
    /// The name of the database or of the schema.
    name: String,
    writes: Option<i64>,
    /// Whether the server counts each write.
    is_complete: bool,
}

impl Counter {
    /// `names`: of the database and of the schema.
    pub(super) fn new(by: CountedBy, [database, schema]: [String; 2], is_complete: bool) -> Self {
        let name = if matches!(by, CountedBy::Server(_)) { database } else { schema };
        Self { by, name, writes: None, is_complete }
    }
}

impl Hints {
    /// The hints of a tenant that was last read when its database had a stamp.
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

    /// Whether every write is detected: there has been a hint, and each write gives one.
    pub(super) fn are_reliable(&self) -> bool {
        match &self.counter {
            Some(counter) => counter.is_complete && counter.writes.is_some(),
            None => self.stamp.is_some(),
        }
    }
}

/// Marks the watched tenants whose databases were written since the last time.
pub(super) async fn gather(context: &DeliveryContext) {
    let mut files = Vec::new();
    let mut counted: HashMap<CountedBy, Vec<(Arc<str>, String)>> = HashMap::new();
    for (slug, tenant) in context.watched.lock().iter() {
        match &tenant.hints.counter {
            Some(counter) => {
                counted.entry(counter.by.clone()).or_default().push((Arc::clone(slug), counter.name.clone()));
            }
            None => files.push(Arc::clone(slug)),
        }
    }
    compare_stamps(context, files).await;
    // All at once, with a time limit: a server that hangs must not delay the hints of the others.
    let servers = counted.iter().map(|(by, tenants)| timeout(LIMIT, compare_writes(context, by, tenants)));
    join_all(servers).await;
}

/// Watches every tenant for which a request waits, and tells those requests whether each write will be detected. Returns
/// whether any request waits.
pub(super) fn wake_readers(context: &DeliveryContext) -> bool {
    let waited_for = context.noticed_writes.waited_for();
    for slug in &waited_for {
        let is_reliable = context.watched.lock().get(slug).map(|tenant| tenant.hints.are_reliable());
        context.noticed_writes.set_reliable(slug, is_reliable.unwrap_or(false));
        if is_reliable.is_none() {
            context.watched.poll_now(slug, context.duty(slug));
        }
    }
    !waited_for.is_empty()
}

async fn compare_stamps(context: &DeliveryContext, slugs: Vec<Arc<str>>) {
    // Without SQLite files, no thread is needed.
    if slugs.is_empty() {
        return;
    }
    let directory = context.directory.load_full();
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
            None => context.watched.forget(&slug),
            Some(stamp) => {
                // Not within the condition, which would hold the lock that `note_written` takes.
                let before = context
                    .watched
                    .lock()
                    .get_mut(&slug)
                    .map(|tenant| std::mem::replace(&mut tenant.hints.stamp, stamp));
                if let Some(before) = before {
                    note(context, &slug, before, stamp);
                }
            }
        }
    }
}

/// Compares a hint with the previous one.
fn note<T: PartialEq>(context: &DeliveryContext, slug: &str, before: Option<T>, now: Option<T>) {
    match (before, now) {
        (before, now) if before == now => {}
        // A write between the last poll and the first hint gave no hint.
        (None, Some(_)) => {
            context.watched.poll_within(slug, Duration::ZERO);
            context.noticed_writes.wake(slug);
        }
        (_, None) => context.watched.poll_within(slug, context.config.sweep),
        (Some(_), Some(_)) => {
            context.watched.note_written(slug);
            context.noticed_writes.note(slug);
        }
    }
}

async fn compare_writes(context: &DeliveryContext, by: &CountedBy, tenants: &[(Arc<str>, String)]) {
    let names: Vec<String> = tenants.iter().map(|(_, name)| name.clone()).collect();
    let mut writes = HashMap::new();
    // Any of the databases returns the counters of all; try the next if one is deleted or unreachable.
    for (slug, _) in tenants {
        let database = context.directory.load().tenant(slug).map(|tenant| Arc::clone(&tenant.database));
        let Some(database) = database else {
            context.watched.forget(slug);
            continue;
        };
        let asked = async { database.store().await?.writes(by, &names).await };
        match asked.await {
            Ok(found) => {
                writes = found;
                break;
            }
            Err(error) => {
                tracing::debug!(
                    tenant = &**slug,
                    cause = with_causes(&error),
                    "could not read the write counters of a server"
                );
            }
        }
    }
    for (slug, name) in tenants {
        let now = writes.get(name).copied();
        // Not within the condition, which would hold the lock that `note_written` takes.
        let before = context
            .watched
            .lock()
            .get_mut(slug)
            .and_then(|tenant| Some(std::mem::replace(&mut tenant.hints.counter.as_mut()?.writes, now)));
        if let Some(before) = before {
            note(context, slug, before, now);
        }
    }
}
