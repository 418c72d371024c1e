//! One tenant's database, Postgres or SQLite, behind one interface.
//!
//! A [`Store`] exists only for a database whose schema this program serves ([`Store::open`]); [`migrate`] brings a
//! database to that schema. Knows nothing about HTTP, the JSON of the API, or tenants.
//!
//! # Where the databases differ
//!
//! A statement has one text for both, in which the sides that differ are marked: `{pg: … | lite: …}`
//! (`statement/template.rs`). Code that differs asks for the `Dialect`. So `grep -rE '\{pg:|\{lite:|Dialect::'` finds every
//! place. They are of a few kinds: connections, and turns of writers (`engine`); errors (`engine/failure.rs`, `engine/remedy`);
//! lists, instants and rows (`statement`); plans that are too slow in a common form (`derived/search`, `groups`); indexes,
//! statistics and triggers (`derived/settle`, `schema`, `import`); locks of rows, which SQLite needs none of.
//!
//! # Adding a resource
//!
//! 1. Its tables, in both scripts of `schema`, each column with what it means. `README.md` says who may write them, and
//!    the test of the catalog how `schema/postgres.tsv` is written again.
//! 2. A file here: the types that callers see, and `impl Store` with a method for each thing that they do. One `sql!` a
//!    statement, one `read(&Row)` for the columns of a type, and `retry::run` (`engine/retry.rs`) around a transaction
//!    that can collide with others.
//! 3. `mod` and `pub use` below.
//! 4. Tests in `tests/it`, on both databases. `databases::statements` prepares the statements by itself, and names those that
//!    read a growing table whole: such a one gets an index, or says why with `{scans: …}`.

mod admin_exports;
mod admin_links;
mod admin_overview;
mod admin_sessions;
mod audit;
mod concerns;
mod derived;
mod directory;
mod engine;
mod erasing;
pub mod filter;
mod forms;
mod groups;
mod identity;
pub(crate) mod import;
pub mod mailbox;
mod moving;
mod person;
mod reach;
mod reads;
pub mod registry;
mod reindex;
mod request_log;
mod restored;
mod schema;
mod statement;
mod submissions;
mod subscriptions;
mod tokens;
mod users;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, Semaphore};
use tokio::time::timeout;

pub use admin_exports::AdminExport;
pub use admin_links::{AdminLink, AdminRole};
pub use admin_overview::{TokenCounts, TokenFilter};
pub use admin_sessions::{AdminSession, EndedSessions, NewAdminSession};
pub use audit::{Actor, AuditEntry, AuditFilter, AuditRecord, AuditSource, AuditVerdict, Identity};
pub use concerns::DatabaseConcern;
pub use derived::changes::{
    Change, ChangeCursor, ChangeKind, ChangePage, ChangesFrom, ChangesRead, LogMark, LostCursor, WaitingEvents,
};
pub use derived::export::{
    ExportBatch, ExportColumn, ExportCount, ExportError, ExportRead, ExportReader, ExportRequest, ExportRow,
};
pub use derived::search::SearchPage;
pub use derived::settle::Events;
use derived::settle::Settler;
pub use directory::{
    Comparison, DirectoryError, DirectoryGroup, DirectoryGroupChange, DirectoryResource, DirectoryUser,
    DirectoryUserChange, DirectoryUserValues, Filter, GroupManager, GroupMember, GroupOrder, GroupTest, HeldDecision,
    HeldGroup, HeldKind, HeldMember, Listing, Provisioner, SkippedMembers, UserOrder, UserTest,
};
#[cfg(test)]
pub(crate) use engine::raw;
pub(crate) use engine::{BESIDE, FileId, LOG, OWN_DATABASE, SHARED_MEMORY, next_to, with_causes};
pub use engine::{
    Breaker, BreakerPermit, CommitStamp, Connections, CountedBy, DatabaseLimits, DatabaseLocation, DatabaseTime,
    InvalidLocation, Pooler, ReadOnlyFile, StoreError, location, remedy,
};
use engine::{Database, DatabaseFile, retry};
pub use erasing::{ErasableDatabase, ErasedDatabase, NotErasable, erase, look_before_erasing};
pub use forms::{Element, Form, FormSummary};
pub use groups::{
    Deletion, Durability, GivenGroup, Group, GroupFilter, GroupSummary, GroupSync, GroupWrite, GroupWriteError, Guard,
    MemberChange, MemberReader, Members, NewMembers, Provisioned, Report, SyncMembers, SyncedBy, Undone, WriteMode,
    WrittenGroup,
};
pub use identity::{DatabaseIdentity, PhysicalId};
pub use moving::{
    Approached, Arrived, CaughtUp, Locked, MoveError, MoveMark, Moving, NotThere, TargetState, find_not_there,
    look_at_target,
};
pub use person::{ErasedPerson, erase_person};
use reach::Caller;
pub use reach::FormReach;
pub use reads::{
    Day, KEPT_DAYS, NodeChange, ReadGap, ReadKey, ReadSet, Reader, SubmissionReaders, TokenReads, UnwrittenReads,
};
pub use registry::Registry;
pub use reindex::{Reindexed, reindex};
pub(crate) use request_log::{KEPT_ROWS, ROWS_BETWEEN_DELETIONS};
pub use request_log::{LoggedRequest, RequestFilter, RequestKey, UnwrittenRequests};
pub use restored::{CarriedOver, Restoration, RestoreError, prepare_restored};
pub use schema::{
    MIGRATIONS, Migration, Orphans, Reach, SchemaDifferences, SchemaRepair, count_orphans, read_catalog, repair_schema,
};
use statement::sql;
pub use statement::{Page, PageRequest, PageStart, Position, TextList, fold, statement_texts};
pub use submissions::{
    Answer, Field, ShownElements, Submission, SubmissionPart, SubmissionReader, Submissions, SubmissionsView,
};
pub use subscriptions::{
    AttemptRecord, CarriedSubscriptions, DueEvent, DueEvents, Event, EventsAhead, FailedEvent, HasSubscriptions,
    InspectedSubscription, LeasedSubscription, MAX_SUBSCRIPTIONS, MakingToken, PendingEvents, Progress, Replay,
    Replayed, Resumed, SUBSCRIPTION_STATES, SUBSCRIPTION_TRANSITIONS, SampleSubmission, SentBody, Standing, Subscribed,
    Subscription, SubscriptionCounts, SubscriptionEvent, SubscriptionKey, Unsubscription, Written,
};
pub use tokens::{
    CarriedTokens, ChangedToken, CommitMark, CreatedToken, LimitFault, ListFault, Networks, NewToken, NotWritten,
    RequestCounts, RotatedToken, Scope, Scopes, TokenHour, TokenLimits, TokenRecord, TokenUse, Unwritten,
};

