//! Adds to the ledger what a node has noted, and seals the days that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use jiff::Timestamp;

use super::gaps::{self, NodeChange};
use super::{Day, KEPT_DAYS, ReadKey, ReadSet, UnwrittenReads, seal};
use crate::store::engine::{Transaction, with_causes};
use crate::store::statement::sql;

/// How many rows are written by one statement.
///
/// Larger: its text is up to 16 KiB longer for each. Smaller: more statements after a load of scattered ids.
const ROWS_AT_ONCE: usize = 200;

/// Adds reads in a transaction whose other statements are done: sealing locks the end of the audit log until the commit.
/// Adding the same again changes nothing.
pub(in crate::store) async fn add(
    transaction: &mut Transaction,
    unwritten: &UnwrittenReads,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let over = sql!("SELECT day FROM read_days WHERE seals = 0 AND day < {before}", before = unwritten.over_before.0);
    let over = transaction.fetch_all(over).await?;
    let mut days = over.iter().map(|row| Ok(Day(row.get(0)?))).collect::<Result<BTreeSet<_>, sqlx::Error>>()?;
    let mut gaps: Vec<_> = unwritten.lost.map(|lost| (unwritten.node.clone(), lost)).into_iter().collect();
    // Once a day at least, as long as something is read.
    if unwritten.change == NodeChange::Open || !days.is_empty() {
        gaps.extend(gaps::take_crashed(transaction, now).await?);
    }
    gaps::change_node(transaction, unwritten, now).await?;

    let mut by_day: BTreeMap<Day, Vec<&(ReadKey, ReadSet)>> = BTreeMap::new();
    for read in &unwritten.reads {
        by_day.entry(read.0.day).or_default().push(read);
    }
    days.extend(by_day.keys());
    days.extend((!gaps.is_empty()).then_some(unwritten.today));
    let mut to_seal = Vec::new();
    for day in days {
        let seals = lock_day(transaction, day).await?;
        let mut is_changed = false;
        if day == unwritten.today {
            for (node, gap) in &gaps {
                is_changed |= gaps::record(transaction, day, node, *gap).await?;
            }
        }
        if let Some(reads) = by_day.get(&day) {
            is_changed |= add_to_day(transaction, day, reads).await?;
        }
        let is_over = day < unwritten.over_before;
        // A day that was sealed always is as its newest seal says.
        if (seals == 0 && is_over) || (seals > 0 && is_changed) {
            to_seal.push((day, seals));
        }
    }
    if let Some((first, _)) = to_seal.first()
        && transaction.deletes_old_rows()
    {
        // What is older and not sealed yet is forgotten after it is.
        forget(transaction, Day(unwritten.today.0 - KEPT_DAYS).min(*first)).await?;
    }
    for (day, seals) in to_seal {
        seal::seal(transaction, day, seals, now).await?;
    }
    Ok(())
}

/// Locks a day until the commit. Returns how often it was sealed.
async fn lock_day(transaction: &mut Transaction, day: Day) -> Result<i64, sqlx::Error> {
    let insert = sql!("INSERT INTO read_days (day, seals) VALUES ({day}, 0) ON CONFLICT DO NOTHING", day = day.0);
    transaction.execute(insert).await?;
    let lock = sql!("SELECT seals FROM read_days WHERE day = {day} {pg: FOR UPDATE}", day = day.0);
    transaction.connection().fetch_one(lock).await?.get(0)
}

/// Adds reads to a locked day. Returns whether they change it.
async fn add_to_day(
    transaction: &mut Transaction,
    day: Day,
    reads: &[&(ReadKey, ReadSet)],
) -> Result<bool, sqlx::Error> {
    let mut is_changed = false;
    for reads in reads.chunks(ROWS_AT_ONCE) {
        let mut stored = stored_sets(transaction, day, reads).await?;
        let mut changed = Vec::new();
        for (key, set) in reads.iter().copied() {
            let mut both = stored.remove(&(key.token, key.chunk)).unwrap_or_default();
            let before = both.clone();
            both.add(set);
            if both != before {
                let (bitmap, forms) = both.stored();
                changed.push((key.token, key.chunk, hex(&bitmap), forms));
            }
        }
        if changed.is_empty() {
            continue;
        }
        is_changed = true;
        let upsert = sql!(
            "INSERT INTO submission_reads (day, token_id, chunk, bitmap, forms)
             SELECT {day}, token_id, chunk, {pg: decode(bitmap, 'hex') | lite: unhex(bitmap)}, forms
             FROM {rows changed: token_id bigint, chunk bigint, bitmap text, forms text} AS changed
             WHERE TRUE
             ON CONFLICT (day, token_id, chunk) DO UPDATE SET bitmap = excluded.bitmap, forms = excluded.forms",
            day = day.0,
            changed = serde_json::to_string(&changed).expect("numbers and texts are JSON"),
        );
        transaction.execute(upsert).await?;
    }
    Ok(is_changed)
}

/// What a day already has of some rows, by token and chunk.
async fn stored_sets(
    transaction: &mut Transaction,
    day: Day,
    reads: &[&(ReadKey, ReadSet)],
) -> Result<BTreeMap<(i64, i64), ReadSet>, sqlx::Error> {
    let distinct = |of: fn(&ReadKey) -> i64| -> Vec<i64> {
        reads.iter().map(|(key, _)| of(key)).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let select = sql!(
        "SELECT token_id, chunk, bitmap, forms FROM submission_reads
         WHERE day = {day} AND token_id {in tokens} AND chunk {in chunks}",
        day = day.0,
        tokens = distinct(|key| key.token),
        chunks = distinct(|key| key.chunk),
    );
    let mut stored = BTreeMap::new();
    for row in transaction.fetch_all(select).await? {
        match ReadSet::read(&row, 2) {
            Ok(set) => _ = stored.insert((row.get(0)?, row.get(1)?), set),
            // Written by another program. It must not keep the rest from being written, and the seal tells.
            Err(error) => tracing::warn!(
                day = %day.date(),
                token = row.get::<i64>(0)?,
                cause = with_causes(&error),
                "a malformed row of the ledger of reads is replaced"
            ),
        }
    }
    Ok(stored)
}

/// Deletes what is older than a day. The seals stay in the audit log.
async fn forget(transaction: &mut Transaction, oldest: Day) -> Result<(), sqlx::Error> {
    let oldest = oldest.0;
    transaction.execute(sql!("DELETE FROM submission_reads WHERE day < {oldest}", oldest)).await?;
    transaction.execute(sql!("DELETE FROM read_gaps WHERE day < {oldest}", oldest)).await?;
    transaction.execute(sql!("DELETE FROM read_days WHERE day < {oldest}", oldest)).await.map(drop)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}
