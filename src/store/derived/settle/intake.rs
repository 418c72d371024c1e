//! The table `intake`: notes of writers about what they changed.
//!
//! A note names a submission (and its children, if they may be affected), a form, or everything.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::counts;
use super::numbering::Numbering;
use super::placing::note_forms;
use crate::store::StoreError;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, Row, Sql, TableSpec, sql};

/// When the first and the last note of a submission were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotedAt {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl NotedAt {
    pub(super) fn now() -> Self {
        Self::at(Timestamp::now())
    }

    fn at(instant: Timestamp) -> Self {
        Self { first: instant, last: instant }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

/// Notes that were taken out of the intake.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// How many there were.
    pub(super) taken: usize,
    /// The submissions to derive from.
    pub(super) submissions: BTreeMap<i64, NotedAt>,
    /// Submissions whose children may now be shown elsewhere.
    parents: Vec<i64>,
    /// Forms whose `graduated` changed.
    forms: Vec<i64>,
    everything: bool,
}

/// The columns of a note of one submission.
const INTAKE: TableSpec =
    TableSpec { name: "intake", columns: &[("submission_id", "bigint"), ("at", "timestamptz")], key: 1 };

/// Every submission, existing or with derived rows left.
fn every_id() -> Sql {
    sql!(
        "SELECT id FROM submissions UNION SELECT id FROM listed_submissions
         UNION SELECT submission_id FROM listed_documents
         UNION SELECT submission_id FROM listed_terms
         UNION SELECT submission_id FROM listed_by_label
         UNION SELECT submission_id FROM submission_changes WHERE NOT deleted OR shown_in <> submission_id
         {scans: selects everything}",
    )
}

impl Notes {
    /// Takes at most `max_notes` notes out of the intake.
    pub(super) async fn take(transaction: &mut Transaction, max_notes: i64) -> Result<Self, StoreError> {
        let mut notes = Self::default();
        let sql = sql!(
            "DELETE FROM intake
             WHERE {pg: ctid = ANY (ARRAY (SELECT ctid FROM intake LIMIT {max_notes}))
                   | lite: rowid IN (SELECT rowid FROM intake LIMIT {max_notes})}
             RETURNING submission_id, children, form_id, at
             {scans: takes notes in any order}",
            max_notes,
        );
        transaction.fetch_each(sql, &mut |row| notes.add(&row)).await?;
        Ok(notes)
    }

    fn add(&mut self, row: &Row) -> Result<(), sqlx::Error> {
        self.taken += 1;
        let (submission, form): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(2)?);
        match (submission, form) {
            (Some(id), _) => {
                let at = NotedAt::at(row.get(3)?);
                self.submissions.entry(id).and_modify(|noted| noted.add(at)).or_insert(at);
                if row.get(1)? {
                    self.parents.push(id);
                }
            }
            (None, Some(form)) => self.forms.push(form),
            (None, None) => self.everything = true,
        }
        Ok(())
    }

    /// Puts back the notes of submissions that were not derived from.
    pub(super) async fn put_back(&self, transaction: &mut Transaction, ids: &[i64]) -> Result<(), StoreError> {
        let dialect = transaction.dialect();
        let mut rows = JsonRows::new();
        for (id, noted) in ids.iter().filter_map(|id| self.submissions.get_key_value(id)) {
            rows.push(&(id, JsonTimestamp::new(noted.first, dialect)));
            if noted.last != noted.first {
                rows.push(&(id, JsonTimestamp::new(noted.last, dialect)));
            }
        }
        INTAKE.insert(transaction, &rows).await
    }

    /// Whether these notes affect submissions that they don't name.
    pub(super) fn may_affect_others(&self) -> bool {
        self.everything || !self.parents.is_empty() || !self.forms.is_empty()
    }

    /// Adds notes for the submissions that these notes affect indirectly: children, and children of a form's
    /// submissions.
    pub(super) async fn note_others(
        &self,
        transaction: &mut Transaction,
        numbering: &mut Numbering,
    ) -> Result<(), StoreError> {
        if self.everything {
            return note_everything(transaction, numbering).await;
        }
        if !self.forms.is_empty() {
            let below = sql!(
                "INSERT INTO intake (submission_id)
                 SELECT c.id FROM submissions c
                 WHERE c.parent_id IS NOT NULL
                   AND (SELECT p.form_id FROM submissions p WHERE p.id = c.parent_id) {in forms}
                 {scans: a form seldom begins or ceases to be graduated}",
                forms = &self.forms,
            );
            transaction.execute(below).await?;
        }
        if !self.parents.is_empty() {
            let children = sql!(
                "INSERT INTO intake (submission_id) SELECT id FROM submissions WHERE parent_id {in parents}",
                parents = &self.parents,
            );
            transaction.execute(children).await?;
        }
        Ok(())
    }
}

