//! Forgets a tenant for good: what the registry has of it, beyond the slug in the list of changes.
//!
//! In two steps, between which the database of the tenant is erased. The first removes the tenant like any other removal, so
//! that nodes let go of it, and keeps its table in `erasing`, by which the rest can be done again after a crash. The last one
//! removes that too. Between them nobody else gets the slug or the database.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::Registry;
use super::databases::{self, forget_left};
use super::domains::lock_head;
use super::subscribed::LOCK;
use super::writing::WriteRefused;
use crate::store::StoreError;
use crate::store::engine::{Transaction, retry};
use crate::store::statement::{Dialect, Row, TextList, sql};

/// A tenant that is being erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// The text of its table.
    pub text: String,
    /// The change that removed it.
    pub revision: i64,
    /// Which database it has, if that has tables of formgate on Postgres.
    pub database: Option<String>,
    /// The hosts whose certificates were dropped.
    pub certificates: Vec<String>,
}

/// Why an erasure does not begin.
#[derive(Debug, thiserror::Error)]
pub enum ErasureRefused {
    /// There is no such tenant.
    #[error("there is no tenant `{slug}` in the registry")]
    Absent {
        /// The tenant.
        slug: String,
    },
    /// It is being moved.
    #[error("the account is being moved: wait for the end of the move, or cancel it")]
    Moving,
    /// It is not as expected, or the registry can't be used.
    #[error(transparent)]
    Write(#[from] WriteRefused),
}

impl From<StoreError> for ErasureRefused {
    fn from(error: StoreError) -> Self {
        Self::Write(error.into())
    }
}

impl From<sqlx::Error> for ErasureRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Write(error.into())
    }
}

impl retry::AsStoreError for ErasureRefused {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Write(refused) => refused.as_store_error(),
            Self::Absent { .. } | Self::Moving => None,
        }
    }
}

impl Registry {
    /// The tenant with a slug, if it is being erased.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_erasure(&self, slug: &str) -> Result<Option<Erasure>, StoreError> {
        let sql = sql!(
            "SELECT erasing, revision, erasing_database FROM registry_tenants WHERE erasing IS NOT NULL AND slug = {slug}",
            slug,
        );
        let row = self.database.reader().await?.fetch_optional(sql).await?;
        let read = |row: Row| {
            let (text, revision, database) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok::<_, sqlx::Error>(Erasure { text, revision, database, certificates: Vec::new() })
        };
        Ok(row.map(read).transpose()?)
    }

    /// Removes a tenant, and what the registry has of it beside its table and the address of its database. `database` is which one
    /// that is, and `expected` the revision that the tenant is to have.
    ///
    /// # Errors
    /// [`ErasureRefused`].
    pub async fn begin_erasure(
        &self,
        slug: &str,
        database: Option<&str>,
        expected: Option<Option<i64>>,
        now: Timestamp,
        by: &str,
    ) -> Result<Erasure, ErasureRefused> {
        let begun = retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let head = lock_head(&mut transaction).await?;
            let sql =
                sql!("SELECT toml, revision FROM registry_tenants WHERE toml IS NOT NULL AND slug = {slug}", slug);
            let row = transaction.connection().fetch_optional(sql).await?;
            let (text, current): (Option<String>, Option<i64>) = match row {
                Some(row) => (row.get(0)?, row.get(1)?),
                None => (None, None),
            };
            if let Some(expected) = expected.filter(|expected| *expected != current) {
                let slug = slug.to_owned();
                return Err(WriteRefused::NotAsExpected { slug, expected, revision: current }.into());
            }
            let text = text.ok_or_else(|| ErasureRefused::Absent { slug: slug.to_owned() })?;
            let sql = sql!("SELECT 1 FROM registry_moves WHERE is_open AND slug = {slug}", slug);
            if transaction.connection().fetch_optional(sql).await?.is_some() {
                return Err(ErasureRefused::Moving);
            }
            let revision = head + 1;
            let sql = sql!(
                "UPDATE registry_tenants SET erasing = toml, erasing_database = {database}, toml = NULL, domains = '[]', identity = NULL, label_proves = FALSE,
                   is_erased = TRUE, revision = {revision}, changed_at = {now}, changed_by = {by}
                 WHERE slug = {slug}",
                database,
                revision,
                now,
                by,
                slug,
            );
            transaction.execute(sql).await?;
            let sql = sql!("DELETE FROM registry_claims WHERE kind = 'host' AND slug = {slug}", slug);
            transaction.execute(sql).await?;
            let certificates = forget_domains(&mut transaction, slug).await?;
            transaction.execute(sql!("UPDATE registry_head SET revision = {revision}", revision)).await?;
            transaction.commit().await?;
            let database = database.map(ToOwned::to_owned);
            Ok(Erasure { text, revision, database, certificates })
        });
        begun.await
    }

    /// Removes the rest of a tenant, whose database is erased. Returns the other databases that its moves left.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn finish_erasure(&self, slug: &str) -> Result<BTreeSet<String>, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            lock_head(&mut transaction).await?;
            transaction.execute(sql!("DELETE FROM registry_claims WHERE slug = {slug}", slug)).await?;
            forget_domains(&mut transaction, slug).await?;
            databases::lock(&mut transaction).await?;
            forget_left(&mut transaction, &[slug]).await?;
            forget_subscribed(&mut transaction, slug).await?;
            forget_in_nodes(&mut transaction, slug).await?;
            let sql =
                sql!("UPDATE registry_tenants SET erasing = NULL, erasing_database = NULL WHERE slug = {slug}", slug,);
            transaction.execute(sql).await?;
            let sql = sql!(
                "DELETE FROM registry_moves WHERE slug = {slug} RETURNING CASE WHEN state = 'done' THEN source ELSE target END
                 {scans: accounts are seldom erased}",
                slug,
            );
            let rows = transaction.fetch_all(sql).await?;
            let left = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
            transaction.commit().await?;
            Ok(left)
        })
        .await
    }

    /// The tenants that were erased and did not come back.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn erased(&self) -> Result<Vec<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let rows = reader
            .fetch_all(sql!("SELECT slug FROM registry_tenants WHERE is_erased {scans: an index has only these}"))
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
    }

    /// Removes the certificates of tenants, from the snapshot of a node.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn remove_certificates_of(&self, slugs: &[&str]) -> Result<(), StoreError> {
        let slugs: TextList = slugs.iter().collect();
        let sql =
            sql!("DELETE FROM registry_certificates WHERE slug {in slugs} {scans: accounts are seldom erased}", slugs);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Empties the write-ahead log of a SQLite file, so that what was deleted is in no file. Returns whether that was done: a
    /// program that reads all the time prevents it. On Postgres, the server keeps what it wrote for as long as it does.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn empty_log(&self) -> Result<bool, StoreError> {
        self.database.empty_log().await
    }
}

