//! Locks the source, so that nothing is written there while the account leaves.
//!
//! On Postgres in two steps. First, before anybody waits, VACUUM and changes of tables are kept out, which may take long: the
//! lock for that passes readers and writers. Then writers are locked out, in short tries: one that writes tables in another order
//! than that of the locks would wait for this one while this one waits for it. What a foreign key reads passes this lock.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use super::table::TABLES;
use super::{MoveError, Moving, busy};
use crate::metrics::DatabaseFailure;
use crate::store::engine::Transaction;
use crate::store::schema::PLAIN_TABLES;
use crate::store::statement::Dialect;

/// How the first step waits for autovacuum, which Postgres cancels after a second for somebody who waits. And how long the locks
/// may outlive a node that vanishes without a word.
const APPROACH: &str = "BEGIN; SET LOCAL lock_timeout = '3s'; SET LOCAL idle_in_transaction_session_timeout = '5s'";

/// How long one try waits for a writer. Before Postgres looks for deadlocks, so that none of its victims is a program's
/// transaction.
///
/// Larger: writers that wait behind it wait for longer. Smaller: a longer transaction is never waited for.
const TRY: &str = "SAVEPOINT unlocked; SET LOCAL lock_timeout = '300ms'";

/// The source, of which VACUUM and changes of tables are kept out.
#[derive(Debug)]
pub struct Approached(Option<Transaction>);

impl Moving {
    /// Keeps out what may take long, while everything goes on.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn approach(&self) -> Result<Approached, MoveError> {
        if self.source.dialect() == Dialect::Sqlite {
            return Ok(Approached(None));
        }
        let mut source = self.source.begin_with(APPROACH, Duration::MAX, Instant::now()).await?;
        source.command(AssertSqlSafe(lock_of("SHARE UPDATE EXCLUSIVE"))).await?;
        Ok(Approached(Some(source)))
    }

    /// Locks writers out. Goes on trying until that succeeds, on Postgres.
    pub(super) async fn lock(&self, approached: Approached) -> Result<Transaction, MoveError> {
        let Some(mut source) = approached.0 else {
            return self.source.begin().await.map_err(busy);
        };
        loop {
            source.command(TRY).await?;
            match source.command(AssertSqlSafe(lock_of("SHARE ROW EXCLUSIVE"))).await {
                Ok(()) => return Ok(source),
                Err(error) if DatabaseFailure::of(&error) == Some(DatabaseFailure::Locked) => {
                    source.command("ROLLBACK TO SAVEPOINT unlocked").await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The statement that locks every table, those first that programs write, in the order in which most do.
fn lock_of(mode: &str) -> String {
    let ours = TABLES.iter().map(|table| table.name).filter(|name| !PLAIN_TABLES.split(", ").any(|it| it == *name));
    let names: Vec<_> = [PLAIN_TABLES].into_iter().chain(ours).collect();
    format!("LOCK TABLE {} IN {mode} MODE", names.join(", "))
}
