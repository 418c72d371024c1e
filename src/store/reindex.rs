//! Derives everything again and corrects what differs.
//!
//! Settling keeps derived rows right. This repairs changes that were made to the derived tables themselves, and what an
//! older version got wrong. It works in bounded transactions, so that writers and readers go on, and writes only rows that
//! differ.

use std::fmt;

use super::engine::DatabaseLocation;
use super::{StoreError, schema, settle, users};

/// What was made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Users whose folded e-mail address was wrong.
    pub users: u64,
    /// Submissions that were listed wrongly, or not at all.
    pub submissions: u64,
    /// Submissions whose document or terms were wrong.
    pub documents: u64,
    /// Submissions whose labels in the order of the pages were wrong.
    pub labels: u64,
    /// Counts that were wrong.
    pub counts: u64,
}

impl fmt::Display for Reindexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { users, submissions, documents, labels, counts } = self;
        write!(
            f,
            "mended {users} users, {submissions} submissions, {documents} documents, {labels} labels, {counts} counts"
        )
    }
}

/// Mends everything that is derived.
///
/// Of two users whose addresses differ in case alone, which SQL could write on SQLite, the second keeps the address
/// that it has.
///
/// # Errors
/// [`StoreError::SchemaOlder`] before a migration; else that the database failed. What was mended until then stays.
pub async fn reindex(location: &DatabaseLocation) -> Result<Reindexed, StoreError> {
    let database = location.connect_for_maintenance();
    schema::require_served(&mut database.reader().await?).await?;
    let users = users::repair(&database).await?;
    let (differences, counts) = settle::repair(&database).await?;
    database.close().await;
    let settle::Differences { listed: submissions, documents, labels } = differences;
    Ok(Reindexed { users, submissions, documents, labels, counts })
}
