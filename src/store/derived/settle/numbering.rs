//! Numbers the changes that a settler notices, in the change log ([`crate::store::derived::changes`]).
//!
//! A settler compares what submissions show now with what they showed when one looked before, and gives those that differ
//! the next numbers, in the transaction that takes the notes. Settlers run one at a time, so a number is visible before
//! any later one is given, and a transaction that commits late gets its numbers late. No reader misses any.
//!
//! Several changes of a submission are one event until it may have been sent: a created submission whose answers come later is
//! still `created`. Whether it may have been sent is decided here and not by the clock ([`release`]): senders send no event
//! before it is released, and a settler releases the events that are due in the transaction in which it numbers. So a settler
//! never changes an event that is being sent, however late a transaction commits.
//!
//! A submission has one row, which moves to the end when the submission changes. So a first load and following the
//! changes are the same loop, and the log never has more rows than there are submissions, apart from deletions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::intake::NotedAt;
use super::reading::ContentById;
use super::release::{self, Taken};
use crate::store::StoreError;
use crate::store::derived::changes::{new_epoch, stamp};
use crate::store::engine::Transaction;
use crate::store::statement::{JsonRows, JsonTimestamp, Row, TableSpec, sql};

/// After how many times the settle time the changes of a submission are an event although they go on.
pub(in crate::store) const MAX_BURST: u32 = 10;

const CHANGES: TableSpec = TableSpec {
    name: "submission_changes",
    columns: &[
        ("submission_id", "bigint"),
        ("shown_in", "bigint"),
        ("form_id", "bigint"),
        ("shown", "bigint"),
        ("matched", "bigint"),
        ("deleted", "boolean"),
        ("seq", "bigint"),
        ("listed_seq", "bigint"),
        ("created_event", "bigint"),
        ("updated_event", "bigint"),
        ("deleted_event", "bigint"),
        ("burst_at", "timestamptz"),
        ("changed_at", "timestamptz"),
    ],
    key: 1,
};

const MOVES: TableSpec = TableSpec {
    name: "submission_moves",
    columns: &[("submission_id", "bigint"), ("form_id", "bigint"), ("seq", "bigint"), ("changed_at", "timestamptz")],
    key: 2,
};

/// Instead of the number of a deleted submission's `created`: it was sent, or is from before the log. No number is as low.
const KNOWN: i64 = 0;

/// Whether the changes that are numbered are sent to webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// They are.
    Sent,
    /// They are only in the feed.
    Quiet,
}

/// What differs of a submission that was listed, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SubmissionChange {
    /// Only filters see it.
    Matched,
    Updated,
    Created,
    Deleted,
}

/// A row of the log, with the columns of [`CHANGES`].
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    shown_in: i64,
    form: i64,
    shown: Option<i64>,
    matched: Option<i64>,
    deleted: bool,
    seq: Option<i64>,
    listed_seq: Option<i64>,
    created_event: Option<i64>,
    updated_event: Option<i64>,
    deleted_event: Option<i64>,
    burst_at: Timestamp,
    changed_at: Timestamp,
}

impl Entry {
    fn new(form: i64, noted: NotedAt) -> Self {
        Self {
            shown_in: 0,
            form,
            shown: None,
            matched: None,
            deleted: false,
            seq: None,
            listed_seq: None,
            created_event: None,
            updated_event: None,
            deleted_event: None,
            burst_at: noted.first,
            changed_at: noted.last,
        }
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            shown_in: row.get(1)?,
            form: row.get(2)?,
            shown: row.get(3)?,
            matched: row.get(4)?,
            deleted: row.get(5)?,
            seq: row.get(6)?,
            listed_seq: row.get(7)?,
            created_event: row.get(8)?,
            updated_event: row.get(9)?,
            deleted_event: row.get(10)?,
            burst_at: row.get(11)?,
            changed_at: row.get(12)?,
        })
    }

    fn is_listed(&self, id: i64) -> bool {
        self.shown_in == id && !self.deleted
    }

    /// The submission of a graduated form that shows it.
    fn parent(&self, id: i64) -> Option<i64> {
        (self.shown_in != id).then_some(self.shown_in)
    }

    /// Gives a change the number `seq`.
    fn change(&mut self, change: SubmissionChange, seq: i64, noted: NotedAt, numbering: &Numbering, settle: Duration) {
        let event = (numbering.events == Events::Sent).then_some(seq);
        let is_unsent = self.created_event.is_some_and(|created| created > numbering.released);
        // Receivers know it from before, and are not told that it was gone in between.
        let is_known =
            self.created_event == Some(KNOWN) && self.deleted_event.is_none_or(|deleted| deleted > numbering.released);
        // A clock that was set back goes on from an instant before the last change.
        let continues = noted.first.duration_since(self.changed_at).unsigned_abs() < settle;
        let is_same_event = continues && noted.first < self.burst_at + settle * MAX_BURST;
        match change {
            SubmissionChange::Matched => {}
            SubmissionChange::Created => {
                (self.listed_seq, self.deleted) = (Some(seq), false);
                (self.created_event, self.updated_event) = if is_known { (None, event) } else { (event, None) };
                self.deleted_event = None;
            }
            // A submission and its answers may come in several transactions, and are one event.
            SubmissionChange::Updated if is_unsent && self.updated_event.is_none() && is_same_event => {
                self.created_event = event.or(self.created_event);
            }
            SubmissionChange::Updated => self.updated_event = event.or(self.updated_event),
            SubmissionChange::Deleted => {
                self.deleted = true;
                self.created_event = (!is_unsent).then_some(KNOWN);
                (self.updated_event, self.deleted_event) = (None, event);
            }
        }
        if !continues || change == SubmissionChange::Created {
            self.burst_at = noted.first;
        }
        (self.seq, self.changed_at) = (Some(seq), noted.last);
    }
}

