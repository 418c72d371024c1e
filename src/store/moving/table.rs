//! The tables that are copied, and the statements that read and write their rows on either database.
//!
//! The tables are known from the catalog of the schema: their statements are composed once, when the first move begins.

use std::sync::LazyLock;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::MoveError;
use super::value::{Kind, Value};
use crate::store::schema::{TableShape, shapes};
use crate::store::statement::{Argument, Dialect, JsonRows, Row, Sql, TableSpec, sql};

/// How many bytes of rows one statement writes.
///
/// Larger: a move takes more memory, on this node and on the server. Smaller: more statements.
const MAX_STATEMENT: usize = 2 * 1024 * 1024;

/// A column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Postgres derives it from another one.
    is_generated: bool,
}

/// A table that is copied.
pub(super) struct MovedTable {
    pub(super) name: &'static str,
    pub(super) columns: Vec<Column>,
    /// The positions of the columns of its key. A table without a key is copied whole, at the end.
    pub(super) key: Vec<usize>,
    texts: [Texts; 2],
}

/// The texts for one database.
struct Texts {
    /// `SELECT … FROM table`
    select: &'static str,
    /// `INSERT INTO table (…) SELECT … FROM `
    insert: &'static str,
    /// `DELETE FROM table`
    delete: &'static str,
    /// `(key, …)`
    key: &'static str,
    /// ` ORDER BY key, …`
    order: &'static str,
    /// ` WHERE (key, …) IN (SELECT … FROM `
    among: &'static str,
    rows: TableSpec,
    keys: TableSpec,
}

/// Every table of an account, but for the index of SQLite's keyword search.
pub(super) static TABLES: LazyLock<Vec<MovedTable>> = LazyLock::new(|| shapes().iter().map(MovedTable::new).collect());

/// The values of a row, in the order of the columns.
pub(super) type Values = Vec<Value>;

/// Which rows a table has: how many, and the sum of their digests, so that their order does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableDigest {
    pub(super) rows: u64,
    sum: u128,
}

impl MovedTable {
    fn new(shape: &TableShape) -> Self {
        let column = |(name, state): &(&'static str, &'static str)| Column {
            name,
            kind: Kind::of(state),
            is_generated: state.contains(" generated always "),
        };
        let columns: Vec<_> = shape.columns.iter().map(column).collect();
        let key: Vec<usize> = match shape.name {
            // It has no row twice.
            "listed_terms" => (0..columns.len()).collect(),
            _ => {
                let position = |name: &&str| columns.iter().position(|column| column.name == *name);
                shape.key.iter().map(|name| position(name).expect("a key is of columns")).collect()
            }
        };
        let texts = [Dialect::Postgres, Dialect::Sqlite].map(|dialect| Texts::new(shape.name, &columns, &key, dialect));
        Self { name: shape.name, columns, key, texts }
    }

    /// Whether its rows are known by a key.
    pub(super) fn has_key(&self) -> bool {
        !self.key.is_empty()
    }

    fn texts(&self, dialect: Dialect) -> &Texts {
        &self.texts[usize::from(dialect == Dialect::Sqlite)]
    }

    /// All rows.
    pub(super) fn select_all(&self, dialect: Dialect) -> Sql {
        Sql::text(self.texts(dialect).select)
    }

    /// The next rows in the order of the key.
    pub(super) fn select_after(&self, dialect: Dialect, after: Option<&[Value]>, limit: u32) -> Sql {
        let Texts { select, key, order, .. } = self.texts(dialect);
        let mut sql = Sql::text(select);
        if let Some(after) = after {
            let values = Sql::joined(after.iter().map(|value| bound(value.argument())), ", ");
            sql.append(Sql::text(" WHERE ")).append(Sql::text(key)).append(Sql::text(" > ("));
            sql.append(values).append(Sql::text(")"));
        }
        sql.append(Sql::text(order)).append(Sql::text(" LIMIT ")).append(bound(limit));
        sql
    }

    fn among(&self, dialect: Dialect, keys: &[Vec<Value>]) -> Sql {
        let Texts { among, keys: spec, .. } = self.texts(dialect);
        let mut rows = JsonRows::new();
        for key in keys {
            rows.push(&key.iter().map(|value| value.in_batch(dialect)).collect::<Vec<_>>());
        }
        let mut sql = Sql::text(among);
        sql.append(spec.batch(&rows)).append(Sql::text(")"));
        sql
    }

    /// The rows with some keys.
    pub(super) fn select_among(&self, dialect: Dialect, keys: &[Vec<Value>]) -> Sql {
        let mut sql = self.select_all(dialect);
        sql.append(self.among(dialect, keys));
        sql
    }

    /// Deletes the rows with some keys.
    pub(super) fn delete_among(&self, dialect: Dialect, keys: &[Vec<Value>]) -> Sql {
        let mut sql = self.delete_all(dialect);
        sql.append(self.among(dialect, keys));
        sql
    }

