//! The identity of a database: a random text that `formgate migrate` stores in it once.
//!
//! It identifies a database where its address can't. Nodes may reach the same database by different addresses (a
//! `PgBouncer` on each), and one address may lead to another database after a change of the configuration, a DNS
//! record or a file. It never changes, so it is read once, when a store is opened.

use std::fmt;
use std::sync::Arc;

use super::engine::PooledConnection;
use super::statement::{Dialect, sql};

/// Which database a store is open on. Equal for copies of one database.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DatabaseIdentity(Arc<str>);

impl DatabaseIdentity {
    /// Reads it from a database at the newest schema.
    pub(super) async fn read(reader: &mut PooledConnection) -> Result<Self, sqlx::Error> {
        let row = reader.fetch_one(sql!("SELECT id FROM database_identity")).await?;
        Ok(Self(row.get::<String>(0)?.into()))
    }

    /// Identifies the database within its Postgres cluster, for comparing databases that are reached by different
    /// URLs. None on SQLite, or if the role may not read it. Unlike the identity, it differs between copies.
    pub(super) async fn physical_id(reader: &mut PooledConnection) -> Option<String> {
        if reader.dialect() == Dialect::Sqlite {
            return None;
        }
        let sql = sql!(
            "SELECT concat_ws(' ',
               (SELECT system_identifier FROM pg_control_system()),
               (SELECT oid FROM pg_database WHERE datname = current_database()),
               to_regclass('database_identity')::oid)"
        );
        reader.fetch_one(sql).await.ok()?.get(0).ok()
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for DatabaseIdentity {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for DatabaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
