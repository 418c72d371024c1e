//! A checked-out connection. Every statement of a request runs on one.
//!
//! Owns a statement's time limit on this side of the network, its report to the breaker, its metrics, and its
//! cancellation when the request is gone. Dropping a `PooledConnection` puts the connection back in a clean state: a
//! running statement is cancelled and an open transaction rolled back first.

mod transaction;

use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, SqlSafeStr};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use super::{OpenError, Pool};
use crate::memory::RowMemory;
use crate::metrics::DatabaseFailure;
use crate::store::engine::breaker::{BreakerPermit, TRIAL_LIMIT};
use crate::store::engine::connections::ConnectionPermit;
use crate::store::engine::database_time::Timing;
use crate::store::engine::failure::{is_out_of_memory, is_stale_plan, out_of_memory, timed_out};
use crate::store::engine::limits::DatabaseLimits;
use crate::store::engine::pooler::Pooler;
use crate::store::engine::session::Session;
use crate::store::engine::write_access::{self, ReadOnlyFile};
use crate::store::statement::{Dialect, Row, RowHandler, Sql};
use crate::telemetry::step;

/// How much later than the database's own limit a statement is abandoned here, in case the database hangs.
///
/// Larger: requests wait longer. Smaller: connections are dropped whose statement the database was about to end.
const GRACE: Duration = Duration::from_secs(1);

/// A connection whose statement or rows had more bytes than this frees its buffers afterwards.
///
/// Larger: idle connections hold more memory. Smaller: ordinary reads pay for new buffers.
const LARGE_STATEMENT: usize = 256 * 1024;

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionSource {
    /// It was opened for this checkout.
    Opened,
    /// It was idle, and answered a ping.
    Idle,
    /// It was idle, and not pinged.
    IdleUnverified,
}

/// Leave to write. Held for as long as the connection of a writer.
#[derive(Debug)]
pub(in crate::store::engine) struct WriterTurn(pub(in crate::store::engine) Option<OwnedSemaphorePermit>);

/// A connection, and the state in which it is.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pool: Pool,
    session: Option<Session>,
    permit: Option<ConnectionPermit>,
    /// The tenant's permit for one of the connections that it shares with others.
    _share: Option<OwnedSemaphorePermit>,
    /// If it is a writer's. The next writer's turn comes once this connection is in a clean state.
    turn: Option<WriterTurn>,
    /// Takes the first outcome; later ones are recorded on the breaker itself.
    breaker_permit: Option<BreakerPermit>,
    limit: Option<Duration>,
    /// It was idle and not pinged, so the server may have closed it.
    unverified: bool,
    /// A statement was sent and its outcome is unknown.
    running: bool,
    /// It can't be used again.
    lost: bool,
    /// A transaction is open, or may be.
    in_transaction: bool,
    /// Its buffers have grown large.
    was_large: bool,
    /// Its statements are soon repeated.
    keeps_statements: bool,
    /// Where the rows of the request that uses it are counted. Those of commands and background tasks are not.
    rows: Option<RowMemory>,
}

impl PooledConnection {
    pub(super) fn new(
        pool: &Pool,
        mut session: Session,
        permit: ConnectionPermit,
        share: Option<OwnedSemaphorePermit>,
        breaker_permit: Option<BreakerPermit>,
        found: ConnectionSource,
    ) -> Self {
        session.use_schema(pool.schema());
        Self {
            limit: pool.limit(),
            pool: pool.clone(),
            session: Some(session),
            permit: Some(permit),
            _share: share,
            turn: None,
            breaker_permit,
            unverified: found == ConnectionSource::IdleUnverified,
            running: false,
            lost: false,
            in_transaction: false,
            was_large: false,
            keeps_statements: false,
            rows: None,
        }
    }

    /// This connection, as that of a writer.
    pub(in crate::store::engine) fn with_turn(mut self, turn: WriterTurn) -> Self {
        self.turn = Some(turn);
        self
    }

