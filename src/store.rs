//! One tenant's database, Postgres or SQLite, behind one interface: nothing above knows which.
//!
//! A [`Store`] exists only for a database at the schema that this program serves ([`Store::open`]); [`migrate`] brings
//! one there. Knows no HTTP, no JSON of the API and no tenant. The two databases share the text of almost every
//! statement: only `sql`, `session` and `location` know where they part.

mod concerns;
mod engine;
pub mod filter;
mod forms;
mod groups;
mod identity;
pub(crate) mod import;
pub mod mailbox;
mod reindex;
mod schema;
mod search;
mod settle;
mod statement;
mod submissions;
mod subscriptions;
mod tokens;
mod users;

use std::sync::Arc;

use tokio::sync::RwLock;

pub use concerns::Concern;
#[cfg(test)]
pub(crate) use engine::raw;
pub use engine::{
    Breaker, BreakerPermit, CommitStamp, Connections, DatabaseLimits, DatabaseLocation, DatabaseTime, InvalidLocation,
    Pooler, ReadOnlyFile, StoreError, location, remedy,
};
use engine::{Database, DatabaseFile, Retry};
pub(crate) use engine::{LOG, SHARED_MEMORY, next_to, with_causes};
pub use forms::{Element, Form, FormSummary};
pub use groups::{
    Deletion, Durability, Group, GroupFilter, GroupSummary, GroupWrite, GroupWriteError, Guard, MemberChange,
    NewMembers, Report, WrittenGroup,
};
pub use identity::DatabaseIdentity;
pub use reindex::{Reindexed, reindex};
pub use schema::Reach;
pub use search::SearchPage;
use settle::Settler;
pub use statement::{Page, PageRequest, Texts, fold};
pub use submissions::{Answer, Field, Submission, Submissions, SubmissionsView};
pub use subscriptions::{Event, Subscribed, Subscription, SubscriptionKey, Unsubscription};
pub use tokens::{NewToken, TokenRecord};

use crate::metrics::DatabaseFailure;

/// An open, migrated database of one tenant. Cloning shares the connections.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    identity: DatabaseIdentity,
    /// Held by the one write of a group that this node does at a time, or shared by those that need not be alone: who waits
    /// here holds no connection that a reader could use, and half of them at most are ever held by writes.
    group_writes: Arc<RwLock<()>>,
    settler: Settler,
    file: Option<DatabaseFile>,
}

impl Store {
    /// Opens a database for one command and checks its schema.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::SchemaOlder`] before it was migrated.
    pub async fn open(location: &DatabaseLocation, max_connections: u32) -> Result<Self, StoreError> {
        let connections = Connections::for_command();
        Self::check(location, location.connect(max_connections, &connections, None), max_connections).await
    }

    /// Opens a database for serving: with connections of those that all tenants share, and a breaker before it. That is
    /// not asked here; whoever opens has asked it.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_for_serving(
        location: &DatabaseLocation,
        max_connections: u32,
        connections: &Arc<Connections>,
        breaker: &Arc<Breaker>,
    ) -> Result<Self, StoreError> {
        Self::check(location, location.connect(max_connections, connections, Some(breaker)), max_connections).await
    }

    async fn check(location: &DatabaseLocation, database: Database, max_connections: u32) -> Result<Self, StoreError> {
        let file = DatabaseFile::at(location);
        let identified = match Self::identify(&database).await {
            // A pooler in transaction mode was noticed; the next connection names no statements.
            Err(error) if error.is_lost_statement() => Self::identify(&database).await,
            identified => identified,
        };
        match identified {
            Ok(identity) => {
                let group_writes = Arc::new(RwLock::with_max_readers((), max_connections.div_ceil(2)));
                Ok(Self { database, identity, group_writes, settler: Settler::default(), file })
            }
            Err(error) => {
                database.close().await;
                Err(error)
            }
        }
    }

    async fn identify(database: &Database) -> Result<DatabaseIdentity, StoreError> {
        let mut reader = database.acquire_for_opening().await?;
        schema::require_served(&mut reader).await?;
        Ok(DatabaseIdentity::read(&mut reader).await?)
    }

    /// Which database this is.
    #[must_use]
    pub fn identity(&self) -> &DatabaseIdentity {
        &self.identity
    }

    /// Where the database is, equal for two stores that are open on the same one; none on SQLite, or if the server does not say.
    pub async fn physical_id(&self) -> Option<String> {
        DatabaseIdentity::physical_id(&mut self.database.reader().await.ok()?).await
    }

    /// Whether it is still the database that its location leads to: no other file was put in the place of its own.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.file.as_ref().is_none_or(DatabaseFile::is_in_place)
    }

    /// Closes every connection, waiting for those in use. If another file has replaced the database's own, the log that
    /// SQLite leaves at its path is removed.
    pub async fn close(&self) {
        let left_behind = self.file.as_ref().filter(|file| !file.is_in_place()).map(DatabaseFile::logs_left_behind);
        self.database.close().await;
        for log in left_behind.into_iter().flatten() {
            if let Err(error) = std::fs::remove_file(&log) {
                tracing::warn!(file = %log.display(), %error, "the log of a replaced SQLite file can't be removed");
            }
        }
    }
}

/// Migrates a database, making it where it can (SQLite), derives from what is in it, and tells the versions before and
/// after.
///
/// # Errors
/// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::Migration`] when a step fails.
pub async fn migrate(location: &DatabaseLocation, reach: Reach) -> Result<(i64, i64), StoreError> {
    location.create_file()?;
    let mut retry = Retry::default();
    loop {
        match try_to_migrate(location, reach).await {
            // While one command turns a new SQLite file to WAL, another one is refused at once and not made to wait.
            Err(error) if retry.wait_if_retryable(&error).await => {}
            Err(StoreError::Unavailable(error)) if DatabaseFailure::of(&error) == Some(DatabaseFailure::Locked) => {
                return Err(location.file().map_or(StoreError::Unavailable(error), StoreError::locked));
            }
            outcome => return outcome,
        }
    }
}

async fn try_to_migrate(location: &DatabaseLocation, reach: Reach) -> Result<(i64, i64), StoreError> {
    let database = location.connect_for_migration();
    if let Some(name) = location.schema() {
        schema::create_namespace(&database, name).await?;
    }
    let mut writer = database.writer().await?;
    let before = schema::version(&mut writer).await?;
    drop(writer);
    schema::migrate(&database, reach).await?;
    let after = schema::version(&mut database.writer().await?).await?;
    let mut transaction = database.begin().await?;
    users::fold_new(&mut transaction).await?;
    transaction.commit().await?;
    settle::settle_all(&database).await?;
    settle::create_indexes(&database).await?;
    database.close().await;
    Ok((before, after))
}
