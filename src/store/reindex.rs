//! Rebuilds the search tables where they are wrong.
//!
//! Settling keeps the search tables right. This repairs changes that were made to these tables themselves, and errors
//! of an older version, and an end of the audit log that was deleted. It works in bounded transactions, so that writers and readers can continue, and writes only
//! rows that differ.

use std::fmt;

use super::derived::settle;
use super::engine::DatabaseLocation;
use super::{StoreError, audit, schema, users};

/// How many rows were wrong and have been corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Users whose folded e-mail address was wrong.
    pub users: u64,
    /// Submissions that were listed wrongly, or not at all.
    pub submissions: u64,
    /// Submissions whose document or terms were wrong.
    pub documents: u64,
    /// Submissions whose rows in `listed_by_label` were wrong.
    pub labels: u64,
    /// Counts that were wrong.
    pub counts: u64,
    /// Changes that the change log lacked.
    pub changes: u64,
    /// Whether the audit log had lost its end.
    pub audit_end: bool,
}

impl fmt::Display for Reindexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { users, submissions, documents, labels, counts, changes, audit_end } = self;
        write!(
            f,
            "mended {users} users, {submissions} submissions, {documents} documents, {labels} labels, {counts} counts"
        )?;
        if *changes > 0 {
            write!(f, ", {changes} changes")?;
        }
        if *audit_end { f.write_str(", the end of the audit log, behind the last row that is left") } else { Ok(()) }
    }
}

/// Derives everything again and corrects what differs.
///
/// If two users have addresses that differ only in case, which SQL could write on SQLite, the folded address of the
/// second one is not changed.
///
/// # Errors
/// [`StoreError::SchemaOlder`] before a migration; otherwise the database failed. Corrections until then are
/// committed.
pub async fn reindex(location: &DatabaseLocation) -> Result<Reindexed, StoreError> {
    let database = location.connect_for_maintenance();
    schema::require_served(&mut database.reader().await?).await?;
    let audit_end = audit::restore_end(&database).await?;
    let users = users::repair(&database).await?;
    let (differences, counts) = settle::repair(&database).await?;
    database.close().await;
    let settle::Differences { listed: submissions, documents, labels, changes } = differences;
    Ok(Reindexed { users, submissions, documents, labels, counts, changes, audit_end })
}