/// Gives numbers, within one transaction.
#[derive(Debug)]
pub(super) struct Numbering {
    /// The last number that was given before.
    before: i64,
    last: i64,
    /// Events beyond this number were sent to nobody.
    released: i64,
    events: Events,
}

impl Numbering {
    /// The transaction must be the only one to settle.
    pub(super) async fn begin(transaction: &mut Transaction, events: Events) -> Result<Self, StoreError> {
        // A dump that is restored while triggers are disabled brings rows with later numbers. The setting: the rows of a
        // dump are dropped, and ours are not.
        let sql = sql!(
            "SELECT {pg: greatest | lite: max}(last_seq, coalesce((SELECT max(seq) FROM submission_changes), 0)),
               released_seq{pg: , set_config('formgate.numbers', 'on', true)}
             FROM change_state",
        );
        let rows = transaction.fetch_all(sql).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let last = row.get(0)?;
        Ok(Self { before: last, last, released: row.get(1)?, events })
    }

    /// The number that is given next.
    pub(super) fn following(&self) -> i64 {
        self.last + 1
    }

    /// Gives the next number.
    pub(super) fn take_number(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    /// Begins the log again: every submission is gone at once.
    pub(super) async fn begin_again(&mut self, transaction: &mut Transaction) -> Result<(), StoreError> {
        transaction.execute(sql!("DELETE FROM submission_changes {scans: deletes all}")).await?;
        transaction.execute(sql!("DELETE FROM submission_moves {scans: deletes all}")).await?;
        let sql = sql!("UPDATE change_state SET forgotten_seq = 0, epoch = {+epoch}", epoch = new_epoch());
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Writes the last number, and releases the events that are due.
    pub(super) async fn end(self, transaction: &mut Transaction, taken: Taken) -> Result<(), StoreError> {
        let settle = transaction.settle_time();
        let sql = sql!(
            "UPDATE change_state SET last_seq = {last}, released_seq = {+released}",
            last = self.last,
            released = release::released(taken, settle, self.released, self.last),
        );
        transaction.execute(sql).await?;
        if self.last > self.before {
            stamp(transaction, self.last).await?;
        }
        Ok(())
    }

    /// Numbers what differs of submissions. `noted` has when that was; those missing there are only compared: what they
    /// showed before need not be known.
    pub(super) async fn number(
        &mut self,
        transaction: &mut Transaction,
        ids: &[i64],
        contents: &ContentById,
        noted: &BTreeMap<i64, NotedAt>,
    ) -> Result<u64, StoreError> {
        let entries = read(transaction, ids).await?;
        let mut changed = Changed::default();
        for id in ids {
            changed.compare(*id, entries.get(id), contents, noted.get(id).copied());
        }
        // Parents are only noted themselves if they changed.
        let missing = changed.shown.keys().filter(|parent| !changed.entries.contains_key(*parent));
        let missing: Vec<i64> = missing.filter(|parent| !entries.contains_key(*parent)).copied().collect();
        let mut others = read(transaction, &missing).await?;
        others.extend(entries);
        changed.add_parents(&others);
        let count = changed.changes.len() as u64;
        self.write(transaction, changed).await?;
        Ok(count)
    }

    async fn write(&mut self, transaction: &mut Transaction, mut changed: Changed) -> Result<(), StoreError> {
        let (dialect, settle) = (transaction.dialect(), transaction.settle_time());
        let instant = |at: Timestamp| JsonTimestamp::new(at, dialect);
        let mut moves = JsonRows::new();
        for (id, (change, noted)) in &changed.changes {
            let seq = self.take_number();
            let entry = changed.entries.get_mut(id).expect("what changed has an entry");
            if let Some(from) = changed.moved_from.get(id) {
                moves.push(&(id, from, seq, instant(noted.last)));
            }
            entry.change(*change, seq, *noted, self, settle);
        }
        CHANGES.delete(transaction, &changed.forgotten).await?;
        let mut rows = JsonRows::new();
        for (id, entry) in &changed.entries {
            rows.push(&(
                id,
                entry.shown_in,
                entry.form,
                entry.shown,
                entry.matched,
                entry.deleted,
                entry.seq,
                entry.listed_seq,
                entry.created_event,
                entry.updated_event,
                entry.deleted_event,
                instant(entry.burst_at),
                instant(entry.changed_at),
            ));
        }
        CHANGES.upsert(transaction, &rows).await?;
        MOVES.upsert(transaction, &moves).await
    }
}

/// What differs between the log and the submissions.
#[derive(Debug, Default)]
struct Changed {
    /// Rows to write.
    entries: BTreeMap<i64, Entry>,
    changes: BTreeMap<i64, (SubmissionChange, NotedAt)>,
    /// The forms that submissions left for others.
    moved_from: BTreeMap<i64, i64>,
    /// Parents that show something else now.
    shown: BTreeMap<i64, NotedAt>,
    /// Rows of children that are gone.
    forgotten: Vec<i64>,
}

impl Changed {
    /// Compares one submission with its row.
    fn compare(&mut self, id: i64, before: Option<&Entry>, contents: &ContentById, noted: Option<NotedAt>) {
        let is_noted = noted.is_some();
        let noted = noted.unwrap_or_else(NotedAt::now);
        let now = contents.get(&id);
        let was_listed = before.is_some_and(|entry| entry.is_listed(id));
        let is_listed = now.is_some_and(|content| content.shown_in == id);
        // Of a row that was written by a migration it is not known what was shown.
        let differs = |stored: Option<i64>, current: i64| stored.map_or(is_noted, |stored| stored != current);

        let parents = [before.and_then(|entry| entry.parent(id)), now.map(|content| content.shown_in)];
        let parents: BTreeSet<i64> = parents.into_iter().flatten().filter(|parent| *parent != id).collect();
        let is_same_child = match (before, now) {
            (Some(entry), Some(content)) => entry.shown_in == content.shown_in && !differs(entry.shown, content.shown),
            _ => false,
        };
        if !is_same_child {
            for parent in parents {
                self.shown.entry(parent).and_modify(|at| at.add(noted)).or_insert(noted);
            }
        }

        let change = match (was_listed, is_listed) {
            (false, true) => Some(SubmissionChange::Created),
            (true, false) => Some(SubmissionChange::Deleted),
            (true, true) => {
                let (entry, content) = before.zip(now).expect("it was listed, and is");
                if differs(entry.shown, content.shown) {
                    Some(SubmissionChange::Updated)
                } else {
                    differs(entry.matched, content.matched).then_some(SubmissionChange::Matched)
                }
            }
            (false, false) => None,
        };
        // A reader of the form before has to learn that it went, also if it was deleted in between.
        if let (Some(entry), Some(content), true) = (before, now, is_listed)
            && entry.seq.is_some()
            && entry.form != content.form
        {
            self.moved_from.insert(id, entry.form);
        }
        let Some(form) = now.map(|content| content.form).or(before.map(|entry| entry.form)) else { return };
        let mut entry = before.cloned().unwrap_or_else(|| Entry::new(form, noted));
        match now {
            Some(content) => {
                // A deletion stays one of the form that it was listed in.
                if is_listed || entry.seq.is_none() {
                    entry.form = content.form;
                }
                entry.shown_in = content.shown_in;
                (entry.shown, entry.matched) = (Some(content.shown), Some(content.matched));
            }
            None if !was_listed && entry.seq.is_none() => {
                self.forgotten.push(id);
                return;
            }
            None => (entry.shown_in, entry.shown, entry.matched) = (id, None, None),
        }
        if now.is_none() && !was_listed {
            entry.deleted = true;
        }
        if before != Some(&entry) || change.is_some() {
            self.entries.insert(id, entry);
        }
        self.changes.extend(change.map(|change| (id, (change, noted))));
    }

    /// Adds the parents that show something else now.
    fn add_parents(&mut self, before: &BTreeMap<i64, Entry>) {
        for (parent, noted) in std::mem::take(&mut self.shown) {
            let entry = self.entries.get(&parent).or_else(|| before.get(&parent));
            let Some(entry) = entry.filter(|entry| entry.is_listed(parent)).cloned() else { continue };
            self.entries.insert(parent, entry);
            let change = self.changes.entry(parent).or_insert((SubmissionChange::Updated, noted));
            change.0 = change.0.max(SubmissionChange::Updated);
            change.1.add(noted);
        }
    }
}

async fn read(transaction: &mut Transaction, ids: &[i64]) -> Result<BTreeMap<i64, Entry>, StoreError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = sql!(
        "SELECT {+columns} FROM submission_changes WHERE submission_id {in ids}",
        columns = CHANGES.column_names(),
        ids,
    );
    let rows = transaction.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, Entry::read(row)?))).collect::<Result<_, sqlx::Error>>()?)
}
