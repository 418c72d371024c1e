//! What the node writes that carries a move out, under its lease: every statement names the lease's fence, so that a node that
//! lost it writes nothing.

use std::time::Duration;

use super::{MoveRecord, MoveState};
use crate::store::statement::sql;
use crate::store::{Registry, StoreError};

/// How long a lease lasts unless it is renewed.
///
/// Larger: after a crash, a move waits longer for another node. Smaller: a node that stalls for a moment loses it.
const LEASE: Duration = Duration::from_secs(5);

impl Registry {
    /// Takes some open moves that no node carries out, for a node of a host: those that were taken least often first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_moves(&self, node: &str, host: &str, most: usize) -> Result<Vec<MoveRecord>, StoreError> {
        let sql = sql!(
            "UPDATE registry_moves SET leased_by = {node}, leased_until = {clock + lease}, fence = fence + 1
             WHERE id IN (
               SELECT id FROM registry_moves
               WHERE is_open AND (host IS NULL OR host = {host}) AND {passed leased_until, lease}
               ORDER BY fence, id LIMIT {most}
               {pg: FOR UPDATE SKIP LOCKED})
             RETURNING {+columns}",
            node,
            lease = LEASE,
            host,
            most = i64::try_from(most).unwrap_or(i64::MAX),
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
