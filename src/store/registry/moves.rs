//! Moves of accounts to other databases: which there are, how far each is, which node carries it out, and which nodes have the
//! account's requests wait.
//!
//! A node carries a move out under a lease with a fence, like the work for a domain. A move that was cancelled or failed stays
//! open until a node has removed what it needed; until then, the account has no other move.

use std::time::Duration;

use super::Registry;
use super::domains::lock_head;
use crate::store::StoreError;
use crate::store::engine::retry;
use crate::store::statement::{Argument, Row, Sql, sql};

/// How long a lease lasts unless it is renewed.
///
/// Larger: after a crash, a move waits longer for another node. Smaller: a node that stalls for a moment loses it.
const LEASE: Duration = Duration::from_secs(5);

/// How long moves are listed.
///
/// Larger: the list is longer. Smaller: it is not known any more when an account moved.
const LISTED: Duration = Duration::from_hours(400 * 24);

/// How many moves are listed.
///
/// Larger: longer responses. Smaller: fewer of the older ones are seen.
const MOST_LISTED: i64 = 1_000;

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// The tables are copied.
    Copying,
    /// What changed meanwhile is copied.
    CatchingUp,
    /// The account's requests wait.
    Holding,
    /// The account is in the other database.
    Done,
    /// Somebody cancelled it.
    Cancelled,
    /// It can't succeed.
    Failed,
}

impl MoveState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Copying, Self::CatchingUp, Self::Holding, Self::Done, Self::Cancelled, Self::Failed];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::CatchingUp => "catching_up",
            Self::Holding => "holding",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == name).unwrap_or(Self::Failed)
    }

    /// Whether the account may still be moved.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Copying | Self::CatchingUp | Self::Holding)
    }
}

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

/// A move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRecord {
    /// Its number.
    pub id: i64,
    /// The tenant.
    pub slug: String,
    /// How far it is.
    pub state: MoveState,
    /// Why it failed, or what it waits for.
    pub reason: Option<String>,
    /// The database that the account leaves, without a password.
    pub from: String,
    /// The database to which it moves, without a password.
    pub to: String,
    /// How long requests waited, in milliseconds.
    pub held_ms: Option<i64>,
    /// Who asked for it.
    pub asked_by: String,
    /// The address of the database to which it moves, as in its claims.
    pub place: String,
    /// The identity that is stored in the account's database.
    pub identity: String,
    /// That of the lease.
    pub fence: i64,
    /// The databases, as the table of the tenant has them before and afterwards. Not shown: they may have passwords.
    old_database: Hidden,
    database: Hidden,
}

/// A text that is not logged.
#[derive(Clone, PartialEq, Eq)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl MoveRecord {
    /// The database to which it moves, as the table of the tenant has it afterwards.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database.0
    }

    /// The database that the account leaves, as the table of the tenant has it before.
    #[must_use]
    pub fn old_database(&self) -> &str {
        &self.old_database.0
    }

    fn columns() -> Sql {
        Sql::text(
            "id, slug, state, reason, source, target, held_ms, asked_by, place, identity, fence, old_database, database",
        )
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            slug: row.get(1)?,
            state: MoveState::of(&row.get::<String>(2)?),
            reason: row.get(3)?,
            from: row.get(4)?,
            to: row.get(5)?,
            held_ms: row.get(6)?,
            asked_by: row.get(7)?,
            place: row.get(8)?,
            identity: row.get(9)?,
            fence: row.get(10)?,
            old_database: Hidden(row.get(11)?),
            database: Hidden(row.get(12)?),
        })
    }
}

/// An open move, as every node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMove {
    /// Its number.
    pub id: i64,
    /// The tenant.
    pub slug: String,
    /// How far it is.
    pub state: MoveState,
    /// How often nodes were asked to have requests wait.
    pub hold: i64,
    /// The address of the database to which the account moves.
    pub place: String,
}

/// The open moves, as a JSON array of arrays.
pub(super) fn open_moves() -> Sql {
    sql!(
        "(SELECT {pg: coalesce(json_agg(json_build_array(id, slug, state, hold, place)), '[]')::text
           | lite: json_group_array(json_array(id, slug, state, hold, place))}
         FROM registry_moves WHERE is_open)"
    )
}

