//! The identity of a database: a random text that `formgate migrate` stores in it once.
//!
//! It identifies a database where its address can't. Nodes may reach the same database by different addresses (a
//! `PgBouncer` on each), and one address may lead to another database after a change of the configuration, a DNS
//! record or a file. It never changes, so it is read once, when a store is opened.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::engine::PooledConnection;
use super::statement::sql;

/// Which database a store is open on. Equal for copies of one database.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DatabaseIdentity(Arc<str>);

impl DatabaseIdentity {
    /// Reads it from a database at the newest schema, and which database that is.
    pub(super) async fn read(reader: &mut PooledConnection) -> Result<(Self, Option<PhysicalId>), sqlx::Error> {
        let sql = sql!(
            "SELECT id,
               {pg: concat_ws(' ', id, tableoid, (SELECT oid FROM pg_database WHERE datname = current_database()))
                | lite: NULL}
             FROM database_identity"
        );
        let row = reader.fetch_one(sql).await?;
        let place: Option<String> = row.get(1)?;
        Ok((Self(row.get::<String>(0)?.into()), place.as_deref().map(PhysicalId::of)))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which database of which Postgres server it is, and which schema of it: equal for two addresses of one, and different for
/// copies, which have the same [`DatabaseIdentity`]. A file of SQLite has none, since its path and its inode say so.
///
/// A hash of the identity with the numbers of the database and the table on the server. A copy within the server has others,
/// and one on another server has the same by chance only, or if the whole server was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhysicalId(u128);

impl PhysicalId {
    fn of(place: &str) -> Self {
        Self(u128::from_be_bytes(*Sha256::digest(place).first_chunk().expect("a digest has 32 bytes")))
    }
}

impl fmt::Display for PhysicalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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
