//! Takes rows of the registry into the directory, and keeps those that can't be served with the reasons.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Followed, Following};
use crate::config::{Problems, TenantConfig};
use crate::registry::loading::read_rows;
use crate::registry::with_files::why_not;
use crate::store::registry::{Head, RegistryRow};
use crate::tenant::{Directory, RemovedDatabase, close_removed, written_behind};

/// Up to how many tenants that can't be served are tried again with each change.
///
/// Larger: each change costs more while many can't be served. Smaller: they wait for a change of their own.
const RETRIED: usize = 100;

/// How many rows that can't be served are logged one by one.
///
/// Larger: a missing variable floods the log. Smaller: the log names fewer of them.
const LOGGED: usize = 10;

/// A row that is not served.
#[derive(Debug)]
pub(in crate::registry) struct RefusedRow {
    pub(in crate::registry) row: RegistryRow,
    /// For the log.
    pub(super) reason: String,
    /// The same in a few words, for other nodes.
    pub(super) in_short: String,
}

impl RefusedRow {
    pub(super) fn of(row: RegistryRow, problems: &Problems) -> Self {
        Self { row, reason: problems.to_string(), in_short: problems.titles() }
    }
}

impl Following {
    /// Takes rows into the directory. With `is_whole`, there are no others.
    pub(super) async fn apply(&self, followed: &mut Followed, head: Head, rows: Vec<RegistryRow>, is_whole: bool) {
        let began = Instant::now();
        let before = self.directory.load_full();
        let mut removed: Vec<Arc<str>> = Vec::new();
        // What was logged is not logged again.
        let mut known = BTreeMap::new();
        if is_whole {
            let there: HashSet<&str> = rows.iter().map(|row| row.slug.as_str()).collect();
            let registered = before.configs().filter(|tenant| tenant.origin.is_registered());
            removed
                .extend(registered.map(|tenant| &tenant.slug).filter(|slug| !there.contains(&***slug)).map(Arc::clone));
            known = std::mem::take(&mut followed.refused);
        }
        if let Some(snapshot) = &mut followed.snapshot {
            snapshot.keep(&head, &rows, is_whole).await;
        }
        let erased: Vec<String> = rows.iter().filter(|row| row.is_erased).map(|row| row.slug.clone()).collect();
        let mut rows = rows;
        if followed.refused.len() <= RETRIED {
            // What another tenant had may be free now.
            let there: HashSet<String> = rows.iter().map(|row| row.slug.clone()).collect();
            let refused = followed.refused.values().map(|refused| &refused.row);
            rows.extend(refused.filter(|row| !there.contains(&row.slug)).cloned());
        }
        let (gone, changed): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.text.is_none());
        for row in gone {
            followed.refused.remove(&row.slug);
            // A tenant of a file may have the slug by now.
            let config = before.config(&row.slug).filter(|config| config.origin.is_registered());
            removed.extend(config.map(|config| Arc::clone(&config.slug)));
        }
        let (mut put, mut new) = (Vec::with_capacity(changed.len()), Vec::new());
        let read = read_rows(changed, &self.config).await;
        let leaving: HashSet<Arc<str>> = removed
            .iter()
            .cloned()
            .chain(read.iter().filter_map(|(_, read)| Some(Arc::clone(&read.as_ref().ok()?.config.slug))))
            .collect();
        for (row, read) in read {
            let slug = row.slug.clone();
            let refused = match read {
                Ok(tenant) => match why_not(&tenant, &followed.files, &before, &leaving) {
                    None => {
                        followed.refused.remove(&slug);
                        put.push(tenant.config);
                        continue;
                    }
                    Some(reason) => RefusedRow { row, in_short: reason.clone(), reason },
                },
                Err(problems) => RefusedRow::of(row, &problems),
            };
            let reason = refused.reason.clone();
            let before = followed.refused.insert(slug.clone(), refused).or_else(|| known.remove(&slug));
            if before.is_none_or(|before| before.reason != reason) {
                new.push(slug);
            }
        }
        log_refused(&new.iter().filter_map(|slug| followed.refused.get(slug)).collect::<Vec<_>>());
        self.serve(&before, &put, &removed).await;
        if !erased.is_empty() {
            self.forget_erased(followed, &erased).await;
        }
        followed.head = head;
        self.publish(followed);
        self.metrics.applied(put.len() + removed.len(), began.elapsed());
    }

    async fn serve(&self, before: &Arc<Directory>, put: &[Arc<TenantConfig>], removed: &[Arc<str>]) {
        if put.is_empty() && removed.is_empty() {
            return;
        }
        let after = Arc::new(before.changed(put, removed));
        let slugs: Vec<_> = put.iter().map(|tenant| Arc::clone(&tenant.slug)).chain(removed.iter().cloned()).collect();
        let left = before.removed_of(&slugs, &after);
        // Written before they are removed: a stop soon after this must not lose it.
        written_behind::write(left.iter().filter_map(RemovedDatabase::write_behind).collect()).await;
        self.servers.announce(put);
        self.directory.store(Arc::clone(&after));
        self.note_moved(before, &slugs);
        self.check_files(put).await;
        self.all_metrics.tenants_served.set(i64::try_from(after.len()).unwrap_or(i64::MAX));
        if !removed.is_empty() {
            self.all_metrics.tenants.retain(|slug| after.config(slug).is_some());
            for slug in removed {
                // Most have none.
                let _ = self.all_metrics.certificates.expiry.remove_label_values(&[&**slug]);
                self.all_metrics.database.held(slug, 0);
            }
            self.keepers.note_able(removed.iter().map(|slug| (slug, true)));
        }
        if !left.is_empty() {
            let closing =
                self.closing.begin(left.iter().map(RemovedDatabase::slug).filter(|slug| removed.contains(slug)));
            tokio::spawn(async move {
                close_removed(left).await;
                drop(closing);
            });
        }
    }

    /// Drops the certificates of tenants of which nothing is to be kept, and what the snapshot has of them.
    pub(super) async fn forget_erased(&self, followed: &mut Followed, slugs: &[String]) {
        self.certificates.forget(slugs);
        if let Some(snapshot) = &mut followed.snapshot {
            snapshot.forget(slugs).await;
        }
    }
}

