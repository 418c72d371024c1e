//! Batches of rows as one bound value, and the tables for which they are.
//!
//! Binding a batch of any size as one value keeps the text of the statement, and so its plan, the same.

use jiff::Timestamp;
use serde::Serialize;

use super::sql::{Dialect, Sql};

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

/// A timestamp in the form that [`Sql::push_rows`] needs: text for Postgres, microseconds for SQLite.
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
    /// Adds the rows as a table named `batch`.
    pub(in crate::store) fn push_batch(&self, sql: &mut Sql, rows: &JsonRows) {
        sql.push_rows(rows.text(), self.columns).push(" AS batch");
    }

    /// Adds the names of all columns.
    pub(in crate::store) fn push_column_names(&self, sql: &mut Sql) {
        push_column_names(sql, self.columns);
    }
}

/// Adds the names of columns, separated by commas.
pub(in crate::store) fn push_column_names(sql: &mut Sql, columns: &[(&'static str, &'static str)]) {
    for (at, (name, _)) in columns.iter().enumerate() {
        sql.push(if at == 0 { "" } else { ", " }).push(name);
    }
}
