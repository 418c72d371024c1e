//! Why a step of a move failed, and whether a later try may succeed.

use crate::metrics::DatabaseFailure;
use crate::store::engine::is_denied;
use crate::store::{StoreError, with_causes};

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A database could not be used. A later try may succeed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another node has the move.
    #[error("another node carries the move out")]
    Lost,
    /// The source is locked by others, or too much was written in the last moment. A later try may succeed.
    #[error("{0}")]
    Busy(&'static str),
    /// A row can't be in the target.
    #[error("Postgres can't have the row {key} of `{table}`: {what}")]
    Unfit {
        /// The table.
        table: &'static str,
        /// The key, as a JSON array.
        key: String,
        /// Why not.
        what: &'static str,
    },
    /// The role may not create triggers.
    #[error(
        "the role of the account's database has to own its tables, to note what is written while they are copied: {0}"
    )]
    Denied(String),
    /// The target is not empty.
    #[error("the target has rows that no earlier move of this account left")]
    TargetInUse,
}

impl From<sqlx::Error> for MoveError {
    fn from(error: sqlx::Error) -> Self {
        if is_denied(&error) {
            return Self::Denied(with_causes(&error));
        }
        match DatabaseFailure::of(&error) {
            Some(DatabaseFailure::Locked) => Self::Busy("another program locks a table"),
            Some(DatabaseFailure::Collision) => Self::Busy("another transaction was in the way"),
            _ => Self::Store(error.into()),
        }
    }
}

impl MoveError {
    /// Whether the move can never succeed.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Unfit { .. } | Self::Denied(_) | Self::TargetInUse => true,
            Self::Lost | Self::Busy(_) => false,
            Self::Store(error) => matches!(
                error,
                StoreError::Statement(_)
                    | StoreError::ReadOnly(_)
                    | StoreError::Folder { .. }
                    | StoreError::OfOtherKind { .. }
                    | StoreError::SchemaNewer { .. }
                    | StoreError::SchemaUnreleased
            ),
        }
    }
}

/// That another program has the lock.
pub(super) fn busy(error: StoreError) -> MoveError {
    match error {
        StoreError::Locked { .. } => MoveError::Busy("another program locks the file"),
        other => other.into(),
    }
}
