//! A tenant's connections, transactions and rows of Postgres and SQLite behind the same calls.
//!
//! Every statement comes as [`Sql`] and every row goes as [`Row`], so what stands above is written once for both
//! databases. (`sqlx::Any` would do neither: it knows no arrays, no instants and no JSON; being generic over the driver
//! repeats a page of bounds on every function.)

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo, ValueRef};

use super::StoreError;
use super::lent::Lent;
use super::pool::Pool;
use super::pooler;
use super::session::Each;
use super::sql::{Dialect, Sql};
use crate::metrics::DatabaseFailure;
use crate::metrics::DatabaseMetrics;

/// The connections of one tenant's database.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    readers: Pool,
    /// On Postgres the same. SQLite takes one writer at a time: one connection for writing, so that writers queue here
    /// and not in the file's lock, and several for reading beside it (WAL).
    writers: Pool,
}

impl Database {
    pub(super) fn new(readers: Pool, writers: Pool) -> Self {
        Self { readers, writers }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.readers.dialect()
    }

    pub(super) fn metrics(&self) -> &DatabaseMetrics {
        self.readers.connections().metrics()
    }

    /// A connection to read by. Whoever reads more than once for one answer keeps it meanwhile.
    pub(crate) async fn reader(&self) -> Result<Lent, StoreError> {
        self.readers.lend().await
    }

    /// The same for the one who opens the database, whom the breaker has let through.
    pub(super) async fn opening(&self) -> Result<Lent, StoreError> {
        self.readers.lend_past(None).await
    }

    /// A connection to write by, without a transaction.
    pub(super) async fn writer(&self) -> Result<Lent, StoreError> {
        self.writers.lend().await
    }

    /// Begins a transaction that may write.
    pub(crate) async fn begin(&self) -> Result<Transaction, StoreError> {
        let asked = Instant::now();
        let lent = self.queue(asked, self.writers.lend()).await??;
        begin(lent, pooler::BEGIN, asked).await
    }

    /// Waits in a queue of writers, for a caller that has been waiting since `asked`.
    ///
    /// # Errors
    /// [`StoreError::Locked`] once another program has held the write lock of a SQLite file for as long as a writer waits.
    pub(super) async fn queue<T>(&self, asked: Instant, queue: impl Future<Output = T>) -> Result<T, StoreError> {
        let Some(file) = self.writers.address().file() else { return Ok(queue.await) };
        tokio::select! {
            biased;
            outcome = queue => Ok(outcome),
            () = self.writers.write_lock().given_up(asked, self.writers.lock_wait()) => {
                self.writers.connections().metrics().failed(DatabaseFailure::Locked);
                Err(StoreError::locked(file))
            }
        }
    }

    /// The same for a caller that has been waiting since `asked`, where each statement may take so long. Postgres is told how
    /// to begin, and that limit, by statements of which `BEGIN` is the first.
    pub(super) async fn begin_by(
        &self,
        on_postgres: &'static str,
        limit: Duration,
        asked: Instant,
    ) -> Result<Transaction, StoreError> {
        let mut lent = self.queue(asked, self.writers.lend()).await??;
        lent.limit_statements(limit);
        begin(lent, on_postgres, asked).await
    }

    /// An empty statement for this database.
    pub(crate) fn sql(&self) -> Sql {
        Sql::new(self.dialect())
    }

    /// Runs one writing statement and tells how many rows it touched.
    pub(crate) async fn execute(&self, sql: Sql) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let touched = transaction.execute(sql).await?;
        transaction.commit().await?;
        Ok(touched)
    }

    /// Closes every connection, waiting a while for those in use.
    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }
}

async fn begin(mut lent: Lent, on_postgres: &'static str, asked: Instant) -> Result<Transaction, StoreError> {
    match lent.begin_transaction(on_postgres, asked).await {
        Ok(()) => Ok(Transaction { lent }),
        Err(error) => Err(match (lent.file(), DatabaseFailure::of(&error)) {
            (Some(file), Some(DatabaseFailure::Locked)) => StoreError::locked(file),
            _ => error.into(),
        }),
    }
}

/// A transaction; dropping it rolls back.
#[derive(Debug)]
pub(crate) struct Transaction {
    lent: Lent,
}

impl Transaction {
    /// An empty statement for this transaction's database.
    pub(crate) fn sql(&self) -> Sql {
        self.lent.sql()
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.lent.dialect()
    }

    /// The connection that the transaction is on, for what reads with and without one.
    pub(super) fn connection(&mut self) -> &mut Lent {
        &mut self.lent
    }

    pub(crate) async fn fetch_all(&mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        self.lent.fetch_all(sql).await
    }

    /// Runs a statement and hands over each of its rows as it comes.
    pub(crate) async fn fetch_each(&mut self, sql: Sql, each: &mut Each<'_>) -> Result<(), sqlx::Error> {
        self.lent.fetch_each(sql, each).await
    }