/// Adds a note for every submission. If there is none, deletes all derived rows, and the change log begins again.
async fn note_everything(transaction: &mut Transaction, numbering: &mut Numbering) -> Result<(), StoreError> {
    note_forms(transaction).await?;
    let rows = transaction.fetch_all(sql!("SELECT NOT EXISTS (SELECT 1 FROM submissions)")).await?;
    let no_submissions = rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(false);
    if no_submissions {
        if transaction.dialect() == Dialect::Sqlite {
            transaction
                .execute(sql!("{lite: INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')}"))
                .await?;
        }
        // Not TRUNCATE: it waits for readers, and readers with an older snapshot would see an empty table.
        for statement in [
            sql!("DELETE FROM listed_submissions {scans: deletes all}"),
            sql!("DELETE FROM listed_documents {scans: deletes all}"),
            sql!("DELETE FROM listed_terms {scans: deletes all}"),
            sql!("DELETE FROM listed_by_label {scans: deletes all}"),
        ] {
            transaction.execute(statement).await?;
        }
        counts::delete(transaction).await?;
        return numbering.begin_again(transaction).await;
    }
    transaction
        .execute(sql!("INSERT INTO intake (submission_id) {+every_id} {scans: notes all}", every_id = every_id()))
        .await?;
    Ok(())
}

/// A condition: the intake is empty. Then the search tables are right, and every change has a number.
pub(in crate::store) fn is_settled() -> Sql {
    Sql::text("NOT EXISTS (SELECT 1 FROM intake)")
}

/// Up to how many notes are left to a settler of requests.
///
/// Larger: a move copies more of them while requests wait. Smaller: it settles more often, beside those of requests.
const MANY: i64 = 1_000;

/// Whether the intake is empty.
pub(super) async fn is_empty(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    reader.fetch_one(sql!("SELECT {+is_settled}", is_settled = is_settled())).await?.get(0)
}

/// Whether the intake has many notes: settling them takes longer than copying them.
pub(super) async fn is_long(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    let sql = sql!("SELECT count(*) = {many} FROM (SELECT 1 FROM intake LIMIT {many}) AS some_notes", many = MANY);
    reader.fetch_one(sql).await?.get(0)
}

/// The submissions that notes are about, those that [`Notes::note_others`] would note included; at most `max_notes`.
pub(super) async fn noted(reader: &mut PooledConnection, max_notes: i64) -> Result<Vec<i64>, StoreError> {
    let sql = sql!(
        "SELECT submission_id FROM intake WHERE submission_id IS NOT NULL
         UNION SELECT c.id FROM intake i JOIN submissions c ON c.parent_id = i.submission_id WHERE i.children
         UNION SELECT c.id FROM intake i JOIN submissions p ON p.form_id = i.form_id
           JOIN submissions c ON c.parent_id = p.id
         UNION SELECT every.id
           FROM (SELECT 1 FROM intake WHERE submission_id IS NULL AND form_id IS NULL LIMIT 1) AS e
           CROSS JOIN ({+every_id}) AS every
         LIMIT {max_notes}",
        every_id = every_id(),
        max_notes,
    );
    Ok(reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// The next submissions by id, including deleted ones that still have derived rows.
pub(super) async fn ids_after(
    transaction: &mut Transaction,
    last: i64,
    max_notes: i64,
) -> Result<Vec<i64>, StoreError> {
    let sql = sql!(
        "SELECT id FROM (SELECT id FROM submissions WHERE id > {last} ORDER BY id LIMIT {max_notes}) AS following
         UNION SELECT id FROM (
           SELECT id FROM listed_submissions WHERE id > {last} ORDER BY id LIMIT {max_notes}) AS following
         UNION SELECT id FROM (
           SELECT submission_id AS id FROM listed_documents
           WHERE submission_id > {last} ORDER BY submission_id LIMIT {max_notes}) AS following
         UNION SELECT id FROM (
           SELECT DISTINCT submission_id AS id FROM listed_terms
           WHERE submission_id > {last} ORDER BY submission_id LIMIT {max_notes}) AS following
         UNION SELECT id FROM (
           SELECT DISTINCT submission_id AS id FROM listed_by_label
           WHERE submission_id > {last} ORDER BY submission_id LIMIT {max_notes}) AS following
         UNION SELECT id FROM (
           SELECT submission_id AS id FROM submission_changes
           WHERE (NOT deleted OR shown_in <> submission_id) AND submission_id > {last}
           ORDER BY submission_id LIMIT {max_notes}) AS following
         ORDER BY id LIMIT {max_notes}",
        last,
        max_notes,
    );
    Ok(transaction.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}
