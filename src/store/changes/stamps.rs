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
use crate::store::statement::{Sql, sql};

/// A number of the log, and the stamp of the settling that gave it. Zero, without a stamp, is before the first change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMark {
    /// The number.
    pub seq: i64,
    /// The stamp.
    pub stamp: i64,
}

/// An expression: the stamp of the settling that gave a number.
pub(in crate::store) fn stamp_of(number: Sql) -> Sql {
    sql!("coalesce((SELECT h.stamp FROM change_stamps h WHERE h.seq >= {+number} ORDER BY h.seq LIMIT 1), 0)", number)
}

/// A condition: the log still has the history of a mark.
pub(in crate::store) fn is_in_log(mark: LogMark) -> Sql {
    if mark.seq == 0 {
        return Sql::text("TRUE");
    }
    sql!("{+stamp_now} = {stamp}", stamp_now = stamp_of(sql!("{seq}", seq = mark.seq)), stamp = mark.stamp)
}

/// Stores the stamp of a settling whose last number is `last`.
pub(in crate::store) async fn stamp(transaction: &mut Transaction, last: i64) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO change_stamps (seq, stamp, at) VALUES ({last}, {stamp}, {clock})
         ON CONFLICT (seq) DO UPDATE SET stamp = excluded.stamp, at = excluded.at",
        last,
        stamp = rand::random::<i64>(),
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// Removes the stamps that ceased to be the newest before an instant, and what forms were before that in the tree.
pub(super) async fn forget(transaction: &mut Transaction, until: Timestamp) -> Result<(), StoreError> {
    // The one that was the newest then is still that of cursors.
    let sql = sql!(
        "SELECT unstamped_seq,
           (SELECT max(seq) FROM change_stamps WHERE seq < coalesce(
             (SELECT seq FROM change_stamps WHERE at >= {until} ORDER BY seq LIMIT 1), last_seq + 1))
         FROM change_state
         {scans: stamps are read in order up to the first that is kept}",
        until,
    );
    let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(()) };
    let (before, kept): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
    let Some(kept) = kept.filter(|kept| *kept > before) else { return Ok(()) };
    let stamps = sql!("DELETE FROM change_stamps WHERE seq < {kept}", kept);
    let placements = sql!(
        "DELETE FROM form_placements
         WHERE form_id IN (SELECT form_id FROM form_placements WHERE seq > {before} AND seq <= {kept})
           AND EXISTS (
             SELECT 1 FROM form_placements l
             WHERE l.form_id = form_placements.form_id AND l.seq > form_placements.seq AND l.seq <= {kept})",
        before,
        kept,
    );
    let noted = sql!("UPDATE change_state SET unstamped_seq = {kept}", kept);
    for sql in [stamps, placements, noted] {
        transaction.execute(sql).await?;
    }
    Ok(())
}
