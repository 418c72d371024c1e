//! A tenant's connections and transactions, with one interface for Postgres and SQLite.
//!
//! Every statement is a [`Sql`] and every result row a [`Row`], so the modules above are written once for both
//! databases. `sqlx::Any` supports no arrays, timestamps or JSON, and code that is generic over the driver repeats a
//! page of bounds on every function.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::SqlSafeStr;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::connections::Role;
use super::error::StoreError;
use super::limits::DatabaseLimits;
use super::pool::Pool;
use super::pool::connection::{PooledConnection, WriterTurn};
use super::pooler;
use crate::deadline::{ONCE_MORE, within};
use crate::memory::RowMemory;
use crate::metrics::{DatabaseFailure, DatabaseMetrics};
use crate::store::statement::{Dialect, Row, RowHandler, Sql};

/// How long it is tried to empty a write-ahead log, which readers prevent for a moment.
///
/// Larger: a call takes longer while a program reads without end. Smaller: one that reads for a moment leaves bytes.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(4);
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);

/// The connections of one tenant's database.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pool: Pool,
    writers: Writers,
    /// Where the rows of one request are counted.
    rows: Option<RowMemory>,
}

/// Who may write.
#[derive(Clone, Debug)]
enum Writers {
    /// Every connection to Postgres.
    All,
    /// One at a time, since SQLite has a single write lock. Writers queue for their turn instead of polling the lock,
    /// while readers go on (WAL). Any connection will do: an account that is seldom called has one for both.
    InTurn { turn: Arc<Semaphore>, wait: Duration },
    /// Nobody: see [`StoreError::OfDrill`].
    Nobody,
}

impl WriterTurn {
    fn role(&self) -> Role {
        if self.0.is_some() { Role::Writer } else { Role::Any }
    }
}

impl Database {
    /// `wait` limits how long a writer waits for its turn.
    pub(in crate::store) fn new(pool: Pool, wait: Duration) -> Self {
        let writers = match pool.dialect() {
            Dialect::Postgres => Writers::All,
            Dialect::Sqlite => Writers::InTurn { turn: Arc::new(Semaphore::new(1)), wait },
        };
        Self { pool, writers, rows: None }
    }

    /// The same connections, of which none writes.
    pub(in crate::store) fn for_readers(self) -> Self {
        Self { writers: Writers::Nobody, ..self }
    }

    /// The rows that the request has read so far are gone.
    pub(in crate::store) fn release_rows(&self) {
        if let Some(rows) = &self.rows {
            rows.release();
        }
    }

    /// The same connections for one request, whose rows are counted.
    pub(in crate::store) fn counting(&self, rows: &RowMemory) -> Self {
        Self { rows: Some(rows.clone()), ..self.clone() }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.pool.dialect()
    }

    pub(in crate::store) fn metrics(&self) -> &DatabaseMetrics {
        self.pool.connections().metrics()
    }

    /// How often a connection was opened while no other one was open.
    pub(in crate::store) fn openings(&self) -> u64 {
        self.pool.openings()
    }

    /// Whether one of them is open and idle.
    pub(in crate::store) fn has_idle(&self) -> bool {
        self.pool.has_idle()
    }

    /// How often a statement was denied on any of these connections.
    pub(in crate::store) fn denials(&self) -> u64 {
        self.pool.connections().denials()
    }

    pub(in crate::store) fn limits(&self) -> DatabaseLimits {
        self.pool.connections().limits()
    }

    /// A connection for reading. A caller that needs several reads keeps it until the last one.
    pub(crate) async fn reader(&self) -> Result<PooledConnection, StoreError> {
        Ok(self.pool.acquire().await?.counting(self.rows.clone()))
    }

    /// A connection for opening the store. Its caller already holds a permit of the breaker.
    pub(in crate::store) async fn acquire_for_opening(&self) -> Result<PooledConnection, StoreError> {
        self.pool.acquire_permitted(None, Role::Any).await
    }

    /// A connection for writing without a transaction.
    pub(in crate::store) async fn writer(&self) -> Result<PooledConnection, StoreError> {
        let breaker_permit = self.pool.enter_breaker()?;
        let turn = self.take_turn().await?;
        let connection = self.pool.acquire_permitted(breaker_permit, turn.role()).await?;
        Ok(connection.with_turn(turn).counting(self.rows.clone()))
    }

    /// Waits until it may write.
    async fn take_turn(&self) -> Result<WriterTurn, StoreError> {
        let (turn, wait) = match &self.writers {
            Writers::All => return Ok(WriterTurn(None)),
            Writers::InTurn { turn, wait } => (turn, wait),
            Writers::Nobody => return Err(StoreError::OfDrill),
        };
        if let Ok(turn) = Arc::clone(turn).try_acquire_owned() {
            return Ok(WriterTurn(Some(turn)));
        }
        let metrics = self.pool.connections().metrics();
        let _waiting = metrics.wait();
        match within(*wait, ONCE_MORE, Arc::clone(turn).acquire_owned()).await {
            Some(turn) => Ok(WriterTurn(Some(turn.expect("it is never closed")))),
            None => {
                metrics.refused("wait");
                Err(StoreError::Busy)
            }
        }
    }

