//! What only one tenant may have: its hosts, and the address of its database.

use std::collections::HashMap;

use super::Registry;
use super::writing::WriteRefused;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Row, sql};

/// What no other tenant may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Its hosts.
    pub hosts: Vec<String>,
    /// The address of its database, without a password.
    pub database: String,
}

impl Claims {
    fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.hosts.iter().map(|host| ("host", host.as_str())).chain([("database", self.database.as_str())])
    }
}

/// Claims what a tenant has, of which it had nothing before.
pub(super) async fn claim(transaction: &mut Transaction, slug: &str, claims: &Claims) -> Result<(), WriteRefused> {
    let values: Vec<_> = claims.iter().map(|(kind, value)| (kind, value, slug)).collect();
    let rows = serde_json::to_string(&values).expect("texts are always JSON");
    let sql = sql!(
        "INSERT INTO registry_claims (kind, value, slug)
         SELECT kind, value, slug FROM {rows rows: kind text, value text, slug text} AS batch
         WHERE TRUE
         ON CONFLICT (kind, value) DO NOTHING",
        rows,
    );
    if transaction.execute(sql).await? == values.len() as u64 {
        return match moving_to(transaction.connection(), slug, &claims.database).await? {
            Some(taken) => Err(taken),
            None => Ok(()),
        };
    }
    Err(taken(transaction.connection(), slug, claims).await?.ok_or(sqlx::Error::RowNotFound)?)
}

impl Registry {
    /// Fails if another tenant has something of a tenant's claims.
    ///
    /// # Errors
    /// [`WriteRefused::Taken`], [`WriteRefused::Store`].
    pub async fn check_free(&self, slug: &str, claims: &Claims) -> Result<(), WriteRefused> {
        match taken(&mut self.database.reader().await?, slug, claims).await? {
            Some(taken) => Err(taken),
            None => Ok(()),
        }
    }
}

/// The first of a tenant's claims that another one has.
async fn taken(
    connection: &mut PooledConnection,
    slug: &str,
    claims: &Claims,
) -> Result<Option<WriteRefused>, sqlx::Error> {
    let sql = sql!(
        "SELECT kind, value, slug FROM registry_claims
         WHERE slug <> {slug} AND (kind = 'host' AND value {in hosts} OR kind = 'database' AND value = {database})",
        slug,
        hosts = &claims.hosts[..],
        database = &claims.database,
    );
    let rows = connection.fetch_all(sql).await?;
    let owned = |row: &Row| Ok(((row.get::<String>(0)?, row.get::<String>(1)?), row.get(2)?));
    let mut owners: HashMap<_, String> = rows.iter().map(owned).collect::<Result<_, sqlx::Error>>()?;
    let taken = claims.iter().find_map(|(kind, value)| {
        let owner = owners.remove(&(kind.to_owned(), value.to_owned()))?;
        Some(WriteRefused::Taken { slug: slug.to_owned(), kind, value: value.to_owned(), owner })
    });
    match taken {
        Some(taken) => Ok(Some(taken)),
        None => moving_to(connection, slug, &claims.database).await,
    }
}

/// Whether another account is being moved to a database.
async fn moving_to(
    connection: &mut PooledConnection,
    slug: &str,
    database: &str,
) -> Result<Option<WriteRefused>, sqlx::Error> {
    let sql = sql!(
        "SELECT slug FROM registry_moves WHERE is_open AND place = {database} AND slug <> {slug} LIMIT 1
         {scans: few accounts move at once}",
        database,
        slug,
    );
    let owner: Option<String> = connection.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?;
    let (slug, value) = (slug.to_owned(), database.to_owned());
    Ok(owner.map(|owner| WriteRefused::Taken { slug, kind: "database", value, owner }))
}
