//! Which keys sealed what is stored, and sealing it with another key: the keys of orders under way.

use super::Registry;
use super::domains::DomainRecord;
use crate::seal;
use crate::store::StoreError;
use crate::store::statement::{Row, sql};

/// An order under way.
#[derive(Clone, PartialEq, Eq)]
pub struct PendingRecord {
    /// The host.
    pub host: String,
    /// The tenant.
    pub slug: String,
    /// A JSON object whose key is sealed.
    pub pending: String,
}

impl std::fmt::Debug for PendingRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRecord").field("host", &self.host).field("slug", &self.slug).finish_non_exhaustive()
    }
}

/// How many keys are distinguished.
///
/// Larger: a damaged registry gives a long list. Smaller: a key that is missing may not be named.
const MAX_KEYS: i64 = 100;

/// What a key sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBy {
    /// The prefix of every text that it sealed.
    pub beginning: String,
    /// Whether it sealed the account key.
    pub account: bool,
    /// How many keys of certificates it sealed.
    pub certificates: i64,
}

impl Registry {
    /// The certificates and the account key that each seal key has sealed.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn sealed_by(&self) -> Result<Vec<SealedBy>, StoreError> {
        let mut reader = self.database.reader().await?;
        let length = i64::try_from(seal::BEGINNING).unwrap_or(i64::MAX);
        let sql = sql!(
            "SELECT beginning, count(*) FILTER (WHERE account), count(*) FILTER (WHERE NOT account)
             FROM (
               SELECT substr(key, 1, {length}{pg: ::int}) AS beginning, TRUE AS account FROM registry_acme_account
               UNION ALL
               SELECT substr(key, 1, {length}{pg: ::int}), FALSE FROM registry_certificates WHERE key IS NOT NULL
             ) AS stored
             GROUP BY beginning ORDER BY beginning LIMIT {most}
             {scans: a command of the operator counts the keys of all certificates}",
            length,
            most = MAX_KEYS,
        );
        let rows = reader.fetch_all(sql).await?;
        let read = |row: &Row| {
            Ok(SealedBy { beginning: row.get(0)?, account: row.get::<i64>(1)? > 0, certificates: row.get(2)? })
        };
        Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }

    /// The orders under way after a host and a tenant, in alphabetical order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn pending_orders(&self, after: (&str, &str), limit: u32) -> Result<Vec<PendingRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT host, slug, pending FROM registry_domains
             WHERE pending IS NOT NULL AND (host, slug) > ({host}, {slug})
             ORDER BY host, slug LIMIT {limit}
             {scans: a command of the operator goes through all orders}",
            host = after.0,
            slug = after.1,
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        let read = |row: &Row| Ok(PendingRecord { host: row.get(0)?, slug: row.get(1)?, pending: row.get(2)? });
        Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Replaces an order under way by the same one with its key sealed again. Returns false if a node works on it at the
    /// moment, or has done so meanwhile. A node whose lease ran out no longer writes what it had read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn reseal_pending(&self, before: &PendingRecord, pending: &str) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE registry_domains SET pending = {pending}, fence = fence + 1, leased_until = NULL
             WHERE host = {host} AND slug = {slug} AND pending = {known} AND {passed leased_until, lease}",
            pending,
            host = &before.host,
            slug = &before.slug,
            known = &before.pending,
            lease = DomainRecord::LEASE,
        );
        Ok(self.database.execute(sql).await? > 0)
    }
}
