//! One tenant's database, Postgres or SQLite, behind one interface: nothing above knows which.
//!
//! A [`Store`] exists only for a database at the schema that this program serves ([`Store::open`]); [`migrate`] brings
//! one there. Knows no HTTP, no JSON of the API and no tenant. The two databases share the text of almost every
//! statement: only `sql` and `database` know where they part.

mod database;
pub mod filter;
mod forms;
mod groups;
pub(crate) mod import;
pub mod location;
mod page;
#[cfg(test)]
pub(crate) mod raw;
mod reindex;
mod retry;
mod schema;
mod search;
mod sql;
mod submissions;
mod subscriptions;
mod tokens;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use tokio::sync::Mutex;

pub use forms::{Element, Form, FormSummary};
pub use groups::{
    Deletion, Durability, Group, GroupFilter, GroupSummary, GroupWrite, GroupWriteError, Guard, Member, MemberChange,
    NewMember, Report, Written,
};
pub use location::{DatabaseLocation, InvalidLocation};
pub use page::{Page, PageRequest};
pub use reindex::{Reindexed, reindex};
pub use submissions::{Answer, Submission};
pub use subscriptions::{Event, Subscribed, Subscription, Triple, Unsubscription};
pub use tokens::{NewToken, TokenRecord};

use database::Database;
use retry::Tries;

/// An open, migrated database of one tenant. Cloning shares the connections.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    /// Held by the one write of a group that this node does at a time: those that wait for their turn hold no connection
    /// that a reader could use.
    group_writes: Arc<Mutex<()>>,
}

/// Why a store can't be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database can't be reached, is overloaded, locked or full: another try may succeed.
    #[error("the database is unavailable")]
    Unavailable(#[source] sqlx::Error),
    /// The database has an older schema than this program serves.
    #[error("the database is at schema version {found}, this program needs {wanted}")]
    SchemaOlder {
        /// The version that the database is at; 0 when it has none.
        found: i64,
        /// The version that this program needs.
        wanted: i64,
    },
    /// The folder of a SQLite file is not there and can't be made.
    #[error("the folder `{}` can't be made", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// A migration failed; what it did is rolled back.
    #[error("the migration failed")]
    Migration(#[source] MigrateError),
    /// A statement failed for a reason that no other try mends.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_passing(&error) { Self::Unavailable(error) } else { Self::Statement(error) }
    }
}

/// Whether an error lies in the state of the database rather than in the statement.
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            if database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
                // Connection, authorisation, no such database, deadlock and serialization, resources, operator
                // intervention (a cancelled statement too), system error (appendix A of the Postgres manual).
                ["08", "28", "3D", "40", "53", "57", "58"].iter().any(|class| code.starts_with(class))
            } else {
                // The primary code stands in the low byte (sqlite.org/rescode.html): PERM, BUSY, LOCKED, NOMEM,
                // READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB.
                code.parse::<i64>().is_ok_and(|code| [3, 5, 6, 7, 8, 10, 11, 13, 14, 26].contains(&(code & 0xff)))
            }
        }
        _ => false,
    }
}

/// How long a request waits for a free connection: longer, and a stuck database holds its callers; shorter, and a burst
/// of slow searches is refused although it would have been served.
const CONNECTION_WAIT: Duration = Duration::from_secs(3);

impl Store {
    /// Opens a database and checks its schema.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::SchemaOlder`] before it was migrated.
    pub async fn open(location: &DatabaseLocation, max_connections: u32) -> Result<Self, StoreError> {
        location.try_out().await?;
        let database = location.connect(max_connections);
        if let Err(error) = schema::require_newest(&database).await {
            database.close().await;
            return Err(error);
        }
        Ok(Self { database, group_writes: Arc::default() })
    }

    /// Closes every connection, waiting for those in use.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// Brings a database to the newest schema, making it where it can (SQLite), and tells the versions before and after.
///
/// # Errors
/// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::Migration`] when a step fails.
pub async fn migrate(location: &DatabaseLocation) -> Result<(i64, i64), StoreError> {
    location.make_folder()?;
    location.try_out().await?;
    let mut tries = Tries::default();
    loop {
        match try_to_migrate(location).await {
            // While one command turns a new SQLite file to WAL, another one is refused at once and not made to wait.
            Err(error) if tries.another(&error).await => {}
            outcome => return outcome,
        }
    }
}

async fn try_to_migrate(location: &DatabaseLocation) -> Result<(i64, i64), StoreError> {
    let database = location.create();
    let before = schema::version(&database).await?;
    schema::migrate(&database).await.map_err(|error| match error {
        // No step of a migration, but the connection beneath.
        MigrateError::Execute(error) => error.into(),
        step => StoreError::Migration(step),
    })?;
    let after = schema::version(&database).await?;
    database.close().await;
    Ok((before, after))
}
