//! The one place that knows both drivers: pools, transactions and rows of Postgres and SQLite behind the same calls.
//!
//! Every statement comes as [`Sql`] and every row goes as [`Row`], so what stands above is written once for both
//! databases. (`sqlx::Any` would do neither: it knows no arrays, no instants and no JSON; being generic over the driver
//! repeats a page of bounds on every function.)

use jiff::Timestamp;
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::sql::{Dialect, Sql};

/// The pools of one tenant's database.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Postgres(PgPool),
    /// SQLite takes one writer at a time: one connection for writing, so that writers queue here and not in the file's
    /// lock, and several for reading beside it (WAL).
    Sqlite {
        readers: SqlitePool,
        writer: SqlitePool,
    },
}

impl Database {
    /// An empty statement for this database.
    pub(crate) fn sql(&self) -> Sql {
        Sql::new(self.dialect())
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// All rows of a reading statement.
    pub(crate) async fn fetch_all(&self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Postgres(pool) => fetch_postgres(pool, sql).await,
            Self::Sqlite { readers, .. } => fetch_sqlite(readers, sql).await,
        }
    }

    /// The only row of a reading statement, or none.
    pub(crate) async fn fetch_optional(&self, sql: Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.fetch_all(sql).await?.pop())
    }

    /// The only row of a reading statement that always has one.
    pub(crate) async fn fetch_one(&self, sql: Sql) -> Result<Row, sqlx::Error> {
        self.fetch_optional(sql).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Begins a transaction that may write. On SQLite it has the write lock from the start, so that it can't fail half
    /// way for want of it.
    pub(crate) async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        Ok(match self {
            Self::Postgres(pool) => Transaction::Postgres(pool.begin().await?),
            Self::Sqlite { writer, .. } => Transaction::Sqlite(writer.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    /// Runs one writing statement and tells how many rows it touched.
    pub(crate) async fn execute(&self, sql: Sql) -> Result<u64, sqlx::Error> {
        let mut transaction = self.begin().await?;
        let touched = transaction.execute(sql).await?;
        transaction.commit().await?;
        Ok(touched)
    }

    /// Closes every connection, waiting for those in use.
    pub(crate) async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite { readers, writer } => {
                readers.close().await;
                writer.close().await;
            }
        }
    }
}

/// A transaction; dropping it rolls back.
#[derive(Debug)]
pub(crate) enum Transaction {
    Postgres(sqlx::Transaction<'static, Postgres>),
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

impl Transaction {
    /// An empty statement for this transaction's database.
    pub(crate) fn sql(&self) -> Sql {
        Sql::new(self.dialect())
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    pub(crate) async fn fetch_all(&mut self, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Postgres(transaction) => fetch_postgres(&mut **transaction, sql).await,
            Self::Sqlite(transaction) => fetch_sqlite(&mut **transaction, sql).await,
        }
    }

    /// Runs a statement and tells how many rows it touched.
    pub(crate) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        match self {
            Self::Postgres(transaction) => {
                let (text, arguments) = sql.into_postgres().map_err(sqlx::Error::Encode)?;
                let done = sqlx::query_with(AssertSqlSafe(text), arguments).execute(&mut **transaction).await?;
                Ok(done.rows_affected())
            }
            Self::Sqlite(transaction) => {
                let (text, arguments) = sql.into_sqlite().map_err(sqlx::Error::Encode)?;
                let done = sqlx::query_with(AssertSqlSafe(text), arguments).execute(&mut **transaction).await?;
                Ok(done.rows_affected())
            }
        }
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(transaction) => transaction.commit().await,
            Self::Sqlite(transaction) => transaction.commit().await,
        }
    }

    pub(crate) async fn roll_back(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(transaction) => transaction.rollback().await,
            Self::Sqlite(transaction) => transaction.rollback().await,
        }
    }
}

async fn fetch_postgres<'c>(
    executor: impl sqlx::Executor<'c, Database = Postgres>,
    sql: Sql,
) -> Result<Vec<Row>, sqlx::Error> {
    let (text, arguments) = sql.into_postgres().map_err(sqlx::Error::Encode)?;
    let rows = sqlx::query_with(AssertSqlSafe(text), arguments).fetch_all(executor).await?;
    Ok(rows.into_iter().map(Row::Postgres).collect())
}

async fn fetch_sqlite<'c>(
    executor: impl sqlx::Executor<'c, Database = Sqlite>,
    sql: Sql,
) -> Result<Vec<Row>, sqlx::Error> {
    let (text, arguments) = sql.into_sqlite().map_err(sqlx::Error::Encode)?;
    let rows = sqlx::query_with(AssertSqlSafe(text), arguments).fetch_all(executor).await?;
    Ok(rows.into_iter().map(Row::Sqlite).collect())
}

/// One row of a result.
#[derive(Debug)]
pub(crate) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

impl Row {
    /// The value of a column, counted from 0.
    pub(crate) fn get<T: Column>(&self, column: usize) -> Result<T, sqlx::Error> {
        T::of(self, column)
    }
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
                    Row::Sqlite(row) => row.try_get(column),
                }
            }
        }
    )*};
}

column_as_both_drivers_have_it!(i64, Option<i64>, bool, String, Option<String>, Vec<u8>);

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
            Row::Sqlite(row) => row
                .try_get::<Option<i64>, _>(column)?
                .map(Timestamp::from_microsecond)
                .transpose()
                .map_err(|error| sqlx::Error::Decode(Box::new(error))),
        }
    }
}
