//! Lives of tenants: proofs, certificates and added domains belong to a slug together with a database, so the account that gets
//! the slug of another one has none of them.

use super::Registry;
use super::certificates::{Of, drop_certificate};
use super::writing::RegistryChange;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::Row;

/// A tenant as the transaction found it.
pub(super) struct Found {
    pub(super) text: Option<String>,
    pub(super) revision: i64,
    /// Domains that it has proved.
    pub(super) domains: Vec<String>,
    /// The identity that is stored in its database.
    identity: Option<String>,
    /// Where its database is.
    location: Option<String>,
}

/// Whose life a tenant goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The slug was not used before.
    First,
    /// That of the tenant that has the slug, or had it last.
    Same,
    /// One of its own, after another one. So is that of a database whose identity is not known.
    Next,
}

impl Life {
    pub(super) fn of(change: &RegistryChange, found: Option<&Found>) -> Self {
        let (RegistryChange::Put { claims, identity, .. }, Some(found)) = (change, found) else {
            return if found.is_some() { Self::Same } else { Self::First };
        };
        let is_same = match (&found.identity, identity) {
            (Some(before), Some(now)) => before == now,
            _ => found.text.is_some() && found.location.as_ref() == Some(&claims.database),
        };
        if is_same { Self::Same } else { Self::Next }
    }
}

/// A tenant as it is.
pub(super) async fn find(transaction: &mut Transaction, slug: &str) -> Result<Option<Found>, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT toml, revision, domains, identity, (SELECT c.value FROM registry_claims c WHERE ");
    sql.push("c.kind = 'database' AND c.slug = registry_tenants.slug) FROM registry_tenants WHERE slug = ").bind(slug);
    let row = transaction.fetch_all(sql).await?.pop();
    let read = |row: Row| {
        let domains = serde_json::from_str(&row.get::<String>(2)?).unwrap_or_default();
        let (text, revision) = (row.get(0)?, row.get(1)?);
        Ok(Found { text, revision, domains, identity: row.get(3)?, location: row.get(4)? })
    };
    row.map(read).transpose()
}

/// Notes whose life a tenant goes on with.
pub(super) async fn note_life(
    transaction: &mut Transaction,
    slug: &str,
    life: Life,
    identity: Option<&str>,
) -> Result<(), sqlx::Error> {
    let identity = identity.map(ToOwned::to_owned);
    let mut sql = transaction.sql();
    sql.push("UPDATE registry_tenants SET identity = ");
    match life {
        Life::First | Life::Same => sql.push("coalesce(").bind(identity).push(", identity)"),
        Life::Next => sql.bind(identity).push(", label_proves = FALSE"),
    };
    sql.push(" WHERE slug = ").bind(slug);
    transaction.execute(sql).await?;
    Ok(())
}

/// Forgets what the account had that had the slug before, except for hosts in the table of the next one.
pub(super) async fn end_life(transaction: &mut Transaction, slug: &str, hosts: &[String]) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM registry_domains WHERE slug = ").bind(slug).push(" AND NOT host").in_texts(hosts);
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push("SELECT host FROM registry_certificates WHERE chain IS NOT NULL AND slug = ").bind(slug);
    for row in transaction.fetch_all(sql).await? {
        let host: String = row.get(0)?;
        if !hosts.contains(&host) {
            drop_certificate(transaction, &host, Of::Tenant(slug)).await?;
        }
    }
    Ok(())
}

impl Registry {
    /// Whether a tenant was removed, or has its database in another place: so whether it matters which database it gets.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn was_elsewhere(&self, slug: &str, database: &str) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT 1 FROM registry_tenants WHERE slug = ").bind(slug).push(" AND (toml IS NULL OR NOT EXISTS (");
        sql.push("SELECT 1 FROM registry_claims c WHERE c.kind = 'database' AND c.slug = registry_tenants.slug ");
        sql.push("AND c.value = ").bind(database).push("))");
        Ok(reader.fetch_optional(sql).await?.is_some())
    }

    /// Notes the identity that is stored in the database of a tenant, which is at this place, unless one is known.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_identity(&self, slug: &str, database: &str, identity: &str) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE registry_tenants SET identity = ").bind(identity).push(" WHERE identity IS NULL AND slug = ");
        sql.bind(slug).push(" AND EXISTS (SELECT 1 FROM registry_claims c WHERE c.kind = 'database' ");
        sql.push("AND c.slug = registry_tenants.slug AND c.value = ").bind(database).push(")");
        self.database.execute(sql).await?;
        Ok(())
    }
}