use crate::memory::RowMemory;
use crate::metrics::DatabaseFailure;

/// An open, migrated database of one tenant. Cloning shares the connections.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    identity: DatabaseIdentity,
    physical_id: Option<PhysicalId>,
    /// Taken by writes of groups on this node: exclusively, or shared by those that may run concurrently. A write that
    /// waits here holds no connection that a reader could use, and shared writes take at most half of the connections.
    group_writes: Arc<RwLock<()>>,
    settler: Settler,
    /// Held by requests that wait for changes.
    changes_waited_for: Arc<Semaphore>,
    /// Shared by the copies of this store, to count them.
    copies: Arc<()>,
    file: Option<DatabaseFile>,
    /// What of it is read depends on who does.
    caller: Caller,
}

impl Store {
    /// Opens a database for one command and checks its schema.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::SchemaOlder`] before it was migrated,
    /// [`StoreError::SchemaUnreleased`] if an unreleased version created its tables.
    pub async fn open(location: &DatabaseLocation, max_connections: u32) -> Result<Self, StoreError> {
        let connections = Connections::for_command();
        Self::check(location, location.connect(max_connections, &connections, None), max_connections).await
    }

    /// The same within a time limit, for a caller that waits.
    ///
    /// # Errors
    /// Those of [`Self::open`]; [`StoreError::Unavailable`] when the limit is over.
    pub async fn open_within(
        location: &DatabaseLocation,
        max_connections: u32,
        limit: Duration,
    ) -> Result<Self, StoreError> {
        let opened = timeout(limit, Self::open(location, max_connections)).await;
        opened.unwrap_or_else(|_| Err(StoreError::timed_out()))
    }

