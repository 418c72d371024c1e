//! The history of a log: which settling gave a number.
//!
//! A database can lose its newest commits: a crash with `synchronous_commit = off`, a standby that was promoted, a power
//! failure. Then the same numbers are given again, to other changes, and whoever has read the lost ones would miss as many.
//! So each settling that gives numbers stores a random stamp with its last one, in its own transaction. Whoever keeps a
//! number keeps its stamp too; another stamp at that number is another history.
//!
//! Stamps are kept as long as cursors are accepted, so one row for each settling of the last 90 days.

use jiff::Timestamp;

use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::Sql;

/// A number of the log, and the stamp of the settling that gave it. Zero, without a stamp, is before the first change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMark {
    /// The number.
    pub seq: i64,
    /// The stamp.
    pub stamp: i64,
}

/// Adds an expression, up to the number: the stamp of the settling that gave it. [`end_stamp_of`] ends it.
fn begin_stamp_of(sql: &mut Sql) -> &mut Sql {
    sql.push("coalesce((SELECT h.stamp FROM change_stamps h WHERE h.seq >= ")
}

fn end_stamp_of(sql: &mut Sql) -> &mut Sql {
    sql.push(" ORDER BY h.seq LIMIT 1), 0)")
}

/// Adds an expression: the stamp of the number in a column, or of a subquery.
pub(in crate::store) fn write_stamp_of(sql: &mut Sql, number: &'static str) {
    begin_stamp_of(sql).push(number);
    end_stamp_of(sql);
}

/// Adds an expression: the stamp of a number now.
pub(in crate::store) fn write_stamp_of_number(sql: &mut Sql, number: i64) {
    begin_stamp_of(sql).bind(number);
    end_stamp_of(sql);
}

/// Adds a condition: the log still has the history of a mark.
pub(in crate::store) fn write_is_in_log(sql: &mut Sql, mark: LogMark) {
    if mark.seq == 0 {
        sql.push("TRUE");
        return;
    }
    write_stamp_of_number(sql, mark.seq);
    sql.push(" = ").bind(mark.stamp);
}

/// Stores the stamp of a settling whose last number is `last`.
pub(in crate::store) async fn stamp(transaction: &mut Transaction, last: i64) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push("INSERT INTO change_stamps (seq, stamp, at) VALUES (").bind(last).push(", ").bind(rand::random::<i64>());
    sql.push(", ").push_now_plus(std::time::Duration::ZERO);
    sql.push(") ON CONFLICT (seq) DO UPDATE SET stamp = excluded.stamp, at = excluded.at");
    transaction.execute(sql).await?;
    Ok(())
}

/// Removes the stamps that ceased to be the newest before an instant, and what forms were before that in the tree.
pub(super) async fn forget(transaction: &mut Transaction, until: Timestamp) -> Result<(), StoreError> {
    // The one that was the newest then is still that of cursors.
    let mut sql = transaction.sql();
    sql.push("SELECT unstamped_seq, (SELECT max(seq) FROM change_stamps WHERE seq < coalesce(");
    sql.push("(SELECT seq FROM change_stamps WHERE at >= ").bind(until);
    sql.push(" ORDER BY seq LIMIT 1), last_seq + 1)) FROM change_state");
    let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(()) };
    let (before, kept): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
    let Some(kept) = kept.filter(|kept| *kept > before) else { return Ok(()) };
    let mut sql = transaction.sql();
    sql.push("DELETE FROM change_stamps WHERE seq < ").bind(kept);
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push("DELETE FROM form_placements WHERE form_id IN (SELECT form_id FROM form_placements WHERE seq > ");
    sql.bind(before).push(" AND seq <= ").bind(kept).push(") AND EXISTS (SELECT 1 FROM form_placements l ");
    sql.push("WHERE l.form_id = form_placements.form_id AND l.seq > form_placements.seq AND l.seq <= ").bind(kept);
    sql.push(")");
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push("UPDATE change_state SET unstamped_seq = ").bind(kept);
    transaction.execute(sql).await?;
    Ok(())
}
