//! A result row of Postgres or SQLite, and the types of its columns.
//!
//! Both databases return the same columns for the same statement. Only this module and [`super::records`] decode them
//! by driver.

use std::collections::HashMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo, ValueRef};

/// Receives each row of a result. An error ends the statement.
pub(in crate::store) type RowHandler<'e> = dyn FnMut(Row) -> Result<(), sqlx::Error> + Send + 'e;

/// One row of a result.
#[derive(Debug)]
pub(crate) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow, RepairedTexts),
}

/// The columns of a SQLite row that are not valid UTF-8, converted lossily. SQLite does not validate text, and one
/// invalid text must not fail the whole page.
#[derive(Debug, Default)]
pub(crate) struct RepairedTexts(OnceLock<HashMap<usize, String>>);

impl RepairedTexts {
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

/// The text of a SQLite column, with invalid UTF-8 replaced by U+FFFD.
pub(super) fn sqlite_text<'r>(
    row: &'r SqliteRow,
    repaired_texts: &'r RepairedTexts,
    column: usize,
) -> Result<Option<&'r str>, sqlx::Error> {
    match row.try_get(column) {
        Err(error @ sqlx::Error::ColumnDecode { .. }) => repaired_texts.text(row, column).map(Some).ok_or(error),
        outcome => outcome,
    }
}

/// The driver's overhead per row and per value, in bytes: about 200 for a row of two values.
///
/// Larger: requests that read many short rows are refused too early. Smaller: they hold more memory than is reserved.
const ROW_OVERHEAD: usize = 128;
const VALUE_OVERHEAD: usize = 64;

impl Row {
    /// Its approximate size in memory, in bytes.
    pub(in crate::store) fn bytes(&self) -> usize {
        match self {
            Self::Postgres(row) => {
                ROW_OVERHEAD + (0..row.len()).map(|column| VALUE_OVERHEAD + postgres_bytes(row, column)).sum::<usize>()
            }
            Self::Sqlite(row, _) => {
                ROW_OVERHEAD + (0..row.len()).map(|column| VALUE_OVERHEAD + sqlite_bytes(row, column)).sum::<usize>()
            }
        }
    }

    /// The value of a column, counted from 0.
    pub(crate) fn get<T: Column>(&self, column: usize) -> Result<T, sqlx::Error> {
        T::of(self, column)
    }

    /// The text of a column, borrowed from the row; empty for a NULL of SQLite.
    pub(in crate::store) fn text(&self, column: usize) -> Result<&str, sqlx::Error> {
        match self {
            Self::Postgres(row) => row.try_get(column),
            Self::Sqlite(row, repaired_texts) => Ok(sqlite_text(row, repaired_texts, column)?.unwrap_or_default()),
        }
    }
}

fn postgres_bytes(row: &PgRow, column: usize) -> usize {
    row.try_get_raw(column).ok().and_then(|value| value.as_bytes().ok()).map_or(0, <[u8]>::len)
}

fn sqlite_bytes(row: &SqliteRow, column: usize) -> usize {
    // Asking for the bytes of a number would convert it to text.
    let has_bytes = row.try_get_raw(column).is_ok_and(|value| matches!(value.type_info().name(), "TEXT" | "BLOB"));
    if has_bytes { row.try_get_unchecked::<&[u8], _>(column).map_or(0, <[u8]>::len) } else { 0 }
}

/// A type as which a column of either database can be read.
pub(crate) trait Column: Sized {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error>;
}

macro_rules! impl_column {
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

impl_column!(i64, Option<i64>, bool, Vec<u8>);

impl Column for String {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        Option::<Self>::of(row, column)?.ok_or_else(|| sqlx::Error::Decode("a text that must be there is NULL".into()))
    }
}

impl Column for Option<String> {
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        match row {
            Row::Postgres(row) => row.try_get(column),
            Row::Sqlite(row, repaired_texts) => Ok(sqlite_text(row, repaired_texts, column)?.map(str::to_owned)),
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
