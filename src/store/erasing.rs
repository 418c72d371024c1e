//! Erases the database of an account: formgate's tables and the documented plain ones, never those of others.
//!
//! On Postgres, these are dropped in one transaction with the functions, and the schema if formgate created it and nothing is left
//! in it. On SQLite, the file is removed with the files next to it; if it has tables of others, they stay, and the rest of the file
//! is overwritten. Whatever of others needs our tables, such as a view, is named and refuses all of it.

mod postgres;
mod sqlite;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::engine::{Database, DatabaseLocation};
use super::identity::DatabaseIdentity;
use super::statement::{Dialect, sql};
use super::{PhysicalId, StoreError, schema};

/// How long looking at a database may take.
///
/// Larger: a call whose database hangs takes longer. Smaller: a slow database can't be erased.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Why a database is not erased.
#[derive(Debug, thiserror::Error)]
pub enum NotErasable {
    /// Something that is not formgate's needs its tables.
    #[error("what is not formgate's needs its tables: {}; drop that first", .0.join(", "))]
    Needed(Vec<String>),
    /// Its role may not drop the tables.
    #[error("the role of the database does not own the tables {}: only their owner may drop them", .0.join(", "))]
    NotOwned(Vec<String>),
    /// Its file is on another machine.
    #[error("the file `{file}` is not on this machine, and other nodes are live: erase it where it is")]
    NotHere {
        /// The file.
        file: String,
    },
    /// A file can't be removed.
    #[error("the file `{file}` can't be removed")]
    File {
        /// The file.
        file: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for NotErasable {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// What is in a database that is to be erased.
#[derive(Clone, Debug, Default)]
pub struct ErasableDatabase {
    /// Its identity; `None` if it has no tables of formgate.
    pub identity: Option<DatabaseIdentity>,
    /// Which one it is, on Postgres.
    pub physical_id: Option<PhysicalId>,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// The databases into which backups of it were restored.
    pub restored: BTreeSet<String>,
}

/// What was erased of a database, and what was not, in words.
#[derive(Clone, Debug, Default)]
pub struct ErasedDatabase {
    /// What was erased.
    pub erased: Vec<String>,
    /// What stays.
    pub kept: Vec<String>,
}

/// Looks whether a database can be erased. Changes nothing.
///
/// # Errors
/// [`NotErasable`].
pub async fn look_before_erasing(location: &DatabaseLocation) -> Result<ErasableDatabase, NotErasable> {
    if location.file().is_some_and(|file| file.try_exists().is_ok_and(|exists| !exists)) {
        return Ok(ErasableDatabase::default());
    }
    location.require_writable()?;
    let database = location.connect_for_maintenance();
    let looked = timeout(LOOK_LIMIT, look(&database)).await.unwrap_or_else(|_| Err(StoreError::timed_out().into()));
    database.close().await;
    looked
}

async fn look(database: &Database) -> Result<ErasableDatabase, NotErasable> {
    let mut reader = database.reader().await?;
    if !schema::is_of_tenant(&mut reader).await? {
        return Ok(ErasableDatabase::default());
    }
    let needed = match reader.dialect() {
        Dialect::Postgres => {
            postgres::refuse_not_owned(&mut reader).await?;
            postgres::needed(&mut reader).await?
        }
        Dialect::Sqlite => sqlite::others(&mut reader).await?.into_iter().filter_map(|other| other.needs).collect(),
    };
    if !needed.is_empty() {
        return Err(NotErasable::Needed(needed));
    }
    let (identity, physical_id) = DatabaseIdentity::read(&mut reader).await?;
    let tokens = reader.fetch_all(sql!("SELECT id FROM tokens {scans: accounts are seldom erased}")).await?;
    let tokens = tokens.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let sql =
        sql!("SELECT details FROM audit_log WHERE action = 'tenant.restored' {scans: accounts are seldom erased}");
    let details: Vec<String> = reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let of = |details: &String| Some(serde_json::from_str::<Value>(details).ok()?["database"].as_str()?.to_owned());
    let restored = details.iter().filter_map(of).collect();
    Ok(ErasableDatabase { identity: Some(identity), physical_id, tokens, restored })
}

/// Erases a database. On Postgres, only if it is still the one that was looked at: with its tables gone, another account's may be
/// the next ones on the search path.
///
/// # Errors
/// [`NotErasable`]. Then either all of it is there, or the call can be repeated.
pub async fn erase(location: &DatabaseLocation, looked_at: Option<&str>) -> Result<ErasedDatabase, NotErasable> {
    if let Some(file) = location.file() {
        return sqlite::erase(location, file).await;
    }
    let database = location.connect_for_maintenance();
    let erased = postgres::erase(&database, looked_at).await;
    database.close().await;
    erased
}