    /// Runs a statement and tells how many rows it touched.
    pub(crate) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        self.lent.execute(sql).await
    }

    /// Runs statements without values.
    pub(super) async fn command(&mut self, text: &'static str) -> Result<(), sqlx::Error> {
        self.lent.command(text).await
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.lent.end_transaction("COMMIT").await
    }

    pub(crate) async fn roll_back(mut self) -> Result<(), sqlx::Error> {
        self.lent.end_transaction("ROLLBACK").await
    }
}

/// One row of a result.
#[derive(Debug)]
pub(crate) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow, Repairs),
}

/// Columns of a SQLite row that are no UTF-8, with U+FFFD in place of what is none. SQLite stores whatever a program calls
/// text, and one such text must not fail the page that it is on.
#[derive(Debug, Default)]
pub(crate) struct Repairs(OnceLock<HashMap<usize, String>>);

impl Repairs {
    fn text(&self, row: &SqliteRow, column: usize) -> Option<&str> {
        let repaired = |column| {
            let is_text = row.try_get_raw(column).is_ok_and(|value| value.type_info().name() == "TEXT");
            let bytes = is_text.then(|| row.try_get_unchecked::<&[u8], _>(column).ok())??;
            std::str::from_utf8(bytes).is_err().then(|| (column, String::from_utf8_lossy(bytes).into_owned()))
        };
        let all = self.0.get_or_init(|| (0..row.len()).filter_map(repaired).collect());
        all.get(&column).map(String::as_str)
    }
}

/// The text of a SQLite column, with what is no UTF-8 replaced.
pub(super) fn sqlite_text<'r>(
    row: &'r SqliteRow,
    repairs: &'r Repairs,
    column: usize,
) -> Result<Option<&'r str>, sqlx::Error> {
    match row.try_get(column) {
        Err(error @ sqlx::Error::ColumnDecode { .. }) => repairs.text(row, column).map(Some).ok_or(error),
        outcome => outcome,
    }
}

/// The overhead of a driver for each row, and for each value of it: about 200 bytes for a row of two values.
///
/// Larger: requests that read many short rows are refused too early. Smaller: they hold more than is reserved.
const ROW: usize = 128;
const VALUE: usize = 64;

impl Row {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Postgres(row) => {
                ROW + (0..row.len()).map(|column| VALUE + postgres_bytes(row, column)).sum::<usize>()
            }
            Self::Sqlite(row, _) => ROW + (0..row.len()).map(|column| VALUE + sqlite_bytes(row, column)).sum::<usize>(),
        }
    }

    /// The value of a column, counted from 0.
    pub(crate) fn get<T: Column>(&self, column: usize) -> Result<T, sqlx::Error> {
        T::of(self, column)
    }
}

fn postgres_bytes(row: &PgRow, column: usize) -> usize {
    row.try_get_raw(column).ok().and_then(|value| value.as_bytes().ok()).map_or(0, <[u8]>::len)
}

fn sqlite_bytes(row: &SqliteRow, column: usize) -> usize {
    // Of a number, asking for its bytes would make a text.
    let has_bytes = row.try_get_raw(column).is_ok_and(|value| matches!(value.type_info().name(), "TEXT" | "BLOB"));
    if has_bytes { row.try_get_unchecked::<&[u8], _>(column).map_or(0, <[u8]>::len) } else { 0 }
}

/// A type that a column of either database can be read as.
pub(crate) trait Column: Sized {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error>;
}

macro_rules! column_as_both_drivers_have_it {
    ($($kind:ty),*) => {$(
        impl Column for $kind {
            fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
                match row {
                    Row::Postgres(row) => row.try_get(column),
                    Row::Sqlite(row, _) => row.try_get(column),
                }
            }
        }
    )*};
}

column_as_both_drivers_have_it!(i64, Option<i64>, bool, Vec<u8>);

impl Column for String {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        Option::<Self>::of(row, column)?.ok_or_else(|| sqlx::Error::Decode("a text that must be there is NULL".into()))
    }
}

impl Column for Option<String> {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        match row {
            Row::Postgres(row) => row.try_get(column),
            Row::Sqlite(row, repairs) => Ok(sqlite_text(row, repairs, column)?.map(str::to_owned)),
        }
    }
}

impl Column for Timestamp {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        Option::<Self>::of(row, column)?
            .ok_or_else(|| sqlx::Error::Decode("an instant that must be there is NULL".into()))
    }
}

impl Column for Option<Timestamp> {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        match row {
            Row::Postgres(row) => {
                Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
            }
            Row::Sqlite(row, _) => row
                .try_get::<Option<i64>, _>(column)?
                .map(Timestamp::from_microsecond)
                .transpose()
                .map_err(|error| sqlx::Error::Decode(Box::new(error))),
        }
    }
}
