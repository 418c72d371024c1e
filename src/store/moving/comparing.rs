//! Compares both sides by counts and digests.

use std::collections::BTreeSet;

use super::MoveError;
use super::applying::{KEYS_AT_ONCE, by_table, keys_of};
use super::capture::Note;
use super::table::{MovedTable, TABLES, TableDigest};
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::Sql;

async fn digest(reader: &mut PooledConnection, table: &MovedTable, sql: Sql) -> Result<TableDigest, MoveError> {
    let mut digest = TableDigest::default();
    reader
        .fetch_each(sql, &mut |row| {
            table.add(&mut digest, &table.read(&row)?);
            Ok(())
        })
        .await?;
    Ok(digest)
}

/// The tables that differ, and how many rows there are.
pub(super) async fn compare(
    source: &mut PooledConnection,
    target: &mut PooledConnection,
    tables: impl Iterator<Item = &'static MovedTable>,
) -> Result<(BTreeSet<&'static str>, u64), MoveError> {
    let (mut differing, mut rows) = (BTreeSet::new(), 0);
    for table in tables {
        let of_source = digest(source, table, table.select_all(source.dialect())).await?;
        if of_source != digest(target, table, table.select_all(target.dialect())).await? {
            differing.insert(table.name);
        }
        rows += of_source.rows;
    }
    Ok((differing, rows))
}

/// The tables of which noted rows differ.
pub(super) async fn compare_noted(
    source: &mut PooledConnection,
    target: &mut Transaction,
    notes: &[Note],
) -> Result<BTreeSet<&'static str>, MoveError> {
    let (noted, mut differing) = (by_table(notes), BTreeSet::new());
    for table in &*TABLES {
        let Some(Some(keys)) = noted.get(table.name) else { continue };
        for keys in keys_of(table, keys).chunks(KEYS_AT_ONCE) {
            let of_source = digest(source, table, table.select_among(source.dialect(), keys)).await?;
            let sql = table.select_among(target.dialect(), keys);
            if of_source != digest(target.connection(), table, sql).await? {
                differing.insert(table.name);
            }
        }
    }
    Ok(differing)
}
