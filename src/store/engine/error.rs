//! The error type of the store.
//!
//! Knows no HTTP: `crate::error` maps each variant to a status. Sources are kept for the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::migrate::MigrateError;

use super::failure::timed_out;
use super::pooler::Pooler;
use super::write_access::{self, ReadOnlyFile, after_colon};
use crate::memory::MemorySpent;
use crate::metrics::DatabaseFailure;

/// The text of [`StoreError::Unavailable`].
pub(super) const UNAVAILABLE: &str = "the database is unavailable";

/// Why a store can't be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, overloaded, locked or full. A later try may succeed.
    #[error("{UNAVAILABLE}")]
    Unavailable(#[source] sqlx::Error),
    /// The breaker is open: the database did not work a moment ago.
    #[error("the database is left alone for a moment, since it does not work")]
    Resting,
    /// No connection was free in time.
    #[error("no connection to the database was free in time")]
    Busy,
    /// Another program holds the write lock of a SQLite file; nothing was written.
    #[error("another program holds the write lock of the SQLite file{}", after_colon(holder.as_deref()))]
    Locked {
        /// The process, if it is known.
        holder: Option<String>,
    },
    /// A SQLite file can be read and not written.
    #[error(transparent)]
    ReadOnly(Box<ReadOnlyFile>),
    /// This node only reads the database: it is that of the registry, and the node one of a drill.
    #[error("this node is a drill (`formgate serve --drill`), which does not write to the registry")]
    OfDrill,
    /// Another tenant has this database, at the same or at another address.
    #[error("this is the database of the tenant `{owner}` too")]
    OfAnotherTenant {
        /// The tenant that is served from it.
        owner: Arc<str>,
    },
    /// The search tables are still being derived from what was written, for longer than a request waits.
    #[error("more was written to the database than searches have been prepared for yet")]
    Unsettled,
    /// The database has an older schema than this program serves.
    #[error("the database is at schema version {found}, this program needs {wanted}")]
    SchemaOlder {
        /// The version that the database is at; 0 when it has none.
        found: i64,
        /// The version that this program needs.
        wanted: i64,
    },
    /// The database has a newer schema than this program knows.
    #[error("the database is at schema version {found}, this program knows up to {known}")]
    SchemaNewer {
        /// The version that the database is at.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// An unreleased version of this program created the tables, which have changed since.
    #[error("an unreleased version of formgate created the tables of the database, and this version can't use them")]
    SchemaUnreleased,
    /// It is the database of the registry, where that of a tenant is expected, or the other way round.
    #[error("the database has the tables of {found}")]
    OfOtherKind {
        /// Whose tables it has.
        found: &'static str,
    },
    /// The folder of a SQLite file is missing and can't be created.
    #[error("the folder `{}` can't be made", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A migration failed and was rolled back.
    #[error("the migration failed")]
    Migration(#[source] MigrateError),
    /// The group was deleted while its members were read.
    #[error("the group was deleted while its members were read")]
    GroupDeleted,
    /// The memory budget has no room for the rows of a statement.
    #[error(transparent)]
    MemorySpent(#[from] MemorySpent),
    /// The row of a table is gone that always has one, such as `change_state`.
    #[error(
        "the database has lost a row that `formgate migrate` wrote; `formgate reindex` restores it, or a backup has it"
    )]
    RowLost,
    /// A statement failed, and would fail again.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Decode(cause) => match cause.downcast().map(|spent| Self::MemorySpent(*spent)) {
                Ok(spent) => spent,
                Err(cause) => match cause.downcast() {
                    Ok(file) => Self::ReadOnly(file),
                    Err(cause) => Self::Statement(sqlx::Error::Decode(cause)),
                },
            },
            sqlx::Error::RowNotFound => Self::RowLost,
            _ if DatabaseFailure::of(&error).is_some() => Self::Unavailable(error),
            _ => Self::Statement(error),
        }
    }
}

impl StoreError {
    /// No answer within the limit of the caller.
    pub(in crate::store) fn timed_out() -> Self {
        Self::Unavailable(timed_out())
    }

    pub(in crate::store) fn locked(file: &Path) -> Self {
        Self::Locked { holder: write_access::lock_holder(file) }
    }

    pub(in crate::store) fn is_lost_statement(&self) -> bool {
        matches!(self, Self::Unavailable(error) if Pooler::of_lost_statement(error).is_some())
    }
}