/// Reads what [`open_moves`] selects.
pub(super) fn read_open(text: &str) -> Vec<SeenMove> {
    let rows: Vec<(i64, String, String, i64, String)> = serde_json::from_str(text).unwrap_or_default();
    let read = |(id, slug, state, hold, place): (_, _, String, _, _)| SeenMove {
        id,
        slug,
        state: MoveState::of(&state),
        hold,
        place,
    };
    rows.into_iter().map(read).collect()
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
            "SELECT {+columns} FROM registry_moves ORDER BY id DESC LIMIT {limit}",
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

    /// Takes open moves that no node carries out, for a node of a host.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_moves(&self, node: &str, host: &str) -> Result<Vec<MoveRecord>, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET leased_by = {node}, leased_until = {clock + lease}, fence = fence + 1
             WHERE id IN (
               SELECT id FROM registry_moves
               WHERE is_open AND (host IS NULL OR host = {host}) AND {passed leased_until, lease}
               {pg: FOR UPDATE SKIP LOCKED})
             RETURNING {+columns}",
            node,
            lease = LEASE,
            host,
            columns = MoveRecord::columns(),
        );
        let mut transaction = self.database.begin().await?;
        let rows = transaction.fetch_all(sql).await?;
        transaction.commit().await?;
        Ok(rows.iter().map(MoveRecord::read).collect::<Result<_, _>>()?)
    }

    /// Keeps the lease of a move. Returns how far the move is, if the lease was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn keep_move(&self, id: i64, fence: i64) -> Result<Option<MoveState>, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET leased_until = {clock + lease}
             WHERE id = {id} AND fence = {fence} AND is_open
             RETURNING state",
            lease = LEASE,
            id,
            fence,
        );
        let mut transaction = self.database.begin().await?;
        let row = transaction.fetch_all(sql).await?.pop();
        transaction.commit().await?;
        Ok(row.map(|row| row.get::<String>(0)).transpose()?.map(|state| MoveState::of(&state)))
    }

    /// Gives the lease of a move back.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn leave_move(&self, id: i64, fence: i64) -> Result<(), StoreError> {
        let sql = sql!("UPDATE registry_moves SET leased_until = NULL WHERE id = {id} AND fence = {fence}", id, fence);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Notes how far a move is, which is under way, and what it waits for. Returns whether the lease was still its own and the
    /// move was not cancelled.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_move(
        &self,
        id: i64,
        fence: i64,
        state: MoveState,
        reason: Option<&str>,
    ) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET state = {state}, reason = {reason}, is_switching = FALSE
             WHERE id = {id} AND fence = {fence} AND state IN ('copying', 'catching_up', 'holding')",
            state = state.as_str(),
            reason,
            id,
            fence,
        );
        Ok(self.database.execute(sql).await? > 0)
    }

    /// Has nodes let the requests of an account wait. Returns the number of this hold, if the lease was still its own and the
    /// move was not cancelled.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn begin_hold(&self, id: i64, fence: i64) -> Result<Option<i64>, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET state = 'holding', reason = NULL, hold = hold + 1
             WHERE id = {id} AND fence = {fence} AND state IN ('copying', 'catching_up', 'holding')
             RETURNING hold",
            id,
            fence,
        );
        let mut transaction = self.database.begin().await?;
        let row = transaction.fetch_all(sql).await?.pop();
        transaction.commit().await?;
        Ok(row.map(|row| row.get(0)).transpose()?)
    }

    /// A node has the requests of an account wait, and none is under way.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_hold(&self, id: i64, node: &str, hold: i64) -> Result<(), StoreError> {
        let sql = sql!(
            "INSERT INTO registry_holds (move_id, node, hold) VALUES ({id}, {node}, {hold})
             ON CONFLICT (move_id, node) DO UPDATE SET hold = excluded.hold",
            id,
            node,
            hold,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The nodes that have the requests of an account wait.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn holding_nodes(&self, id: i64, hold: i64) -> Result<Vec<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT node FROM registry_holds WHERE move_id = {id} AND hold = {hold}", id, hold);
        Ok(reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
    }

    /// Has nobody cancel a move any more. Returns whether the lease was still its own and the move was not cancelled.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn begin_switch(&self, id: i64, fence: i64) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET is_switching = TRUE, leased_until = {clock + lease}
             WHERE id = {id} AND fence = {fence} AND state = 'holding'",
            lease = LEASE,
            id,
            fence,
        );
        Ok(self.database.execute(sql).await? > 0)
    }

    /// The account has moved, after its requests had waited for so long. What the move needed is still there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn note_moved(&self, id: i64, fence: i64, held: Option<Duration>) -> Result<(), StoreError> {
        let held = held.map(|held| i64::try_from(held.as_millis()).unwrap_or(i64::MAX));
        let sql = sql!(
            "UPDATE registry_moves SET state = 'done', reason = NULL, held_ms = coalesce({held}, held_ms)
             WHERE id = {id} AND fence = {fence}",
            held,
            id,
            fence,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Nothing is left to do for a move.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn close_move(&self, id: i64, fence: i64) -> Result<(), StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = sql!(
            "UPDATE registry_moves SET is_open = FALSE, leased_until = NULL WHERE id = {id} AND fence = {fence}",
            id,
            fence,
        );
        if transaction.execute(sql).await? > 0 {
            transaction.execute(sql!("DELETE FROM registry_holds WHERE move_id = {id}", id)).await?;
        }
        Ok(transaction.commit().await?)
    }
}
