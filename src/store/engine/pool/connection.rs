//! A connection on loan: every statement of a request goes through one.
//!
//! Owns what holds for a statement: its time limit on this side of the line, what it tells the breaker, that it is
//! counted, and that it ends when nobody waits for it any more. Dropping a `PooledConnection` gives the connection back, as fit for
//! the next one as it was: a statement that still runs is cancelled and a transaction rolled back before.

use std::path::Path;
use std::time::{Duration, Instant};

use tracing::Instrument;

use super::{OpenError, Pool};
use crate::memory::{self, MemorySpent};
use crate::metrics::DatabaseFailure;
use crate::store::engine::breaker::{BreakerPermit, TRIAL_LIMIT};
use crate::store::engine::connections::ConnectionPermit;
use crate::store::engine::database_time::Timing;
use crate::store::engine::pooler::Pooler;
use crate::store::engine::session::{RowHandler, Session, timed_out};
use crate::store::engine::write_access::ReadOnlyFile;
use crate::store::engine::write_lock::{Backoff, is_held};
use crate::store::statement::{Dialect, Row, Sql};
use crate::telemetry::step;

/// How much later than the database a statement is given up here, for a database that hangs. Longer, and callers wait
/// for it; shorter, and a connection is cut that the database would have freed.
const GRACE: Duration = Duration::from_secs(1);

/// A connection whose statement, or whose rows, had more bytes than this gives its buffers back.
///
/// Larger: idle connections hold more. Smaller: ordinary reads pay for new buffers.
const LARGE_STATEMENT: usize = 256 * 1024;

/// A connection, and what is to become of it.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pool: Pool,
    session: Option<Session>,
    permit: Option<ConnectionPermit>,
    /// For the first outcome; later ones go to the breaker itself.
    breaker_permit: Option<BreakerPermit>,
    limit: Option<Duration>,
    /// Nobody has heard of it for a moment: it may have been lost meanwhile.
    unverified: bool,
    /// A statement was sent and its outcome is not known.
    running: bool,
    /// It can't be used again.
    lost: bool,
    /// A transaction is open, or may be.
    in_transaction: bool,
    /// Its buffers have grown.
    was_large: bool,
}

impl PooledConnection {
    pub(super) fn new(
        pool: &Pool,
        session: Session,
        permit: ConnectionPermit,
        breaker_permit: Option<BreakerPermit>,
        unverified: bool,
    ) -> Self {
        Self {
            limit: pool.limit(),
            pool: pool.clone(),
            session: Some(session),
            permit: Some(permit),
            breaker_permit,
            unverified,
            running: false,
            lost: false,
            in_transaction: false,
            was_large: false,
        }
    }

    /// An empty statement for this connection.
    pub(crate) fn sql(&self) -> Sql {
        Sql::new(self.dialect())
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.pool.dialect()
    }

    /// The file of a SQLite database.
    pub(in crate::store) fn file(&self) -> Option<&Path> {
        self.pool.address().file()
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("it is there until the loan ends")
    }

    /// Lets each statement to come run for so long, where the database is not told by itself.
    pub(in crate::store::engine) fn limit_statements(&mut self, limit: Duration) {
        self.limit = self.limit.map(|_| limit);
    }

