//! Certificates that were obtained for domains: their chains, and their keys in sealed form.
//!
//! A certificate takes the next revision, like a change of a tenant, so that every node takes it over. One that is gone
//! stays as a row without a chain, for readers of the rows above a revision.

use jiff::Timestamp;

use super::Registry;
use super::domains::{DomainRecord, Lease, next_revision, write};
use super::events::{DomainEvent, append};
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{JsonRows, JsonTimestamp, Row, Sql, TableSpec, sql};

/// The certificate of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRecord {
    /// The host.
    pub host: String,
    /// The tenant that it is served for.
    pub slug: String,
    /// The number of its last change.
    pub revision: i64,
    /// The chain and the key. None: it is gone.
    pub pair: Option<StoredPair>,
    /// The name of the authority in the configuration.
    pub authority: String,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

/// A chain and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredPair {
    /// PEM, leaf first.
    pub chain: String,
    /// PEM, sealed for the host.
    pub key: String,
}

impl std::fmt::Debug for StoredPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredPair").finish_non_exhaustive()
    }
}

const TABLE: TableSpec = TableSpec {
    name: "registry_certificates",
    columns: &[
        ("host", "text"),
        ("slug", "text"),
        ("revision", "bigint"),
        ("chain", "text"),
        ("key", "text"),
        ("authority", "text"),
        ("not_before", "timestamptz"),
        ("not_after", "timestamptz"),
    ],
    key: 1,
};

impl CertificateRecord {
    /// What [`Self::read`] reads.
    fn columns() -> Sql {
        Sql::text("host, slug, revision, chain, key, authority, not_before, not_after")
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let (chain, key): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
        Ok(Self {
            host: row.get(0)?,
            slug: row.get(1)?,
            revision: row.get(2)?,
            pair: chain.zip(key).map(|(chain, key)| StoredPair { chain, key }),
            authority: row.get(5)?,
            not_before: row.get(6)?,
            not_after: row.get(7)?,
        })
    }
}

impl Registry {
    /// Stores a certificate for a domain, with what becomes of the domain and events. Takes the next revision in place
    /// of the one in `certificate`. Returns whether the lease was still its own; if not, nothing is stored.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn store_certificate(
        &self,
        domain: &DomainRecord,
        certificate: &CertificateRecord,
        events: &[DomainEvent],
    ) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        if !write(&mut transaction, domain, Lease::End).await? {
            transaction.roll_back().await?;
            return Ok(false);
        }
        let stored = CertificateRecord { revision, ..certificate.clone() };
        upsert(&mut transaction, &[stored]).await?;
        for event in events {
            let revision = next_revision(&mut transaction).await?;
            append(&mut transaction, revision, domain, event).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// The certificate of a host, also one that is gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_certificate(&self, host: &str) -> Result<Option<CertificateRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM registry_certificates WHERE host = {host}",
            columns = CertificateRecord::columns(),
            host,
        );
        Ok(reader.fetch_optional(sql).await?.as_ref().map(CertificateRecord::read).transpose()?)
    }

    /// The certificates that changed after a revision and up to another one, in the order of their last changes.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn certificates(&self, after: i64, until: i64, limit: u32) -> Result<Vec<CertificateRecord>, StoreError> {
        let sql = sql!(
            "SELECT {+columns} FROM registry_certificates
             WHERE revision > {after} AND revision <= {until}
             ORDER BY revision LIMIT {limit}",
            columns = CertificateRecord::columns(),
            after,
            until,
            limit,
        );
        self.read_certificates(sql).await
    }

    /// The certificates of hosts, also those that are gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn certificates_of(&self, hosts: &[String]) -> Result<Vec<CertificateRecord>, StoreError> {
        let sql = sql!(
            "SELECT {+columns} FROM registry_certificates WHERE host {in hosts}",
            columns = CertificateRecord::columns(),
            hosts,
        );
        self.read_certificates(sql).await
    }

    /// Certificates after a host, in alphabetical order of their hosts, also those that are gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn certificates_by_host(&self, after: &str, limit: u32) -> Result<Vec<CertificateRecord>, StoreError> {
        let sql = sql!(
            "SELECT {+columns} FROM registry_certificates
             WHERE host > {after}
             ORDER BY host LIMIT {limit}",
            columns = CertificateRecord::columns(),
            after,
            limit,
        );
        self.read_certificates(sql).await
    }

    async fn read_certificates(&self, sql: Sql) -> Result<Vec<CertificateRecord>, StoreError> {
        let rows = self.database.reader().await?.fetch_all(sql).await?;
        Ok(rows.iter().map(CertificateRecord::read).collect::<Result<_, _>>()?)
    }

    /// Takes over certificates of another registry, as they are there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn copy_certificates(&self, rows: &[CertificateRecord]) -> Result<(), StoreError> {
        let mut transaction = self.database.begin().await?;
        upsert(&mut transaction, rows).await?;
        Ok(transaction.commit().await?)
    }

    /// Removes the certificates of hosts that another registry does not have.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn remove_certificates(&self, hosts: &[String]) -> Result<(), StoreError> {
        self.database.execute(sql!("DELETE FROM registry_certificates WHERE host {in hosts}", hosts)).await?;
        Ok(())
    }

    /// Seals keys again: the certificate of a host gets another sealed form of the same key. Returns whether it was still
    /// the one that was read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn reseal_certificate(&self, before: &CertificateRecord, key: &str) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        let sql = sql!(
            "UPDATE registry_certificates SET key = {key}, revision = {revision}
             WHERE host = {host} AND revision = {known}",
            key,
            revision,
            host = &before.host,
            known = before.revision,
        );
        let is_own = transaction.execute(sql).await? > 0;
        if is_own {
            transaction.commit().await?;
        }
        Ok(is_own)
    }
}

/// Whose certificate is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of<'s> {
    /// Of this tenant.
    Tenant(&'s str),
    /// Of every other tenant.
    Others(&'s str),
}

/// Drops the certificate of a host if it is theirs.
pub(super) async fn drop_certificate(transaction: &mut Transaction, host: &str, of: Of<'_>) -> Result<(), sqlx::Error> {
    let revision = next_revision(transaction).await?;
    let is_theirs = match of {
        Of::Tenant(slug) => sql!("slug = {slug}", slug),
        Of::Others(slug) => sql!("slug <> {slug}", slug),
    };
    let sql = sql!(
        "UPDATE registry_certificates SET chain = NULL, key = NULL, revision = {revision}
         WHERE chain IS NOT NULL AND host = {host} AND {+is_theirs}",
        revision,
        host,
        is_theirs,
    );
    transaction.execute(sql).await?;
    Ok(())
}

async fn upsert(transaction: &mut Transaction, certificates: &[CertificateRecord]) -> Result<(), StoreError> {
    let mut rows = JsonRows::new();
    for certificate in certificates {
        let CertificateRecord { host, slug, revision, pair, authority, not_before, not_after } = certificate;
        let (chain, key) = pair.as_ref().map(|pair| (&pair.chain, &pair.key)).unzip();
        let at = |instant: Timestamp| JsonTimestamp::new(instant, transaction.dialect());
        rows.push(&(host, slug, revision, chain, key, authority, at(*not_before), at(*not_after)));
    }
    TABLE.upsert(transaction, &rows).await
}
