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

/// The tables that differ.
pub(super) async fn compare(
    source: &mut PooledConnection,
    target: &mut PooledConnection,
    tables: impl Iterator<Item = &'static MovedTable>,
) -> Result<BTreeSet<&'static str>, MoveError> {
    let mut differing = BTreeSet::new();
    for table in tables {
        let [all, of_target] = [&source, &target].map(|side| table.select_all(side.dialect()));
        let (of_source, of_target) = tokio::try_join!(digest(source, table, all), digest(target, table, of_target))?;
        if of_source != of_target {
            differing.insert(table.name);
        }
    }
    Ok(differing)
}

/// The tables whose noted rows differ.
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