    /// All rows of a statement, which the current request holds from now on.
    pub(crate) async fn fetch_all(&mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        let mut rows = Vec::new();
        self.fetch_each(sql, &mut |row| {
            hold_row_memory(row.bytes())?;
            rows.push(row);
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// The same, each row handed over as it comes. An error of the callee ends the statement.
    pub(crate) async fn fetch_each(&mut self, sql: Sql, each: &mut RowHandler<'_>) -> Result<(), sqlx::Error> {
        let (sent, mut received) = (sql.bytes(), 0);
        let retry = self.unverified.then(|| sql.clone());
        let began = Instant::now();
        let mut outcome = self.fetch_once(sql, &mut received, each).await;
        // Of a connection that broke at the first statement after a pause, no rows came.
        if let (true, Some(sql), 0) = (self.note_outcome(&outcome), retry, received) {
            self.renew().await?;
            outcome = self.fetch_once(sql, &mut received, each).await;
        }
        self.was_large |= sent + received > LARGE_STATEMENT;
        self.record(began, outcome)
    }

    async fn fetch_once(
        &mut self,
        sql: Sql,
        received: &mut usize,
        each: &mut RowHandler<'_>,
    ) -> Result<(), StatementFailure> {
        let mut each = |row: Row| {
            *received += row.bytes();
            each(row)
        };
        let (limit, in_transaction) = (self.start_statement(), self.in_transaction);
        timed(limit, self.session().fetch_each(sql, in_transaction, &mut each)).await
    }

    /// The only row of a statement, or none.
    pub(crate) async fn fetch_optional(&mut self, sql: Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.fetch_all(sql).await?.pop())
    }

    /// The only row of a statement that always has one.
    pub(crate) async fn fetch_one(&mut self, sql: Sql) -> Result<Row, sqlx::Error> {
        self.fetch_optional(sql).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Runs a statement and tells how many rows it touched.
    pub(in crate::store) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        self.was_large |= sql.bytes() > LARGE_STATEMENT;
        let began = Instant::now();
        let (limit, in_transaction) = (self.start_statement(), self.in_transaction);
        let outcome = timed(limit, self.session().execute(sql, in_transaction)).await;
        self.record(began, outcome)
    }

    /// Runs statements without values: in the transaction that is open, or as they are, such as a `VACUUM`, which can't be
    /// in one.
    pub(in crate::store) async fn command(&mut self, text: &'static str) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let limit = self.start_statement();
        let outcome = timed(limit, self.session().command(text)).await;
        self.record(began, outcome)
    }

    /// Begins a transaction that may write, for a caller that has been waiting since `waiting_since`. On SQLite it has the write lock
    /// from the start, so that it can't fail half way for want of it; Postgres is told how to begin.
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

    /// Begins a transaction that sees one state of the database and writes nothing.
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

    async fn begin_with_write_lock(
        &mut self,
        waiting_since: Instant,
    ) -> Result<Result<(), StatementFailure>, sqlx::Error> {
        let (pool, mut backoff) = (self.pool.clone(), Backoff::default());
        loop {
            let tried_at = Instant::now();
            let outcome = self.begin_with("BEGIN IMMEDIATE").await?;
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
        // Postgres may have begun and then failed at what it was told.
        self.in_transaction = outcome.is_ok() || self.running || self.dialect() == Dialect::Postgres;
        Ok(outcome)
    }

    /// Ends the transaction by `COMMIT` or `ROLLBACK`.
    pub(in crate::store) async fn end_transaction(&mut self, end: &'static str) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let limit = self.start_statement();
        let outcome = timed(limit, self.session().command(end)).await;
        self.in_transaction = outcome.is_err();
        self.record(began, outcome)
    }

    /// Before a statement: how long it is waited for.
    fn start_statement(&mut self) -> Option<Duration> {
        self.running = true;
        let trial = self.breaker_permit.as_ref().is_some_and(BreakerPermit::is_trial);
        let limit = self.limit.map(|limit| if trial { limit.min(TRIAL_LIMIT) } else { limit });
        self.session().limit(limit);
        limit.map(|limit| if trial { limit } else { limit + GRACE })
    }

    /// After it: what the outcome says of the connection.
    fn note_outcome<T>(&mut self, outcome: &Result<T, StatementFailure>) -> bool {
        self.running = matches!(outcome, Err(StatementFailure::TimedOut));
        self.unverified = false;
        // Its unread rows would precede those of the next statement.
        self.lost |= matches!(outcome, Err(StatementFailure::Error(error)) if is_out_of_memory(error));
        if let Err(StatementFailure::Error(error)) = outcome {
            self.pool.detect_pooler(error);
        }
        self.lost |=
            matches!(outcome, Err(StatementFailure::Error(error)) if Pooler::of_lost_statement(error).is_some());
        self.lost |= matches!(outcome, Err(StatementFailure::Error(error)) if match DatabaseFailure::of(error) {
            Some(DatabaseFailure::Lost) => true,
            // SQLite opens a file for reading alone where it may not write, and the connection stays that way.
            Some(DatabaseFailure::ReadOnly) => self.dialect() == Dialect::Sqlite,
            _ => false,
        });
        self.lost
    }

    /// What the outcome says of the database, and the outcome.
    fn record<T>(&mut self, began: Instant, outcome: Result<T, StatementFailure>) -> Result<T, sqlx::Error> {
        self.note_outcome(&outcome);
        let outcome = outcome.map_err(|failure| match failure {
            StatementFailure::TimedOut => timed_out(),
            StatementFailure::Error(error) => match self.file() {
                Some(file) if DatabaseFailure::of(&error) == Some(DatabaseFailure::ReadOnly) => {
                    ReadOnlyFile::refuses(file, error)
                }
                _ => error,
            },
        });
        let metrics = self.pool.connections().metrics();
        metrics.called(self.dialect().name(), began.elapsed());
        let failure = outcome.as_ref().err().and_then(DatabaseFailure::of);
        if let Some(failure) = failure {
            metrics.failed(failure);
        }
        let failed = outcome.as_ref().err().filter(|_| failure.is_some_and(DatabaseFailure::trips_breaker));
        match (self.breaker_permit.take(), self.pool.breaker(), failed) {
            (Some(breaker_permit), _, None) => breaker_permit.succeeded(),
            (Some(breaker_permit), _, Some(error)) => breaker_permit.failed(error),
            (None, Some(breaker), None) => breaker.record_success(),
            (None, Some(breaker), Some(error)) => breaker.record_failure(error),
            (None, None, _) => {}
        }
        outcome
    }

    /// Puts a new connection in the place of one that was lost while nobody used it. Nothing had been done on it.
    async fn renew(&mut self) -> Result<(), sqlx::Error> {
        // What broke one has broken the others.
        self.pool.close_idle();
        self.session = None;
        let permit = self.permit.take().expect("it is there until the loan ends");
        match self.pool.open(permit).await {
            Ok((session, permit)) => {
                (self.session, self.permit) = (Some(session), Some(permit));
                self.lost = false;
                Ok(())
            }
            Err(OpenError::ServerFull) => Err(sqlx::Error::PoolTimedOut),
            Err(OpenError::ReadOnly(_, error)) => Err(error),
            Err(OpenError::Failed(error)) => {
                if let Some(breaker_permit) = self.breaker_permit.take() {
                    breaker_permit.broken(&error);
                }
                Err(error)
            }
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let (Some(mut session), Some(permit)) = (self.session.take(), self.permit.take()) else { return };
        if self.lost {
            return;
        }
        if self.was_large {
            session.shrink_buffers();
        }
        // Without a runtime the program is about to end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (running, in_transaction, pool) = (self.running, self.in_transaction, self.pool.clone());
        if pool.is_closed() {
            drop(runtime.spawn(session.close_with(permit)));
        } else if running || in_transaction {
            drop(runtime.spawn(async move {
                let fit = if running { session.cancel().await } else { session.end_transaction().await };
                if let Some(session) = fit {
                    permit.put_back(session);
                }
                // The pool outlives its connections.
                drop(pool);
            }));
        } else {
            permit.put_back(session);
        }
    }
}

/// Has the current request hold bytes of rows; where it can't, that is the error of its statement.
pub(in crate::store) fn hold_row_memory(bytes: usize) -> Result<(), sqlx::Error> {
    memory::hold_rows(bytes).map_err(out_of_memory)
}

/// The error of a statement for whose rows there is no memory. [`crate::store::StoreError`] tells it from those of the driver.
pub(in crate::store) fn out_of_memory(spent: MemorySpent) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(spent))
}

pub(in crate::store::engine) fn is_out_of_memory(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Decode(cause) if cause.is::<MemorySpent>())
}

/// Why a statement has no answer.
enum StatementFailure {
    /// The database said so, or the line to it.
    Error(sqlx::Error),
    /// Nothing came.
    TimedOut,
}

async fn timed<T>(
    limit: Option<Duration>,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StatementFailure> {
    let _timing = Timing::begin();
    let statement = statement.instrument(step!("statement"));
    let outcome = match limit {
        Some(limit) => tokio::time::timeout(limit, statement).await.map_err(|_| StatementFailure::TimedOut)?,
        None => statement.await,
    };
    outcome.map_err(StatementFailure::Error)
}