/// Removes the domains of a tenant with their certificates, events, and what was noted at authorities for each host. Returns the
/// hosts of the certificates.
async fn forget_domains(transaction: &mut Transaction, slug: &str) -> Result<Vec<String>, sqlx::Error> {
    let sql = sql!(
        "SELECT host FROM registry_certificates WHERE chain IS NOT NULL AND slug = {slug}
         {scans: accounts are seldom erased}",
        slug,
    );
    let rows = transaction.fetch_all(sql).await?;
    let certificates: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let rows = transaction.fetch_all(sql!("SELECT host FROM registry_domains WHERE slug = {slug}", slug)).await?;
    let hosts: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    for host in certificates.iter().chain(&hosts) {
        let end = format!("% {host}");
        let sql = sql!("DELETE FROM registry_budgets WHERE name LIKE {end} {scans: accounts are seldom erased}", end);
        transaction.execute(sql).await?;
    }
    for sql in [
        sql!(
            "DELETE FROM registry_budgets WHERE name LIKE {share} {scans: accounts are seldom erased}",
            share = format!("orders % of {slug}"),
        ),
        sql!("DELETE FROM registry_domains WHERE slug = {slug}", slug),
        sql!("DELETE FROM registry_certificates WHERE slug = {slug} {scans: accounts are seldom erased}", slug),
        sql!("DELETE FROM registry_events WHERE slug = {slug} {scans: accounts are seldom erased}", slug),
    ] {
        transaction.execute(sql).await?;
    }
    Ok(certificates)
}

/// Takes a tenant out of what nodes wrote about themselves. One that runs has done so itself, or does with its next beat.
async fn forget_in_nodes(transaction: &mut Transaction, slug: &str) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "SELECT id, refused, coalesce(unable, '[]'), closing FROM registry_nodes {scans: accounts are seldom erased}"
    );
    for row in transaction.fetch_all(sql).await? {
        let id: String = row.get(0)?;
        let [refused, unable, closing] = [1, 2, 3].map(|column| {
            let list = row.get::<String>(column)?;
            Ok::<Vec<String>, sqlx::Error>(serde_json::from_str(&list).unwrap_or_default())
        });
        let (refused, mut unable, mut closing) = (refused?, unable?, closing?);
        if refused.iter().any(|other| other == slug) {
            // The reasons may have its hosts.
            let sql = sql!("UPDATE registry_nodes SET refused = '[]', reasons = '[]' WHERE id = {id}", id = &id);
            transaction.execute(sql).await?;
        }
        let count = unable.len() + closing.len();
        unable.retain(|other| other != slug);
        closing.retain(|other| other != slug);
        if unable.len() + closing.len() < count {
            let list = |texts: &[String]| serde_json::to_string(texts).expect("texts are always JSON");
            let sql = sql!(
                "UPDATE registry_nodes SET closing = {closing}, unable = CASE WHEN unable IS NOT NULL THEN {unable} END
                 WHERE id = {id}",
                closing = list(&closing),
                unable = list(&unable),
                id,
            );
            transaction.execute(sql).await?;
        }
    }
    Ok(())
}

/// Forgets whether a tenant has subscriptions. Numbers are never given twice, so the highest one stays without a tenant.
async fn forget_subscribed(transaction: &mut Transaction, slug: &str) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        transaction.command(LOCK).await?;
    }
    let last_number = || sql!("(SELECT max(number) FROM registry_subscribed)");
    let sql = sql!(
        "DELETE FROM registry_subscribed
         WHERE slug = '' AND EXISTS (
           SELECT 1 FROM registry_subscribed AS s WHERE s.slug = {slug} AND s.number = {+last_number})",
        slug,
        last_number = last_number(),
    );
    transaction.execute(sql).await?;
    let sql = sql!(
        "UPDATE registry_subscribed SET slug = '', place = '', is_subscribed = FALSE
         WHERE slug = {slug} AND number = {+last_number}",
        slug,
        last_number = last_number(),
    );
    transaction.execute(sql).await?;
    transaction.execute(sql!("DELETE FROM registry_subscribed WHERE slug = {slug}", slug)).await?;
    Ok(())
}
