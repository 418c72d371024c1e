//! Removes what a move needed from both databases.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use super::{MoveError, Moving, capture};
use crate::store::schema::validating;
use crate::store::statement::Dialect;

impl Moving {
    /// Removes what the move needed, after the account has left the source. That the foreign keys of Postgres hold is checked.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn finish(&self) -> Result<(), MoveError> {
        if self.target.dialect() == Dialect::Postgres {
            for statement in validating() {
                let mut transaction = self.target.begin().await?;
                transaction.command(AssertSqlSafe(statement)).await?;
                transaction.commit().await?;
            }
        }
        let mut transaction = self.target.begin().await?;
        transaction
            .command(
                "DROP TABLE IF EXISTS formgate_move; DROP TABLE IF EXISTS formgate_move_tables; \
                 DROP TABLE IF EXISTS formgate_restored",
            )
            .await?;
        transaction.commit().await?;
        self.end_notes("").await
    }

    /// Removes what the move needed from the source, which keeps the account. The target is left as it is, and may be the
    /// target of a later move of the account.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn undo(&self) -> Result<(), MoveError> {
        self.end_notes("DROP TABLE IF EXISTS formgate_move").await
    }

    async fn end_notes(&self, further: &str) -> Result<(), MoveError> {
        let dialect = self.source.dialect();
        let ending = format!("{}{further}", capture::ending(dialect));
        match dialect {
            Dialect::Sqlite => {
                let mut transaction = self.source.begin().await?;
                transaction.command(AssertSqlSafe(ending)).await?;
                transaction.commit().await?;
            }
            // In a transaction each: dropping a trigger waits for readers, and later readers wait behind it.
            Dialect::Postgres => {
                for statement in ending.split(";\n").filter(|statement| !statement.trim().is_empty()) {
                    let begin = "BEGIN; SET LOCAL lock_timeout = '1s'";
                    let mut transaction = self.source.begin_with(begin, Duration::MAX, Instant::now()).await?;
                    transaction.command(AssertSqlSafe(statement.to_owned())).await?;
                    transaction.commit().await?;
                }
            }
        }
        Ok(())
    }
}