    /// This connection, for a request whose rows are counted.
    pub(in crate::store::engine) fn counting(mut self, rows: Option<RowMemory>) -> Self {
        self.rows = rows;
        self
    }

    /// Where the rows of the request are counted.
    pub(in crate::store) fn rows(&self) -> HeldRows {
        HeldRows(self.rows.clone())
    }

    pub(in crate::store) fn limits(&self) -> DatabaseLimits {
        self.pool.connections().limits()
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

    /// Changes the limit of the next statements, if they have one. On Postgres the server's limit has to be set
    /// separately.
    pub(in crate::store::engine) fn limit_statements(&mut self, limit: Duration) {
        self.limit = self.limit.map(|_| limit);
    }

    /// Has SQLite keep the statements of this checkout, also those of a transaction: for a caller that runs them again and
    /// again. They take up to 30 KB each until other statements take their place.
    pub(in crate::store) fn keep_statements(&mut self) {
        self.keeps_statements = true;
    }

    /// All rows of a statement. They count against the memory of the current request.
    pub(crate) async fn fetch_all(&mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        let (mut rows, held) = (Vec::new(), self.rows());
        self.fetch_each(sql, &mut |row| {
            held.hold(row.bytes())?;
            rows.push(row);
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Runs a statement and passes each row to `each` as it arrives. An error of `each` ends the statement.
    pub(crate) async fn fetch_each(&mut self, sql: Sql, each: &mut RowHandler<'_>) -> Result<(), sqlx::Error> {
        let (sent, mut received) = (sql.bytes(), 0);
        let retry = self.unverified.then(|| sql.clone());
        let began = Instant::now();
        let mut outcome = self.fetch_once(sql, &mut received, each).await;
        // The server may have closed the idle connection. No row has arrived, so the statement can be sent again.
        if let (true, Some(sql), 0) = (self.note_outcome(&outcome), retry, received) {
            self.renew().await?;
            outcome = self.fetch_once(sql, &mut received, each).await;
        }
        self.was_large |= sent + received > LARGE_STATEMENT;
        self.record(began, outcome)
    }

    async fn fetch_once(
        &mut self,
        mut sql: Sql,
        received: &mut usize,
        each: &mut RowHandler<'_>,
    ) -> Result<(), StatementFailure> {
        self.log(&sql);
        if self.keeps_statements {
            sql.keep();
        }
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

    /// Runs a statement. Returns the number of affected rows.
    pub(in crate::store) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        self.log(&sql);
        self.was_large |= sql.bytes() > LARGE_STATEMENT;
        let began = Instant::now();
        let (limit, in_transaction) = (self.start_statement(), self.in_transaction);
        let outcome = timed(limit, self.session().execute(sql, in_transaction)).await;
        self.record(began, outcome)
    }

    /// Logs a statement as it can be pasted into `psql` or `sqlite3`, if somebody debugs.
    fn log(&self, sql: &Sql) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            tracing::debug!(database = self.dialect().name(), statement = %sql.clone().pasteable(self.dialect()));
        }
    }

    /// Removes the dead rows of a table, on Postgres. A transaction can't do that, so the table's schema has to be named
    /// if the session is shared.
    pub(in crate::store) async fn vacuum(&mut self, table: &'static str) -> Result<(), sqlx::Error> {
        let name = self.pool.schema().map_or_else(|| table.to_owned(), |schema| schema.qualify(table));
        let began = Instant::now();
        let limit = self.start_statement();
        let outcome = timed(limit, self.session().command(AssertSqlSafe(format!("VACUUM {name}")))).await;
        self.record(began, outcome)
    }

    /// Runs statements without values, in the open transaction if there is one.
    pub(in crate::store) async fn command(&mut self, text: impl SqlSafeStr) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let limit = self.start_statement();
        let outcome = timed(limit, self.session().command(text)).await;
        self.record(began, outcome)
    }

    /// Called before each statement. Returns how long to wait for it.
    fn start_statement(&mut self) -> Option<Duration> {
        self.running = true;
        let trial = self.breaker_permit.as_ref().is_some_and(BreakerPermit::is_trial);
        let limit = self.limit.map(|limit| if trial { limit.min(TRIAL_LIMIT) } else { limit });
        self.session().limit(limit);
        limit.map(|limit| if trial { limit } else { limit + GRACE })
    }

    /// Called after each statement. Updates the state of the connection; returns whether it is lost.
    fn note_outcome<T>(&mut self, outcome: &Result<T, StatementFailure>) -> bool {
        self.running = matches!(outcome, Err(StatementFailure::TimedOut));
        self.unverified = false;
        // Unread rows would precede those of the next statement.
        self.lost |= matches!(outcome, Err(StatementFailure::Error(error)) if is_out_of_memory(error));
        if let Err(StatementFailure::Error(error)) = outcome {
            self.pool.detect_pooler(error);
            self.lost |= Pooler::of_lost_statement(error).is_some() || is_stale_plan(error);
        }
        self.lost |= matches!(outcome, Err(StatementFailure::Error(error)) if match DatabaseFailure::of(error) {
            Some(DatabaseFailure::Lost) => true,
            // If SQLite may not write, it opens the file read-only, and the connection stays read-only.
            Some(DatabaseFailure::ReadOnly) => self.dialect() == Dialect::Sqlite,
            _ => false,
        });
        self.lost
    }

    /// Reports the outcome to the metrics and the breaker, and returns it.
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
            if failure == DatabaseFailure::ReadOnly {
                self.pool.connections().note_denied();
                // As long as one of a file's connections is open that can only read, new ones can't write either.
                if self.file().is_some_and(write_access::is_given_back) {
                    self.pool.close_idle();
                }
            }
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

    /// Replaces a connection that was lost while it was idle. Nothing had been done on it.
    async fn renew(&mut self) -> Result<(), sqlx::Error> {
        // Whatever broke this connection has broken the other idle ones too.
        self.pool.close_idle();
        self.session = None;
        let permit = self.permit.take().expect("it is there until the loan ends");
        match self.pool.open(permit).await {
            Ok((mut session, permit)) => {
                session.use_schema(self.pool.schema());
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
        // Without a runtime the program is about to end.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.lost {
            if session.dialect() == Dialect::Sqlite {
                drop(runtime.spawn(session.close_with(permit)));
            }
            return;
        }
        if self.was_large {
            session.shrink_buffers();
        }
        let (running, in_transaction, pool) = (self.running, self.in_transaction, self.pool.clone());
        let turn = self.turn.take();
        if session.is_worn() || pool.is_closed() && pool.schema().is_none() {
            drop(runtime.spawn(session.close_with(permit)));
        } else if running || in_transaction {
            drop(runtime.spawn(async move {
                let fit = if running { session.cancel().await } else { session.end_transaction().await };
                match fit {
                    // Whoever closes the pool waits for it.
                    Some(session) if pool.is_closed() && pool.schema().is_none() => session.close_with(permit).await,
                    Some(session) => permit.put_back(session),
                    None => {}
                }
                // The pool outlives its connections.
                drop((turn, pool));
            }));
        } else {
            permit.put_back(session);
        }
    }
}

/// Where the rows that a statement returns are counted.
pub(in crate::store) struct HeldRows(Option<RowMemory>);

impl HeldRows {
    /// Counts bytes that are kept. The error ends the statement.
    pub(in crate::store) fn hold(&self, bytes: usize) -> Result<(), sqlx::Error> {
        self.0.as_ref().map_or(Ok(()), |rows| rows.hold(bytes)).map_err(out_of_memory)
    }
}

/// Why a statement failed.
enum StatementFailure {
    /// The database or the connection reported an error.
    Error(sqlx::Error),
    /// There was no answer in time.
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