    /// Begins a transaction on a connection that is idle now. None if there is none, or another writer has its turn.
    pub(in crate::store) async fn begin_if_idle(&self) -> Result<Option<Transaction>, StoreError> {
        let turn = match &self.writers {
            Writers::All => WriterTurn(None),
            Writers::InTurn { turn, .. } => match Arc::clone(turn).try_acquire_owned() {
                Ok(turn) => WriterTurn(Some(turn)),
                Err(_) => return Ok(None),
            },
            Writers::Nobody => return Ok(None),
        };
        match self.pool.acquire_idle(turn.role()) {
            Some(connection) => begin(connection.with_turn(turn), pooler::BEGIN, Instant::now()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Begins a transaction that may write.
    pub(crate) async fn begin(&self) -> Result<Transaction, StoreError> {
        let waiting_since = Instant::now();
        let connection = self.wait_in_queue(waiting_since, self.writer()).await??;
        begin(connection, pooler::BEGIN, waiting_since).await
    }

    /// Waits in a queue of writers, for a caller that has been waiting since `waiting_since`.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another program holds the write lock of a SQLite file for longer than a writer waits.
    pub(in crate::store) async fn wait_in_queue<T>(
        &self,
        waiting_since: Instant,
        queue: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let Some(file) = self.pool.address().file() else { return Ok(queue.await) };
        tokio::select! {
            biased;
            outcome = queue => Ok(outcome),
            () = self.pool.write_lock().timed_out(waiting_since, self.pool.lock_wait()) => {
                self.pool.connections().metrics().failed(DatabaseFailure::Locked);
                Err(StoreError::locked(file))
            }
        }
    }

    /// Begins a transaction with a statement limit of its own, for a caller that has been waiting since
    /// `waiting_since`. `on_postgres` begins with `BEGIN` and has to set the same limit on the server.
    pub(in crate::store) async fn begin_with(
        &self,
        on_postgres: &'static str,
        limit: Duration,
        waiting_since: Instant,
    ) -> Result<Transaction, StoreError> {
        let mut connection = self.wait_in_queue(waiting_since, self.writer()).await??;
        connection.limit_statements(limit);
        begin(connection, on_postgres, waiting_since).await
    }

    /// Empties the write-ahead log of a SQLite file, so that what was deleted and overwritten is in no file. Returns whether that
    /// was done: a program that reads all the time prevents it. On Postgres, the server keeps what it wrote for as long as it does.
    pub(in crate::store) async fn empty_log(&self) -> Result<bool, StoreError> {
        if self.dialect() == Dialect::Postgres {
            return Ok(true);
        }
        let began = Instant::now();
        loop {
            let mut writer = self.writer().await?;
            let row = writer.fetch_one(Sql::text("PRAGMA wal_checkpoint(TRUNCATE)")).await?;
            let is_emptied = row.get::<i64>(0)? == 0;
            drop(writer);
            if is_emptied || began.elapsed() >= CHECKPOINT_LIMIT {
                return Ok(is_emptied);
            }
            sleep(CHECKPOINT_PAUSE).await;
        }
    }

    /// Runs one writing statement in a transaction of its own. Returns the number of affected rows.
    pub(crate) async fn execute(&self, sql: Sql) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let rows = transaction.execute(sql).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// Closes every connection, waiting a while for those in use.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

async fn begin(
    mut connection: PooledConnection,
    on_postgres: &'static str,
    waiting_since: Instant,
) -> Result<Transaction, StoreError> {
    match connection.begin_transaction(on_postgres, waiting_since).await {
        Ok(()) => Ok(Transaction { connection }),
        Err(error) => Err(match (connection.file(), DatabaseFailure::of(&error)) {
            (Some(file), Some(DatabaseFailure::Locked)) => StoreError::locked(file),
            _ => error.into(),
        }),
    }
}

/// A transaction; dropping it rolls back.
#[derive(Debug)]
pub(crate) struct Transaction {
    connection: PooledConnection,
}

impl Transaction {
    pub(crate) fn dialect(&self) -> Dialect {
        self.connection.dialect()
    }

    /// How long changes of a submission follow each other that are one event.
    pub(in crate::store) fn settle_time(&self) -> Duration {
        self.connection.limits().settle
    }

    /// Whether old rows are deleted in the background.
    pub(in crate::store) fn deletes_old_rows(&self) -> bool {
        self.connection.limits().deletes_old_rows
    }

    /// The underlying connection, for code that reads with and without a transaction.
    pub(in crate::store) fn connection(&mut self) -> &mut PooledConnection {
        &mut self.connection
    }

    pub(crate) async fn fetch_all(&mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        self.connection.fetch_all(sql).await
    }

    /// Runs a statement and passes each row to `each` as it arrives.
    pub(crate) async fn fetch_each(&mut self, sql: Sql, each: &mut RowHandler<'_>) -> Result<(), sqlx::Error> {
        self.connection.fetch_each(sql, each).await
    }

    /// Runs a statement. Returns the number of affected rows.
    pub(crate) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        self.connection.execute(sql).await
    }

    /// Runs statements without values.
    pub(in crate::store) async fn command(&mut self, text: impl SqlSafeStr) -> Result<(), sqlx::Error> {
        self.connection.command(text).await
    }

    /// Runs the last statements and commits, on SQLite. Returns their rows.
    pub(in crate::store) async fn fetch_and_commit(mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        self.connection.fetch_and_commit(sql).await
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.connection.end_transaction("COMMIT").await
    }

    pub(crate) async fn roll_back(mut self) -> Result<(), sqlx::Error> {
        self.connection.end_transaction("ROLLBACK").await
    }
}
