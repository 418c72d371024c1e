//! Replaces rows of the target with those of the source: rows with noted keys, or whole tables.

use std::collections::{BTreeMap, BTreeSet};

use super::MoveError;
use super::capture::Note;
use super::copying::FIRST_ROWS;
use super::table::{MovedTable, TABLES, Values, bound};
use super::value::Value;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Dialect, Sql};

/// How many rows are looked up by their keys at once.
///
/// Larger: rows with long texts take more memory. Smaller: more round trips while requests wait.
pub(super) const KEYS_AT_ONCE: usize = 200;

/// The table that SQLite's keyword index is of.
pub(super) const DOCUMENTS: &str = "listed_documents";
pub(super) const REBUILD: &str = "INSERT INTO listed_trigrams (listed_trigrams) VALUES ('rebuild')";

/// The keys that notes have of each table; none: the whole table.
pub(super) fn by_table(notes: &[Note]) -> BTreeMap<&str, Option<BTreeSet<&str>>> {
    let mut noted: BTreeMap<&str, Option<BTreeSet<&str>>> = BTreeMap::new();
    for note in notes {
        let keys = noted.entry(&note.table).or_insert_with(|| Some(BTreeSet::new()));
        match (keys.as_mut(), &note.key) {
            (Some(keys), Some(key)) => _ = keys.insert(key),
            _ => *keys = None,
        }
    }
    noted
}

pub(super) fn keys_of(table: &MovedTable, noted: &BTreeSet<&str>) -> Vec<Vec<Value>> {
    noted.iter().filter_map(|key| table.key_of_note(key)).collect()
}

/// Replaces the noted rows of the target, and all rows of the tables in `whole`, with what the reader sees. Returns the tables with
/// rows that could not be inserted yet.
pub(super) async fn apply(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    notes: &[Note],
    whole: &BTreeSet<&'static str>,
) -> Result<BTreeSet<&'static str>, MoveError> {
    let (noted, mut open) = (by_table(notes), BTreeSet::new());
    for table in &*TABLES {
        let keys = match noted.get(table.name) {
            _ if whole.contains(table.name) => None,
            None => continue,
            Some(keys) => keys.as_ref(),
        };
        let is_complete = match keys {
            None => replace(reader, target, table).await?,
            Some(keys) => replace_among(reader, target, table, &keys_of(table, keys)).await?,
        };
        if !is_complete {
            open.insert(table.name);
        }
    }
    Ok(open)
}

/// Replaces all rows of a table. Returns whether all were inserted.
async fn replace(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    table: &MovedTable,
) -> Result<bool, MoveError> {
    let (from, to) = (reader.dialect(), target.dialect());
    target.execute(table.delete_all(to)).await?;
    let mut is_complete = true;
    if table.has_key() {
        let mut after: Option<Vec<Value>> = None;
        loop {
            let sql = table.select_after(from, after.as_deref(), FIRST_ROWS * 4);
            let (rows, _) = read_rows(reader, table, sql).await?;
            is_complete &= insert(target, table, &rows).await?;
            match rows.last() {
                Some(last) if rows.len() == FIRST_ROWS as usize * 4 => after = Some(table.key_of(last)),
                _ => break,
            }
        }
    } else {
        let (rows, _) = read_rows(reader, table, table.select_all(from)).await?;
        is_complete = insert(target, table, &rows).await?;
    }
    if table.name == DOCUMENTS && to == Dialect::Sqlite {
        target.command(REBUILD).await?;
    }
    Ok(is_complete)
}

/// Replaces the rows with some keys. All are deleted before any is inserted: two may have exchanged what only one may have.
async fn replace_among(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    table: &MovedTable,
    keys: &[Vec<Value>],
) -> Result<bool, MoveError> {
    let (from, to) = (reader.dialect(), target.dialect());
    let is_indexed = table.name == DOCUMENTS && to == Dialect::Sqlite;
    for keys in keys.chunks(KEYS_AT_ONCE) {
        if is_indexed {
            // The index stores no texts: it has to be given the indexed ones.
            let (rows, _) = read_rows(target.connection(), table, table.select_among(to, keys)).await?;
            index(
                target,
                table,
                &rows,
                "INSERT INTO listed_trigrams (listed_trigrams, rowid, document) VALUES ('delete', ",
            )
            .await?;
        }
        target.execute(table.delete_among(to, keys)).await?;
    }
    let mut is_complete = true;
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let (rows, _) = read_rows(reader, table, table.select_among(from, keys)).await?;
        is_complete &= insert(target, table, &rows).await?;
        if is_indexed {
            index(target, table, &rows, "INSERT INTO listed_trigrams (rowid, document) VALUES (").await?;
        }
    }
    Ok(is_complete)
}

/// Writes documents to SQLite's keyword index.
async fn index(
    target: &mut Transaction,
    table: &MovedTable,
    rows: &[Values],
    statement: &'static str,
) -> Result<(), MoveError> {
    let document = table.columns.iter().position(|column| column.name == "document").expect("the table has documents");
    for row in rows {
        let values = [row[table.key[0]].argument(), row[document].argument()].map(bound);
        let mut sql = Sql::text(statement);
        sql.append(Sql::joined(values, ", ")).append(Sql::text(")"));
        target.execute(sql).await?;
    }
    Ok(())
}

/// Inserts rows. Returns whether all were inserted: none conflicts with another row.
async fn insert(target: &mut Transaction, table: &MovedTable, rows: &[Values]) -> Result<bool, MoveError> {
    let mut inserted = 0;
    for sql in table.inserts(target.dialect(), rows)? {
        inserted += target.execute(sql).await?;
    }
    Ok(inserted == rows.len() as u64)
}

/// Rows, and how many bytes they have.
pub(super) async fn read_rows(
    reader: &mut PooledConnection,
    table: &MovedTable,
    sql: Sql,
) -> Result<(Vec<Values>, usize), MoveError> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    reader
        .fetch_each(sql, &mut |row| {
            bytes += row.bytes();
            rows.push(table.read(&row)?);
            Ok(())
        })
        .await?;
    Ok((rows, bytes))
}
