//! Lives of tenants: proofs, certificates and added domains belong to a slug together with a database, so the account that gets
//! the slug of another one has none of them.

use super::Registry;
use super::certificates::{Of, drop_certificate};
use super::writing::RegistryChange;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, Sql, sql};

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
    pub(super) is_being_erased: bool,
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
    let sql = sql!(
        "SELECT toml, revision, domains, identity,
           (SELECT c.value FROM registry_claims c WHERE c.kind = 'database' AND c.slug = registry_tenants.slug),
           erasing IS NOT NULL
         FROM registry_tenants
         WHERE slug = {slug}",
        slug,
    );
    let row = transaction.connection().fetch_optional(sql).await?;
    let read = |row: Row| {
        let domains = serde_json::from_str(&row.get::<String>(2)?).unwrap_or_default();
        let (text, revision) = (row.get(0)?, row.get(1)?);
        let (identity, location, is_being_erased) = (row.get(3)?, row.get(4)?, row.get(5)?);
        Ok(Found { text, revision, domains, identity, location, is_being_erased })
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
    let sql = match life {
        Life::First | Life::Same => sql!(
            "UPDATE registry_tenants SET identity = coalesce({identity}, identity) WHERE slug = {slug}",
            identity,
            slug,
        ),
        Life::Next => sql!(
            "UPDATE registry_tenants SET identity = {identity}, label_proves = FALSE WHERE slug = {slug}",
            identity,
            slug,
        ),
    };
    transaction.execute(sql).await?;
    Ok(())
}

/// Forgets what the account had that had the slug before, except for hosts in the table of the next one.
pub(super) async fn end_life(transaction: &mut Transaction, slug: &str, hosts: &[String]) -> Result<(), sqlx::Error> {
    let sql = sql!("DELETE FROM registry_domains WHERE slug = {slug} AND host {not in hosts}", slug, hosts);
    transaction.execute(sql).await?;
    let sql = sql!(
        "SELECT host FROM registry_certificates
         WHERE chain IS NOT NULL AND slug = {slug}
         {scans: it is rare that an account gets the slug of another one}",
        slug,
    );
    for row in transaction.fetch_all(sql).await? {
        let host: String = row.get(0)?;
        if !hosts.contains(&host) {
            drop_certificate(transaction, &host, Of::Tenant(slug)).await?;
        }
    }
    Ok(())
}

/// A tenant has its database at this place.
fn is_at(database: &str) -> Sql {
    sql!(
        "EXISTS (
           SELECT 1 FROM registry_claims c
           WHERE c.kind = 'database' AND c.slug = registry_tenants.slug AND c.value = {database})",
        database,
    )
}

impl Registry {
    /// Whether a tenant has its database in this place; one that was removed has it nowhere. `None` if there was no tenant of this name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn is_at(&self, slug: &str, database: &str) -> Result<Option<bool>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT toml IS NOT NULL AND {+is_there} FROM registry_tenants WHERE slug = {slug}",
            is_there = is_at(database),
            slug,
        );
        Ok(reader.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?)
    }

    /// Notes the identity that is stored in the database of a tenant, which is at this place, unless one is known.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_identity(&self, slug: &str, database: &str, identity: &str) -> Result<(), StoreError> {
        let sql = sql!(
            "UPDATE registry_tenants SET identity = {identity}
             WHERE identity IS NULL AND slug = {slug} AND {+is_there}",
            identity,
            slug,
            is_there = is_at(database),
        );
        self.database.execute(sql).await?;
        Ok(())
    }
}
