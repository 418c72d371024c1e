//! Which database each tenant has, as whoever opened it found: two addresses may lead to one database, which only one tenant may
//! have.
//!
//! A node can't tell before it opens the database, so a tenant may be there by then. Of several with one database, the one that
//! was found first has it, until it is removed or has another address.

use super::Registry;
use super::subscribed::LOCK;
use crate::store::StoreError;
use crate::store::engine::{Transaction, retry};
use crate::store::statement::{Dialect, Sql, TextList, sql};

/// Which database a tenant has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDatabase {
    /// The tenant.
    pub slug: String,
    /// Its address, as in the tenant's claims.
    pub address: String,
    /// A hash: equal for two addresses of one database.
    pub database: String,
}

/// A tenant whose database another one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDatabase {
    /// The tenant, which is not served.
    pub slug: String,
    /// The address of its database.
    pub address: String,
    /// The tenant that has the database.
    pub owner: String,
}

/// The tenants whose databases others have, as a JSON array of arrays.
pub(super) fn shared() -> Sql {
    sql!(
        "(SELECT {pg: coalesce(json_agg(json_build_array(slug, address, owner)), '[]')::text
           | lite: json_group_array(json_array(slug, address, owner))}
         FROM registry_databases WHERE owner IS NOT NULL)"
    )
}

/// Reads what [`shared`] selects.
pub(super) fn read_shared(text: &str) -> Vec<SharedDatabase> {
    let rows: Vec<(String, String, String)> = serde_json::from_str(text).unwrap_or_default();
    rows.into_iter().map(|(slug, address, owner)| SharedDatabase { slug, address, owner }).collect()
}

impl Registry {
    /// Notes which databases tenants have. Those that have another address by now are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_databases(&self, found: &[FoundDatabase]) -> Result<(), StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            lock(&mut transaction).await?;
            for found in found {
                note(&mut transaction, found).await?;
            }
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// Which other tenant has a database, if one was found with it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn owner_of_database(&self, slug: &str, database: &str) -> Result<Option<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT d.slug FROM registry_databases d
             WHERE d.database = {database} AND d.owner IS NULL AND d.slug <> {slug} AND {+is_current}",
            database,
            slug,
            is_current = is_current("d"),
        );
        Ok(reader.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?)
    }
}

/// Has other writers of the table wait: so those that come later are later in its order.
pub(super) async fn lock(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    // SQLite has one writer anyway.
    if transaction.dialect() == Dialect::Postgres {
        transaction.command(LOCK).await?;
    }
    Ok(())
}

/// Notes which database a tenant has, and returns the tenant that was found with it before.
pub(super) async fn note(
    transaction: &mut Transaction,
    FoundDatabase { slug, address, database }: &FoundDatabase,
) -> Result<Option<String>, sqlx::Error> {
    let sql = sql!(
        "INSERT INTO registry_databases AS known (slug, address, database, since)
         SELECT c.slug, c.value, {database}, (SELECT coalesce(max(since), 0) + 1 FROM registry_databases)
         FROM registry_claims c
         WHERE c.kind = 'database' AND c.value = {address} AND c.slug = {slug}
         ON CONFLICT (slug) DO UPDATE SET address = excluded.address, database = excluded.database,
           since = excluded.since, owner = NULL
         WHERE known.address <> excluded.address OR known.database <> excluded.database",
        database,
        address,
        slug,
    );
    transaction.execute(sql).await?;
    settle(transaction, &[slug.as_str()]).await?;
    let sql = sql!("SELECT owner FROM registry_databases WHERE owner IS NOT NULL AND slug = {slug}", slug);
    transaction.connection().fetch_optional(sql).await?.map(|row| row.get(0)).transpose()
}

/// Forgets the databases of tenants that were removed or have another address, which gives them to others.
pub(super) async fn forget_left(transaction: &mut Transaction, slugs: &[&str]) -> Result<(), sqlx::Error> {
    let texts: TextList = slugs.iter().collect();
    let sql = sql!(
        "DELETE FROM registry_databases WHERE slug {in slugs} AND NOT {+is_current}",
        slugs = texts,
        is_current = is_current("registry_databases"),
    );
    transaction.execute(sql).await?;
    settle(transaction, slugs).await
}

/// Decides who has the databases of these tenants, and those that they had.
async fn settle(transaction: &mut Transaction, slugs: &[&str]) -> Result<(), sqlx::Error> {
    let first_found = || {
        sql!(
            "(SELECT o.slug FROM registry_databases o
              WHERE o.database = registry_databases.database AND o.since < registry_databases.since AND {+is_current}
              ORDER BY o.since LIMIT 1)",
            is_current = is_current("o"),
        )
    };
    let texts: TextList = slugs.iter().collect();
    let sql = sql!(
        "UPDATE registry_databases SET owner = {+first_found}
         WHERE (slug {in slugs} OR owner {in slugs}) AND owner IS DISTINCT FROM {+first_found_now}",
        first_found = first_found(),
        first_found_now = first_found(),
        slugs = texts,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// The tenant still has its database at the address where it was found.
fn is_current(row: &'static str) -> Sql {
    sql!(
        "EXISTS (
           SELECT 1 FROM registry_claims c
           WHERE c.kind = 'database' AND c.value = {+row}.address AND c.slug = {+row}.slug)",
        row = Sql::text(row),
    )
}
