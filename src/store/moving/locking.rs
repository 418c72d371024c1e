//! Locks the source, so that nothing is written there while the account leaves.
//!
//! On Postgres in two steps. Before requests wait, a lock that conflicts neither with readers nor with writers keeps out VACUUM
//! and changes of tables, which may take long. Then writers are locked out, in short attempts: a transaction that writes tables
//! in another order than the locks are taken would deadlock with a longer one. Reads for foreign keys pass this lock.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use super::table::TABLES;
use super::{MoveError, Moving, busy};
use crate::metrics::DatabaseFailure;
use crate::store::engine::Transaction;
use crate::store::schema::PLAIN_TABLES;
use crate::store::statement::Dialect;

/// How the first step waits for autovacuum, which Postgres cancels after a second for somebody who waits. And how long the locks
/// may outlive a node that vanishes without a word: longer than a hold, with everything that delays it.
const APPROACH: &str = "BEGIN; SET LOCAL lock_timeout = '3s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// How long an attempt waits for a writer: less than `deadlock_timeout`, so that Postgres never ends a program's transaction
/// as the victim of a deadlock.
///
/// Larger: writers that wait behind it wait for longer. Smaller: a longer transaction is never waited for.
const TRY: &str = "SAVEPOINT unlocked; SET LOCAL lock_timeout = '300ms'";

/// A source that keeps out VACUUM and changes of tables.
#[derive(Debug)]
pub struct Approached(Option<Transaction>);

impl Moving {
    /// Keeps out VACUUM and changes of tables; readers and writers continue.
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
