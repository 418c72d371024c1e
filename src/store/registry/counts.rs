//! How many domains there are in each state, and how many certificates are to be renewed.
//!
//! Counting a million domains takes a second of the database. So one node counts at a time, under a lease, and stores what it
//! found for all of them.

use std::time::Duration;

use super::Registry;
use super::domains::DomainState;
use super::listing::has_lapsed;
use crate::store::StoreError;
use crate::store::statement::{Row, Sql, sql};

/// How many domains are in a state for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainCount {
    /// The state.
    pub state: DomainState,
    /// The name of what is wrong; empty if nothing is.
    pub reason: String,
    /// How many.
    pub count: i64,
}

/// What a node has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCounts {
    /// A JSON object; `{}` before the first time.
    pub counts: String,
    /// Whether they are to be counted again.
    pub is_due: bool,
}

impl Registry {
    /// How long a node may take to count.
    ///
    /// Larger: after a node died, the counts are old for longer. Smaller: two nodes count at once.
    const COUNTING: Duration = Duration::from_mins(1);

    /// The longest time until they are counted again. A later instant is from before the clock was set back.
    pub const LONGEST_COUNT_PAUSE: Duration = Duration::from_hours(1);

    /// What was counted last.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn stored_counts(&self) -> Result<StoredCounts, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT counts, {+is_due} FROM registry_counts", is_due = is_due());
        let row = reader.fetch_one(sql).await?;
        Ok(StoredCounts { counts: row.get(0)?, is_due: row.get(1)? })
    }

    /// Takes the counting over. Returns whether this node is to count now.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_counting(&self) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE registry_counts SET leased_until = {clock + lease} WHERE {+is_due}",
            lease = Self::COUNTING,
            is_due = is_due(),
        );
        Ok(self.database.execute(sql).await? > 0)
    }

    /// Stores what was counted, until it is counted again after a pause.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn store_counts(&self, counts: &str, pause: Duration) -> Result<(), StoreError> {
        let sql = sql!(
            "UPDATE registry_counts SET leased_until = NULL, counts = {counts}, next_at = {clock + pause}",
            counts,
            pause = pause.min(Self::LONGEST_COUNT_PAUSE),
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// How many domains are in each state, for each reason.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_domains(&self) -> Result<Vec<DomainCount>, StoreError> {
        let mut counts = self.count_stored_states(false).await?;
        for lapsed in self.count_stored_states(true).await? {
            let same = |count: &&mut DomainCount, state| count.state == state && count.reason == lapsed.reason;
            if let Some(live) = counts.iter_mut().find(|count| same(count, DomainState::Live)) {
                live.count -= lapsed.count;
            }
            match counts.iter_mut().find(|count| same(count, DomainState::Failing)) {
                Some(failing) => failing.count += lapsed.count,
                None => counts.push(DomainCount { state: DomainState::Failing, ..lapsed }),
            }
        }
        counts.retain(|count| count.count > 0);
        Ok(counts)
    }

    /// The domains by what their rows say. `only_lapsed`: only those that are live there, and whose certificate has expired.
    async fn count_stored_states(&self, only_lapsed: bool) -> Result<Vec<DomainCount>, StoreError> {
        let is_counted = if only_lapsed {
            sql!("state = 'live' AND {+has_lapsed}", has_lapsed = has_lapsed())
        } else {
            Sql::text("TRUE")
        };
        let sql = sql!(
            "SELECT state, coalesce(reason{pg: ::json}->>'reason', ''), count(*)
             FROM registry_domains
             WHERE {+is_counted}
             GROUP BY 1, 2
             {scans: one node counts all of them for the others}",
            is_counted,
        );
        let rows = self.database.reader().await?.fetch_all(sql).await?;
        let read = |row: &Row| {
            let state: String = row.get(0)?;
            let state = DomainState::parse(&state).unwrap_or(DomainState::Claimed);
            Ok(DomainCount { state, reason: row.get(1)?, count: row.get(2)? })
        };
        Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }

    /// How many domains were added to a tenant, proved or not. The hosts of its table don't count.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_added_domains(&self, slug: &str) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*) FROM registry_domains
             WHERE is_added AND state NOT IN ('gone', 'removed') AND slug = {slug}",
            slug,
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// How many certificates should have been renewed by now.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_late_domains(&self) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*) FROM registry_domains WHERE is_late AND state <> 'removed' {scans: an index has just these}"
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// How many certificates are to be renewed within a time, also those that are due already.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_renewals(&self, within: Duration) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*) FROM registry_domains
             WHERE state <> 'removed' AND renew_at <= {clock + within}
             {scans: a command of the operator counts them}",
            within,
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }
}

/// Nothing was counted for long enough, and no node counts.
fn is_due() -> Sql {
    sql!(
        "{passed next_at, pause} AND {passed leased_until, lease}",
        pause = Registry::LONGEST_COUNT_PAUSE,
        lease = Registry::COUNTING,
    )
}
