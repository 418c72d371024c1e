//! Moves of accounts to other databases: which there are, how far each is, which node carries it out, and which nodes have the
//! account's requests wait.
//!
//! A node carries a move out under a lease with a fence, like the work for a domain. A move that was cancelled or failed stays
//! open until a node has removed what it needed; until then, the account has no other move.
//!
//! `record` is a move as it is read, `carrying` what the node writes that carries it out, `seen` what every node sees.

mod carrying;
mod record;
mod seen;

use std::time::Duration;

pub use record::{MoveRecord, MoveState};
pub use seen::SeenMove;
pub(super) use seen::{open_moves, read_open};

use super::Registry;
use super::domains::lock_head;
use crate::store::StoreError;
use crate::store::engine::retry;
use crate::store::statement::{Argument, sql};

/// How long moves are listed.
///
/// Larger: the list is longer. Smaller: it is not known any more when an account moved.
const LISTED: Duration = Duration::from_hours(400 * 24);

/// How many moves are listed.
///
/// Larger: longer responses. Smaller: fewer of the older ones are seen.
const MOST_LISTED: i64 = 1_000;

/// A move that is asked for.
#[derive(Clone, Debug)]
pub struct NewMove {
    /// The tenant.
    pub slug: String,
    /// The database that it leaves, without a password.
    pub from: String,
    /// The database to which it moves, without a password.
    pub to: String,
    /// The former, as its table has it before.
    pub old_database: String,
    /// The latter, as its table has it afterwards.
    pub database: String,
    /// The address of that database, as in its claims.
    pub place: String,
    /// The identity that is stored in its database.
    pub identity: String,
    /// The only host whose nodes can carry it out.
    pub host: Option<String>,
}

/// Why a move is not begun.
#[derive(Debug, thiserror::Error)]
pub enum MoveRefused {
    /// The account is being moved.
    #[error("the account is being moved already")]
    UnderWay,
    /// A tenant has the database, or is being moved to it.
    #[error("the database is that of the tenant `{owner}`")]
    Taken {
        /// The tenant.
        owner: String,
    },
    /// The registry.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for MoveRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl retry::AsStoreError for MoveRefused {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// What became of the wish to cancel a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveCancelled {
    /// It is cancelled, or was before.
    Yes(Box<MoveRecord>),
    /// The account has moved, or moves at this moment.
    TooLate,
    /// There is no such move.
    Unknown,
}

impl Registry {
    /// Begins a move. Nobody else gets the database meanwhile.
    ///
    /// # Errors
    /// [`MoveRefused`].
    pub async fn create_move(&self, new: &NewMove, by: &str) -> Result<MoveRecord, MoveRefused> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            // Tenants are written under the same lock.
            lock_head(&mut transaction).await?;
            let NewMove { slug, from, to, old_database, database, place, identity, host } = new;
            let sql = sql!("SELECT 1 FROM registry_moves WHERE is_open AND slug = {slug}", slug);
            if transaction.connection().fetch_optional(sql).await?.is_some() {
                return Err(MoveRefused::UnderWay);
            }
            let sql = sql!(
                "SELECT slug FROM registry_claims WHERE kind = 'database' AND value = {place}
                 UNION ALL SELECT slug FROM registry_moves WHERE is_open AND place = {place}
                 LIMIT 1
                 {scans: few accounts move at once}",
                place,
            );
            if let Some(row) = transaction.connection().fetch_optional(sql).await? {
                return Err(MoveRefused::Taken { owner: row.get(0)? });
            }
            let sql = sql!(
                "INSERT INTO registry_moves
                   (slug, state, source, target, old_database, database, place, identity, host, asked_by, created_at)
                 VALUES ({slug}, 'copying', {from}, {to}, {old_database}, {database}, {place}, {identity}, {host}, {by}, {clock})
                 RETURNING {+columns}",
                slug,
                from,
                to,
                old_database = Argument::Secret(old_database.clone()),
                database = Argument::Secret(database.clone()),
                place,
                identity,
                host = host.as_deref(),
                by,
                columns = MoveRecord::columns(),
            );
            let row = transaction.connection().fetch_one(sql).await?;
            let record = MoveRecord::read(&row)?;
            let sql = sql!(
                "DELETE FROM registry_moves WHERE NOT is_open AND created_at < {clock - listed}
                 {scans: accounts seldom move}",
                listed = LISTED,
            );
            transaction.execute(sql).await?;
            transaction.commit().await?;
            Ok(record)
        })
        .await
    }

    /// The moves, the last one first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn moves(&self) -> Result<Vec<MoveRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM registry_moves ORDER BY id DESC LIMIT {limit}
             {scans: accounts seldom move}",
            columns = MoveRecord::columns(),
            limit = MOST_LISTED,
        );
        Ok(reader.fetch_all(sql).await?.iter().map(MoveRecord::read).collect::<Result<_, _>>()?)
    }

    /// A move.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_move(&self, id: i64) -> Result<Option<MoveRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT {+columns} FROM registry_moves WHERE id = {id}", columns = MoveRecord::columns(), id);
        Ok(reader.fetch_optional(sql).await?.as_ref().map(MoveRecord::read).transpose()?)
    }

    /// The open move of an account.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn open_move_of(&self, slug: &str) -> Result<Option<MoveRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM registry_moves WHERE is_open AND slug = {slug}",
            columns = MoveRecord::columns(),
            slug,
        );
        Ok(reader.fetch_optional(sql).await?.as_ref().map(MoveRecord::read).transpose()?)
    }

    /// Cancels a move, until the account has moved.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn cancel_move(&self, id: i64) -> Result<MoveCancelled, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET state = 'cancelled', reason = NULL
             WHERE id = {id} AND NOT is_switching AND state IN ('copying', 'catching_up', 'holding')",
            id,
        );
        self.database.execute(sql).await?;
        Ok(match self.find_move(id).await? {
            None => MoveCancelled::Unknown,
            Some(record) if record.state == MoveState::Cancelled => MoveCancelled::Yes(Box::new(record)),
            Some(_) => MoveCancelled::TooLate,
        })
    }
}
