//! How a transaction begins on a connection, and ends.
//!
//! On SQLite, one that writes takes the write lock at once, so that it can't fail for the lock half-way. Owns the tries
//! while another program holds it; [`crate::store::engine::write_lock`] owns the pauses between them.

use std::time::Instant;

use super::{PooledConnection, StatementFailure, timed};
use crate::store::engine::pool::BeginWriting;
use crate::store::engine::write_lock::{Backoff, is_held};
use crate::store::statement::{Dialect, Row, Sql};

/// Begins a transaction that writes to a SQLite file, without waiting for its lock. Reading goes on waiting for a
/// program that has locked the whole file.
const BEGIN_WITHOUT_WAITING: &str = "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; PRAGMA busy_timeout = 1000";

/// After a `BEGIN` that failed.
const WAIT_AGAIN: &str = "PRAGMA busy_timeout = 1000";

impl PooledConnection {
    /// Begins a transaction that may write, for a caller that has been waiting since `waiting_since`. On SQLite it
    /// takes the write lock at once, so that it can't fail for the lock half-way. On Postgres it begins with the given
    /// statements.
    pub(in crate::store) async fn begin_transaction(
        &mut self,
        on_postgres: &'static str,
        waiting_since: Instant,
    ) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let outcome = match self.dialect() {
            Dialect::Postgres => self.begin_with(on_postgres).await?,
            Dialect::Sqlite => self.begin_with_write_lock(waiting_since).await?,
        };
        self.record(began, outcome)
    }

    /// Begins a read-only transaction that sees one snapshot of the database.
    pub(in crate::store) async fn begin_reading(&mut self) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let outcome = self
            .begin_with(match self.dialect() {
                Dialect::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                Dialect::Sqlite => "BEGIN",
            })
            .await?;
        self.record(began, outcome)
    }

    /// Ends the transaction with `COMMIT` or `ROLLBACK`.
    pub(in crate::store) async fn end_transaction(&mut self, end: &'static str) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let limit = self.start_statement();
        let outcome = timed(limit, self.session().command(end)).await;
        self.in_transaction = outcome.is_err();
        self.record(began, outcome)
    }

    /// Runs the last statements of a transaction and commits, all at once: each wait for SQLite's thread costs as much as a
    /// short statement. Only SQLite takes several statements with values. Returns the rows of all of them.
    pub(in crate::store) async fn fetch_and_commit(&mut self, mut sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        sql.append(Sql::text("; COMMIT"));
        let rows = self.fetch_all(sql).await?;
        self.in_transaction = false;
        Ok(rows)
    }

    async fn begin_with_write_lock(
        &mut self,
        waiting_since: Instant,
    ) -> Result<Result<(), StatementFailure>, sqlx::Error> {
        let (pool, mut backoff) = (self.pool.clone(), Backoff::default());
        let begin = match pool.begin_writing() {
            BeginWriting::Polling => BEGIN_WITHOUT_WAITING,
            BeginWriting::Blocking => "BEGIN IMMEDIATE",
        };
        loop {
            let tried_at = Instant::now();
            let outcome = self.begin_with(begin).await?;
            if outcome.is_err() && pool.begin_writing() == BeginWriting::Polling && !self.lost && !self.running {
                self.session().command(WAIT_AGAIN).await?;
            }
            if !matches!(&outcome, Err(StatementFailure::Error(error)) if is_held(error)) {
                pool.write_lock().is_free();
                return Ok(outcome);
            }
            if !pool.write_lock().wait(&mut backoff, waiting_since, tried_at, pool.lock_wait()).await {
                return Ok(outcome);
            }
        }
    }

    async fn begin_with(&mut self, begin: &'static str) -> Result<Result<(), StatementFailure>, sqlx::Error> {
        let unverified = self.unverified;
        self.in_transaction = true;
        let mut outcome = {
            let limit = self.start_statement();
            timed(limit, self.session().begin(begin)).await
        };
        if self.note_outcome(&outcome) && unverified {
            self.renew().await?;
            let limit = self.start_statement();
            outcome = timed(limit, self.session().begin(begin)).await;
            self.note_outcome(&outcome);
        }
        // Postgres may have executed BEGIN and failed at a statement after it.
        self.in_transaction = outcome.is_ok() || self.running || self.dialect() == Dialect::Postgres;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

    use super::*;
    use crate::store::engine::connections::Role;
    use crate::store::engine::location::opening::READER_BUSY_WAIT;
    use crate::store::engine::session::{Session, SessionAddress};
    use crate::store::statement::Sql;

    #[test]
    fn after_a_begin_reading_waits_as_long_as_before() {
        let as_opened = format!("PRAGMA busy_timeout = {}", READER_BUSY_WAIT.as_millis());
        assert!(BEGIN_WITHOUT_WAITING.ends_with(&as_opened));
        assert_eq!(WAIT_AGAIN, as_opened);
    }

    #[tokio::test]
    async fn no_begin_waits_in_the_driver_also_not_the_second_on_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("acme.db")).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(READER_BUSY_WAIT);
        let address = SessionAddress::Sqlite(Box::new(options));
        let mut session = Session::open(&address, Role::Writer).await.unwrap();
        let mut other = Session::open(&address, Role::Writer).await.unwrap();
        session.begin(BEGIN_WITHOUT_WAITING).await.unwrap();
        assert_eq!(busy_timeout(&mut session).await, 1000);
        session.command("COMMIT").await.unwrap();
        other.begin(BEGIN_WITHOUT_WAITING).await.unwrap();
        assert!(session.begin(BEGIN_WITHOUT_WAITING).await.is_err(), "the lock is held");
        assert_eq!(busy_timeout(&mut session).await, 0);
        session.command(WAIT_AGAIN).await.unwrap();
        assert_eq!(busy_timeout(&mut session).await, 1000);
    }

    async fn busy_timeout(session: &mut Session) -> i64 {
        let mut value = 0;
        let mut read = |row: Row| {
            value = row.get(0)?;
            Ok(())
        };
        session.fetch_each(Sql::text("PRAGMA busy_timeout"), false, &mut read).await.unwrap();
        value
    }
}