    /// Opens a database for serving, with the connections that all tenants share and a breaker. The caller already
    /// holds a permit of the breaker.
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
        let file = location.file().map(DatabaseFile::at);
        let identified = match Self::identify(&database).await {
            // A pooler in transaction mode was detected; the next connection uses unnamed statements.
            Err(error) if error.is_lost_statement() => Self::identify(&database).await,
            identified => identified,
        };
        match identified {
            Ok((identity, physical_id)) => {
                let group_writes = Arc::new(RwLock::with_max_readers((), max_connections.div_ceil(2)));
                let changes_waited_for = Arc::new(Semaphore::new(derived::changes::MAX_WAITING));
                let settler = Settler::default();
                Ok(Self {
                    database,
                    identity,
                    physical_id,
                    group_writes,
                    settler,
                    changes_waited_for,
                    copies: Arc::default(),
                    file,
                    caller: Caller::default(),
                })
            }
            Err(error) => {
                database.close().await;
                Err(error)
            }
        }
    }

    async fn identify(database: &Database) -> Result<(DatabaseIdentity, Option<PhysicalId>), StoreError> {
        let mut reader = database.acquire_for_opening().await?;
        schema::require_served(&mut reader).await?;
        Ok(DatabaseIdentity::read(&mut reader).await?)
    }

    /// The same store for one request, whose rows are counted.
    #[must_use]
    pub fn counting(&self, rows: &RowMemory) -> Self {
        Self { database: self.database.counting(rows), ..self.clone() }
    }

    /// The identity of this database.
    #[must_use]
    pub fn identity(&self) -> &DatabaseIdentity {
        &self.identity
    }

    /// Whether anybody has a copy of this store, such as a request that it serves.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        Arc::strong_count(&self.copies) > 1
    }

    /// Equal for two stores that are open on the same database of Postgres. None on SQLite.
    #[must_use]
    pub fn physical_id(&self) -> Option<PhysicalId> {
        self.physical_id
    }

    /// Whether the location still leads to this database: its SQLite file was not replaced by another one.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.file.as_ref().is_none_or(DatabaseFile::is_in_place)
    }

    /// The version, if nothing is left to migrate, to settle or to repair.
    async fn look_for_work(&self) -> Result<Option<i64>, StoreError> {
        let mut reader = self.database.reader().await?;
        let version = schema::version(&mut reader).await?;
        let sql = sql!(
            "SELECT EXISTS (SELECT 1 FROM intake) OR EXISTS (SELECT 1 FROM form_notes)
               {lite: OR EXISTS (SELECT 1 FROM users WHERE email_folded IS NULL)}",
        );
        let is_unsettled: bool = reader.fetch_one(sql).await?.get(0)?;
        drop(reader);
        let is_newest = version == schema::newest(&MIGRATIONS);
        Ok((is_newest && !is_unsettled && self.concerns().await?.is_empty()).then_some(version))
    }

    /// Closes every connection, and waits for those in use for a limited time. If the SQLite file was replaced by
    /// another one, deletes the log of the old file, which SQLite leaves at the path.
    pub async fn close(&self) {
        let left_behind = self.file.as_ref().filter(|file| !file.is_in_place()).map(DatabaseFile::logs_left_behind);
        self.database.close().await;
        for log in left_behind.into_iter().flatten() {
            if let Err(error) = std::fs::remove_file(&log) {
                tracing::warn!(file = %log.display(), %error, "could not delete the log of a replaced SQLite file");
            }
        }
    }
}

/// Migrates a database, creating a SQLite file if it is missing, and settles it. Returns the versions before and
/// after.
///
/// # Errors
/// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::SchemaUnreleased`] if an unreleased version created
/// its tables, [`StoreError::Migration`] when a step fails.
pub async fn migrate(location: &DatabaseLocation, reach: Reach) -> Result<(i64, i64), StoreError> {
    migrate_by(&MIGRATIONS, location, reach).await
}

/// The version of a database in which [`migrate`], [`repair_schema`] and a look at its [concerns](Store::concerns) would find
/// nothing to do or to report; `None` for any other. Costs one connection.
///
/// # Errors
/// Those of [`Store::open`].
pub async fn up_to_date(location: &DatabaseLocation) -> Result<Option<i64>, StoreError> {
    let store = Store::open(location, 1).await?;
    let looked = store.look_for_work().await;
    store.close().await;
    looked
}

/// [`migrate`] within a time limit, for a caller that waits. A step that is not done by then is undone.
///
/// # Errors
/// Those of [`migrate`]; [`StoreError::Unavailable`] when the limit is over.
pub async fn migrate_within(
    location: &DatabaseLocation,
    reach: Reach,
    limit: Duration,
) -> Result<(i64, i64), StoreError> {
    timeout(limit, migrate(location, reach)).await.unwrap_or_else(|_| Err(StoreError::timed_out()))
}

/// [`migrate`] by other migrations than [`MIGRATIONS`]. A test appends some to those of the program, to upgrade a database
/// that nodes of this version serve.
///
/// # Errors
/// Those of [`migrate`].
pub async fn migrate_by(
    migrations: &[Migration],
    location: &DatabaseLocation,
    reach: Reach,
) -> Result<(i64, i64), StoreError> {
    location.create_file()?;
    // While one command switches a new SQLite file to WAL mode, SQLite refuses another one without waiting.
    let migrated = retry::run(|| async move {
        let database = location.connect_for_migration();
        let versions = schema::migrate(&database, location.schema(), migrations, reach).await?;
        let mut transaction = database.begin().await?;
        users::fold_new(&mut transaction).await?;
        transaction.commit().await?;
        derived::settle::settle_all(&database).await?;
        derived::settle::create_indexes(&database).await?;
        database.close().await;
        Ok(versions)
    });
    match migrated.await {
        Err(StoreError::Unavailable(error)) if DatabaseFailure::of(&error) == Some(DatabaseFailure::Locked) => {
            Err(location.file().map_or(StoreError::Unavailable(error), StoreError::locked))
        }
        outcome => outcome,
    }
}
