//! Batches of rows as one bound value, and the tables for which they are.
//!
//! Binding a batch of any size as one value keeps the text of the statement, and so its plan, the same.
//!
//! These tables are data, so their statements are composed of constant texts here and in `engine/bulk.rs`; all others are
//! whole.

use jiff::Timestamp;
use serde::Serialize;

use super::sql::{Dialect, Sql, sql};

/// A table and its written columns: names and Postgres types. The first `key` columns are the key.
pub(in crate::store) struct TableSpec {
    pub(in crate::store) name: &'static str,
    pub(in crate::store) columns: &'static [(&'static str, &'static str)],
    pub(in crate::store) key: usize,
}

/// Rows of one table, encoded as a JSON array of arrays.
pub(in crate::store) struct JsonRows {
    json: Vec<u8>,
}

impl JsonRows {
    pub(in crate::store) fn new() -> Self {
        Self { json: vec![b'['] }
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.json.len() == 1
    }

    /// How many bytes they are.
    pub(in crate::store) fn bytes(&self) -> usize {
        self.json.len()
    }

    /// Adds a row: a tuple with one value per column.
    pub(in crate::store) fn push(&mut self, row: &impl Serialize) {
        if !self.is_empty() {
            self.json.push(b',');
        }
        serde_json::to_writer(&mut self.json, row).expect("numbers, texts and booleans are JSON, and memory takes it");
    }

    /// The complete array.
    pub(in crate::store) fn text(&self) -> String {
        let mut json = self.json.clone();
        json.push(b']');
        String::from_utf8(json).expect("the serializer writes UTF-8")
    }
}

/// A timestamp in the form that `{rows …}` needs: text for Postgres, microseconds for SQLite.
#[derive(Serialize)]
#[serde(untagged)]
pub(in crate::store) enum JsonTimestamp {
    Text(Timestamp),
    Microseconds(i64),
}

impl JsonTimestamp {
    pub(in crate::store) fn new(instant: Timestamp, dialect: Dialect) -> Self {
        match dialect {
            Dialect::Postgres => Self::Text(instant),
            Dialect::Sqlite => Self::Microseconds(instant.as_microsecond()),
        }
    }
}

impl TableSpec {
    /// The rows as a table named `batch`.
    pub(in crate::store) fn batch(&self, rows: &JsonRows) -> Sql {
        sql!("{+rows} AS batch", rows = Sql::rows(rows.text(), self.columns))
    }

    /// The names of all columns, separated by commas.
    pub(in crate::store) fn column_names(&self) -> Sql {
        names(self.columns)
    }

    /// The names of the columns of the key, separated by commas.
    pub(in crate::store) fn key_names(&self) -> Sql {
        names(&self.columns[..self.key])
    }
}

fn names(columns: &[(&'static str, &'static str)]) -> Sql {
    Sql::joined(columns.iter().map(|(name, _)| Sql::text(name)), ", ")
}
