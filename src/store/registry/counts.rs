//! How many domains there are in each state, and how many certificates are to be renewed.

use std::time::Duration;

use super::Registry;
use super::domains::DomainState;
use crate::store::StoreError;
use crate::store::statement::Row;

/// How many domains are in a state for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainCount {
    /// The state.
    pub state: DomainState,
    /// What is wrong: a JSON object.
    pub reason: String,
    /// How many.
    pub count: i64,
}

impl Registry {
    /// How many domains are in each state, for each reason.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_domains(&self) -> Result<Vec<DomainCount>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT state, ")
            .push_either("coalesce(reason::json->>'reason', '')", "coalesce(reason->>'reason', '')");
        sql.push(", count(*) FROM registry_domains GROUP BY 1, 2");
        let rows = reader.fetch_all(sql).await?;
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
        let mut sql = reader.sql();
        sql.push(
            "SELECT count(*) FROM registry_domains WHERE is_added AND state NOT IN ('gone', 'removed') AND slug = ",
        )
        .bind(slug);
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// How many certificates should have been renewed by now.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_late_domains(&self) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT count(*) FROM registry_domains WHERE is_late AND state <> 'removed'");
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// How many certificates are to be renewed within a time, also those that are due already.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_renewals(&self, within: Duration) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT count(*) FROM registry_domains WHERE state <> 'removed' AND renew_at <= ")
            .push_now_plus(within);
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }
}
