//! Seals: a row of the audit log for each day that is over, with a digest of what the ledger has of it.
//!
//! A day is sealed by the first write some minutes after its end. Later reads of the day, of a node whose database failed,
//! are added and sealed again by the same transaction. So a sealed day always is as its newest seal says, unless another
//! program changed it; and days are sealed in their order, so one without a seal is newer than all that have one.
//!
//! The audit log is chained, so seals can't be replaced unnoticed. Those of days that the ledger has forgotten stay.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::digest::{DayDigest, DaySummary};
use super::{Day, KEPT_DAYS, ReadGap, ReadKey, ReadSet};
use crate::store::audit::{self, Actor, AuditEntry, AuditRecord, AuditSource};
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// The action of a seal in the audit log.
const ACTION: &str = "reads.sealed";

/// What stands before the date in the subject of a seal.
const SUBJECT: &str = "reads ";

/// How many of the oldest days a ledger may have forgotten already: it forgets in the time zone of the account.
const MARGIN: i64 = 2;

/// Seals a locked day, which locks the end of the audit log. If `audit_state` was emptied, the day stays as it is: that is for
/// `formgate audit verify` to report, and must not keep anything else from being written.
pub(super) async fn seal(
    transaction: &mut Transaction,
    day: Day,
    seals: i64,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let DaySummary { digest, tokens, reads, gaps } = summarize(transaction.connection(), day).await?;
    let mut details = json!({ "digest": digest, "tokens": tokens, "reads": reads, "gaps": gaps });
    if seals > 0 {
        details["again"] = true.into();
    }
    let actor = Actor { name: "formgate".to_owned(), source: AuditSource::Gateway, network: None, identity: None };
    let entry = AuditEntry { action: ACTION, subject: format!("{SUBJECT}{}", day.date()), details };
    match audit::append(transaction, &actor, entry, now).await {
        Ok(()) => {
            let update = sql!("UPDATE read_days SET seals = {seals} WHERE day = {day}", seals = seals + 1, day = day.0);
            transaction.execute(update).await.map(drop)
        }
        Err(sqlx::Error::RowNotFound) => {
            tracing::warn!(day = %day.date(), "a day of reads can't be sealed: the state of the audit log is missing");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// What the ledger has of a day.
async fn summarize(connection: &mut PooledConnection, day: Day) -> Result<DaySummary, sqlx::Error> {
    let mut digest = DayDigest::new(day);
    let rows = sql!(
        "SELECT token_id, chunk, bitmap, forms FROM submission_reads WHERE day = {day} ORDER BY token_id, chunk",
        day = day.0,
    );
    let mut each = |row: Row| {
        let key = ReadKey { day, token: row.get(0)?, chunk: row.get(1)? };
        match ReadSet::read(&row, 2) {
            Ok(set) => digest.add(&key, &set),
            Err(_) => digest.add_malformed(&key, &row.get::<Vec<u8>>(2)?, row.text(3)?),
        }
        Ok(())
    };
    connection.fetch_each(rows, &mut each).await?;
    let gaps = sql!("SELECT node, began, ended FROM read_gaps WHERE day = {day} ORDER BY began, node", day = day.0);
    let mut gaps: Vec<(ReadGap, String)> = connection
        .fetch_all(gaps)
        .await?
        .iter()
        .map(|row| Ok((ReadGap { from: row.get(1)?, until: row.get(2)? }, row.get(0)?)))
        .collect::<Result<_, sqlx::Error>>()?;
    // A collation may order names in another way.
    gaps.sort_by(|(left, left_node), (right, right_node)| (left.from, left_node).cmp(&(right.from, right_node)));
    gaps.iter().for_each(|(gap, node)| digest.add_gap(node, gap));
    Ok(digest.finish())
}

/// Whether the ledger is as its seals say; if not, the first day that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ReadsVerdict {
    /// This many days have their newest seal's digest.
    Intact(u64),
    Changed(Date),
    Missing(Date),
    Added(Date),
}

/// The seals of each day.
#[derive(Debug, Default)]
pub(in crate::store) struct Seals(BTreeMap<Day, DaySeals>);

#[derive(Debug, Default, PartialEq, Eq)]
struct DaySeals {
    /// How many there are. `read_days` has the same number.
    count: i64,
    /// The digest of the newest. Empty if the details of its row were erased.
    digest: String,
    /// Whether each after the first says that it is one. Otherwise `read_days` was changed, so that a node sealed what another
    /// program had written.
    are_consecutive: bool,
}

impl Seals {
    /// Takes note of a row of the audit log, in the order of the rows.
    pub(in crate::store) fn note(&mut self, record: &AuditRecord) {
        if record.action == ACTION && record.source == AuditSource::Gateway.as_str() {
            self.add(&record.subject, &record.details);
        }
    }

    fn add(&mut self, subject: &str, details: &str) {
        let day = subject.strip_prefix(SUBJECT).and_then(|date| date.parse().ok()).and_then(Day::of_date);
        let Some(day) = day else { return };
        let details: Value = serde_json::from_str(details).unwrap_or_default();
        let nothing = || DaySeals { are_consecutive: true, ..DaySeals::default() };
        let seals = self.0.entry(day).or_insert_with(nothing);
        seals.are_consecutive &= (details["again"] == true) == (seals.count > 0);
        seals.count += 1;
        seals.digest = details["digest"].as_str().unwrap_or_default().to_owned();
    }
}

impl Store {
    /// Compares the ledger with its seals: those of the audit log up to the row `last`, which were verified, and later ones.
    pub(in crate::store) async fn verify_reads(&self, mut seals: Seals, last: i64) -> Result<ReadsVerdict, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let newer = sql!(
            "SELECT subject, details FROM audit_log
             WHERE id > {last} AND action = {action} AND source = {source}
             ORDER BY id",
            last,
            action = ACTION,
            source = AuditSource::Gateway.as_str(),
        );
        for row in reader.fetch_all(newer).await? {
            seals.add(row.text(0)?, row.text(1)?);
        }
        let Seals(seals) = seals;
        let newest_sealed = seals.last_key_value().map(|(day, _)| *day);
        let kept_from = Day(Day::of(Timestamp::now(), &TimeZone::UTC).0 - KEPT_DAYS + MARGIN);
        let rows = reader.fetch_all(days()).await?;
        let ledger: BTreeMap<Day, i64> =
            rows.iter().map(|row| Ok((Day(row.get(0)?), row.get(1)?))).collect::<Result<_, sqlx::Error>>()?;
        let kept = seals.keys().copied().filter(|day| *day >= kept_from);
        let (days, mut intact) = (ledger.keys().copied().chain(kept).collect::<BTreeSet<Day>>(), 0);
        for day in days {
            let summary = summarize(&mut reader, day).await?;
            match seals.get(&day) {
                Some(_) if summary.is_empty() => return Ok(ReadsVerdict::Missing(day.date())),
                Some(sealed) if sealed.digest != summary.digest || !sealed.are_consecutive => {
                    return Ok(ReadsVerdict::Changed(day.date()));
                }
                Some(sealed) if ledger.get(&day) != Some(&sealed.count) => {
                    return Ok(ReadsVerdict::Changed(day.date()));
                }
                Some(_) => intact += 1,
                None if newest_sealed.is_some_and(|newest| day < newest) => return Ok(ReadsVerdict::Added(day.date())),
                None => {}
            }
        }
        reader.end_transaction("COMMIT").await?;
        Ok(ReadsVerdict::Intact(intact))
    }
}

/// Every day that the ledger has something of, and how often it was sealed.
fn days() -> Sql {
    sql!(
        "SELECT day, CAST(max(seals) AS bigint) FROM (
           SELECT day, seals FROM read_days UNION ALL SELECT day, 0 FROM read_gaps
           UNION ALL SELECT DISTINCT day, 0 FROM submission_reads) AS days
         GROUP BY day {scans: the whole ledger is verified}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_seal_that_does_not_say_so_is_noticed() {
        let sealed = |rows: &[&str]| {
            let mut seals = Seals::default();
            rows.iter().for_each(|details| seals.add("reads 2026-11-28", details));
            seals.0.into_values().next().unwrap()
        };
        for (rows, are_consecutive) in [
            (&[r#"{"digest": "a"}"#][..], true),
            (&[r#"{"digest": "b"}"#, r#"{"digest": "a", "again": true}"#], true),
            (&[r#"{"digest": "b"}"#, r#"{"digest": "a"}"#], false),
            (&[r#"{"digest": "a", "again": true}"#], false),
        ] {
            let count = i64::try_from(rows.len()).unwrap();
            assert_eq!(sealed(rows), DaySeals { count, digest: "a".to_owned(), are_consecutive }, "{rows:?}");
        }
    }
}
