//! Copies every table by its key, in short transactions, which also record the progress in the target.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use sqlx::AssertSqlSafe;

use super::applying::{DOCUMENTS, REBUILD, read_rows};
use super::table::{MovedTable, TABLES, bound};
use super::value::Value;
use super::{MoveError, Moving};
use crate::store::derived::settle;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, Sql};

/// How many rows are copied at once at first, and at most. The number doubles while they are short.
///
/// Larger: rows with long texts take more memory. Smaller: more round trips.
pub(super) const FIRST_ROWS: u32 = 50;
const MOST_ROWS: u32 = 2_000;

/// Rows that are shorter than this together are followed by twice as many.
const SHORT: usize = 512 * 1024;

impl Moving {
    /// Copies some rows. Returns whether all tables are copied.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn copy_some(&mut self) -> Result<bool, MoveError> {
        if self.is_return {
            return Ok(true);
        }
        let Some((table, after)) = self.next_table().await? else { return Ok(true) };
        let limit = self.rows_at_once;
        let mut reader = self.source.reader().await?;
        let sql = table.select_after(reader.dialect(), after.as_deref(), limit);
        let (rows, bytes) = read_rows(&mut reader, table, sql).await?;
        drop(reader);
        let dialect = self.target.dialect();
        let mut transaction = self.begin_target().await?;
        for insert in table.inserts(dialect, &rows)? {
            transaction.execute(insert).await?;
        }
        let is_last = rows.len() < limit as usize;
        if is_last && table.name == DOCUMENTS && dialect == Dialect::Sqlite {
            transaction.command(REBUILD).await?;
        }
        let last = rows.last().map(|row| noted(&table.key_of(row)));
        note_progress(&mut transaction, table.name, last, is_last).await?;
        transaction.commit().await?;
        self.rows_at_once = if bytes < SHORT { (limit * 2).min(MOST_ROWS) } else { (limit / 2).max(FIRST_ROWS) };
        Ok(false)
    }

    /// The first table that is not copied, and the key of its last row that is.
    async fn next_table(&self) -> Result<Option<(&'static MovedTable, Option<Vec<Value>>)>, MoveError> {
        let mut reader = self.target.reader().await?;
        let rows =
            reader.fetch_all(Sql::text("SELECT relation, after_key, is_copied FROM formgate_move_tables")).await?;
        let mut begun: BTreeMap<String, (Option<String>, bool)> = BTreeMap::new();
        for row in &rows {
            begun.insert(row.get(0)?, (row.get(1)?, row.get(2)?));
        }
        let mut open = TABLES.iter().filter(|table| table.has_key());
        let next = open.find(|table| begun.get(table.name).is_none_or(|(_, is_copied)| !is_copied));
        Ok(next.map(|table| {
            let after = begun.get(table.name).and_then(|(after, _)| table.key_of_note(after.as_deref()?));
            (table, after)
        }))
    }

    /// Creates the indexes that are faster to create than to fill, and gathers statistics.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn index(&self) -> Result<(), MoveError> {
        if self.is_return {
            return Ok(());
        }
        settle::create_indexes(&self.target).await?;
        if self.target.dialect() == Dialect::Postgres {
            let names: Vec<_> = TABLES.iter().map(|table| table.name).collect();
            let mut transaction = self.target.begin().await?;
            transaction.command(AssertSqlSafe(format!("ANALYZE {}", names.join(", ")))).await?;
            transaction.commit().await?;
        }
        Ok(())
    }
}

/// A key as triggers note it.
fn noted(key: &[Value]) -> String {
    key.iter().map(Value::noted).collect::<Json>().to_string()
}

async fn note_progress(
    transaction: &mut Transaction,
    table: &'static str,
    after: Option<String>,
    is_copied: bool,
) -> Result<(), MoveError> {
    let sql = [
        Sql::text("INSERT INTO formgate_move_tables AS known (relation, after_key, is_copied) VALUES ("),
        Sql::joined([bound(table), bound(after), bound(is_copied)], ", "),
        Sql::text(
            ") ON CONFLICT (relation) DO UPDATE SET after_key = coalesce(excluded.after_key, known.after_key), \
             is_copied = excluded.is_copied",
        ),
    ];
    transaction.execute(Sql::joined(sql, "")).await?;
    Ok(())
}
