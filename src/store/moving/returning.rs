//! A move to a database that was restored from a backup of the account: nothing is copied, and the account goes back to what
//! that database has. Only what people decide about tokens and subscriptions until the last moment is taken there.
//!
//! The mark of the restored database stays until the account has left the old one, so that a move that is tried again, or is
//! carried on by another node, does not take it for the target of a copy.

use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use super::mark::Role;
use super::{Locked, MoveError, Moving, capture, mark, refusing};
use crate::store::audit::{self, Actor, AuditEntry};
use crate::store::engine::{Database, Transaction};
use crate::store::restored::{RestoredMark, carry_over};
use crate::store::{Reach, StoreError, migrate};

impl Moving {
    /// Prepares both sides, if the target was restored from a backup of the account. Returns whether that is so.
    pub(super) async fn prepare_return(&mut self) -> Result<bool, MoveError> {
        let found = RestoredMark::find(&mut self.target.reader().await?).await?;
        self.is_return = found.is_some_and(|found| found.identity == self.mark.identity);
        if !self.is_return {
            return Ok(false);
        }
        migrate(&self.target_location, Reach::Served).await?;
        for (database, role) in [(&self.target, Role::Target), (&self.source, Role::Source)] {
            let found = mark::find(&mut database.reader().await?).await?;
            if found.is_none_or(|found| found.id != self.mark.id) {
                let mut transaction = database.begin().await?;
                mark::put(&mut transaction, &self.mark, role).await?;
                transaction.commit().await?;
            }
        }
        Ok(true)
    }

    /// Commits the target with the last decisions of the locked source.
    pub(super) async fn switch_back(
        &self,
        mut source: Transaction,
        by: &Actor,
        entry: AuditEntry,
    ) -> Result<Locked, MoveError> {
        let (mut target, now) = (self.begin_target().await?, Timestamp::now());
        carry_over(source.connection(), &mut target, now).await?;
        audit::append(&mut target, by, entry, now).await?;
        target.commit().await?;
        self.leave(source).await
    }
}

/// Removes what moves left in a database that was restored from a backup: it may be of a moment at which the account was being
/// moved. Returns whether the database was only the target of one, and is not whole.
pub(in crate::store) async fn forget_moves(database: &Database) -> Result<bool, StoreError> {
    let Some(found) = mark::find(&mut database.reader().await?).await? else { return Ok(false) };
    let is_restored = RestoredMark::find(&mut database.reader().await?).await?.is_some();
    if found.role == Role::Target && !is_restored {
        return Ok(true);
    }
    let dialect = database.dialect();
    let mut transaction = database.begin().await?;
    let ending = format!("{}{}DROP TABLE formgate_move", refusing::ending(dialect), capture::ending(dialect));
    transaction.command(AssertSqlSafe(ending)).await?;
    transaction.commit().await?;
    Ok(false)
}