/// The tenants that were removed and whose databases this node has still open.
#[derive(Debug, Default)]
pub(super) struct Closing(Mutex<Vec<Arc<str>>>);

impl Closing {
    fn begin<'s>(self: &Arc<Self>, slugs: impl Iterator<Item = &'s Arc<str>>) -> ClosingTenants {
        let slugs: Vec<_> = slugs.map(Arc::clone).collect();
        self.lock().extend(slugs.iter().map(Arc::clone));
        ClosingTenants { of: Arc::clone(self), slugs }
    }

    pub(super) fn slugs(&self) -> Vec<String> {
        self.lock().iter().map(ToString::to_string).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some of them, until this is dropped.
struct ClosingTenants {
    of: Arc<Closing>,
    slugs: Vec<Arc<str>>,
}

impl Drop for ClosingTenants {
    fn drop(&mut self) {
        let mut closing = self.of.lock();
        for slug in &self.slugs {
            // The same slug may have been removed twice by now.
            if let Some(at) = closing.iter().position(|other| other == slug) {
                closing.swap_remove(at);
            }
        }
    }
}

/// Logs rows that are not served: each if they are few, otherwise how many, with the first as an example. A variable that is
/// missing on a node may be in every row.
pub(super) fn log_refused(rows: &[&RefusedRow]) {
    let message = "the row of a tenant in the registry can't be served";
    match rows {
        [] => {}
        [RefusedRow { row, reason, .. }, ..] if rows.len() > LOGGED => {
            let (tenants, first) = (rows.len(), &row.slug);
            tracing::error!(tenants, first, reason, "rows of tenants in the registry can't be served");
        }
        few => few.iter().for_each(|RefusedRow { row, reason, .. }| {
            tracing::error!(tenant = row.slug, revision = row.revision, reason, "{message}");
        }),
    }
}