    /// Deletes all rows.
    pub(super) fn delete_all(&self, dialect: Dialect) -> Sql {
        Sql::text(self.texts(dialect).delete)
    }

    /// Inserts rows, in statements of a limited size.
    pub(super) fn inserts(&self, dialect: Dialect, rows: &[Values]) -> Result<Vec<Sql>, MoveError> {
        let Texts { insert, rows: spec, .. } = self.texts(dialect);
        let (mut statements, mut batch) = (Vec::new(), JsonRows::new());
        let written = |batch: &JsonRows| {
            // A row that is newer than others may conflict with one that is old here: it was noted, and comes again.
            let mut sql = Sql::text(insert);
            sql.append(spec.batch(batch)).append(Sql::text(" WHERE true ON CONFLICT DO NOTHING"));
            sql
        };
        for row in rows {
            let columns = self.columns.iter().zip(row).filter(|(column, _)| is_written(column, dialect));
            let mut encoded = Vec::with_capacity(row.len());
            for (column, value) in columns {
                if let Some(what) = value.unfit_for(column.kind, dialect) {
                    let key = Json::from_iter(self.key_of(row).iter().map(Value::noted)).to_string();
                    return Err(MoveError::Unfit { table: self.name, key, what });
                }
                encoded.push(value.in_batch(dialect));
            }
            batch.push(&encoded);
            if batch.bytes() > MAX_STATEMENT {
                statements.push(written(&batch));
                batch = JsonRows::new();
            }
        }
        if !batch.is_empty() {
            statements.push(written(&batch));
        }
        Ok(statements)
    }

    pub(super) fn read(&self, row: &Row) -> Result<Values, sqlx::Error> {
        self.columns.iter().enumerate().map(|(at, column)| Value::read(row, at, column.kind)).collect()
    }

    pub(super) fn key_of(&self, row: &[Value]) -> Vec<Value> {
        self.key.iter().map(|at| row[*at].clone()).collect()
    }

    /// Reads a key as a trigger noted it.
    pub(super) fn key_of_note(&self, noted: &str) -> Option<Vec<Value>> {
        let values: Vec<Json> = serde_json::from_str(noted).ok()?;
        if values.len() != self.key.len() {
            return None;
        }
        let kinds = self.key.iter().map(|at| self.columns[*at].kind);
        values.iter().zip(kinds).map(|(value, kind)| Value::of_note(value, kind)).collect()
    }

    /// Adds a row to the digest of the table. What Postgres derives does not count: SQLite may not have derived it yet.
    pub(super) fn add(&self, digest: &mut TableDigest, row: &[Value]) {
        let mut of_row = Sha256::new();
        for (column, value) in self.columns.iter().zip(row).filter(|(column, _)| !column.is_generated) {
            value.add_to(&mut of_row, column.kind);
        }
        let of_row: [u8; 32] = of_row.finalize().into();
        digest.rows += 1;
        digest.sum = digest.sum.wrapping_add(u128::from_be_bytes(*of_row.first_chunk().expect("it has 32 bytes")));
    }
}

/// A bound value.
pub(super) fn bound(value: impl Into<Argument>) -> Sql {
    sql!("{value}", value)
}

fn is_written(column: &Column, dialect: Dialect) -> bool {
    dialect == Dialect::Sqlite || !column.is_generated
}

fn lasting(text: String) -> &'static str {
    text.leak()
}

impl Texts {
    fn new(table: &'static str, columns: &[Column], key: &[usize], dialect: Dialect) -> Self {
        let list = |parts: Vec<String>| parts.join(", ");
        let selected = list(columns.iter().map(|column| column.kind.selected(column.name)).collect());
        let written: Vec<_> = columns.iter().filter(|column| is_written(column, dialect)).collect();
        let names = list(written.iter().map(|column| column.name.to_owned()).collect());
        let of_batch = |column: &&Column| column.kind.of_batch(column.name, dialect);
        let inserted = list(written.iter().map(of_batch).collect());
        let overriding = if dialect == Dialect::Postgres { " OVERRIDING SYSTEM VALUE" } else { "" };
        let keys: Vec<_> = key.iter().map(|at| &columns[*at]).collect();
        let key_names = list(keys.iter().map(|column| column.name.to_owned()).collect());
        let key_values = list(keys.iter().map(of_batch).collect());
        let spec = |columns: &[&Column]| TableSpec {
            name: table,
            columns: columns.iter().map(|column| (column.name, column.kind.in_batch())).collect::<Vec<_>>().leak(),
            key: key.len(),
        };
        Self {
            select: lasting(format!("SELECT {selected} FROM {table}")),
            insert: lasting(format!("INSERT INTO {table} ({names}){overriding} SELECT {inserted} FROM ")),
            delete: lasting(format!("DELETE FROM {table}")),
            key: lasting(format!("({key_names})")),
            order: lasting(format!(" ORDER BY {key_names}")),
            among: lasting(format!(" WHERE ({key_names}) IN (SELECT {key_values} FROM ")),
            rows: spec(&written),
            keys: spec(&keys),
        }
    }
}
