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
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, Row, Sql, TableSpec};

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
const EVERY_ID: &str = "SELECT id FROM submissions UNION SELECT id FROM listed_submissions \
    UNION SELECT submission_id FROM listed_documents UNION SELECT submission_id FROM listed_terms \
    UNION SELECT submission_id FROM listed_by_label \
    UNION SELECT submission_id FROM submission_changes WHERE NOT deleted OR shown_in <> submission_id";

/// Whether there are no submissions to derive from.
const NO_SUBMISSIONS: &str = "SELECT NOT EXISTS (SELECT 1 FROM submissions)";

impl Notes {
    /// Takes at most `max_notes` notes out of the intake.
    pub(super) async fn take(transaction: &mut Transaction, max_notes: i64) -> Result<Self, StoreError> {
        let mut notes = Self::default();
        let mut sql = transaction.sql();
        sql.push_either(
            "DELETE FROM intake WHERE ctid = ANY (ARRAY (SELECT ctid FROM intake LIMIT ",
            "DELETE FROM intake WHERE rowid IN (SELECT rowid FROM intake LIMIT ",
        );
        sql.bind(max_notes).push_either("))", ")").push(" RETURNING submission_id, children, form_id, at");
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
        let below = "INSERT INTO intake (submission_id) SELECT c.id FROM submissions c WHERE c.parent_id IS NOT NULL \
            AND (SELECT p.form_id FROM submissions p WHERE p.id = c.parent_id)";
        let children = "INSERT INTO intake (submission_id) SELECT id FROM submissions WHERE parent_id";
        for (statement, ids) in [(below, &self.forms), (children, &self.parents)] {
            if !ids.is_empty() {
                let mut sql = transaction.sql();
                sql.push(statement).in_ids(ids);
                transaction.execute(sql).await?;
            }
        }
        Ok(())
    }
}

/// Adds a note for every submission. If there is none, deletes all derived rows, and the change log begins again.
async fn note_everything(transaction: &mut Transaction, numbering: &mut Numbering) -> Result<(), StoreError> {
    note_forms(transaction).await?;
    let mut sql = transaction.sql();
    sql.push(NO_SUBMISSIONS);
    let rows = transaction.fetch_all(sql).await?;
    let no_submissions = rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(false);
    let statements: &[&'static str] = match (no_submissions, transaction.dialect()) {
        (false, _) => &[],
        // Not TRUNCATE: it waits for readers, and readers with an older snapshot would see an empty table.
        (true, Dialect::Postgres) => &[
            "DELETE FROM listed_submissions",
            "DELETE FROM listed_documents",
            "DELETE FROM listed_terms",
            "DELETE FROM listed_by_label",
        ],
        (true, Dialect::Sqlite) => &[
            "DELETE FROM listed_submissions",
            "INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')",
            "DELETE FROM listed_documents",
            "DELETE FROM listed_terms",
            "DELETE FROM listed_by_label",
        ],
    };
    for statement in statements {
        let mut sql = transaction.sql();
        sql.push(statement);
        transaction.execute(sql).await?;
    }
    if no_submissions {
        counts::delete(transaction).await?;
        return numbering.begin_again(transaction).await;
    }
    let mut sql = transaction.sql();
    sql.push("INSERT INTO intake (submission_id) ").push(EVERY_ID);
    transaction.execute(sql).await?;
    Ok(())
}

/// Adds an expression: whether the intake is empty. Then the search tables are right, and every change has a number.
pub(in crate::store) fn write_is_settled(sql: &mut Sql) {
    sql.push("NOT EXISTS (SELECT 1 FROM intake)");
}

/// Whether the intake is empty.
pub(super) async fn is_settled(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    let mut sql = reader.sql();
    sql.push("SELECT ");
    write_is_settled(&mut sql);
    reader.fetch_one(sql).await?.get(0)
}

/// The submissions that notes are about, those that [`Notes::note_others`] would note included; at most `max_notes`.
pub(super) async fn noted(reader: &mut PooledConnection, max_notes: i64) -> Result<Vec<i64>, StoreError> {
    let mut sql = reader.sql();
    sql.push("SELECT submission_id FROM intake WHERE submission_id IS NOT NULL ");
    sql.push("UNION SELECT c.id FROM intake i JOIN submissions c ON c.parent_id = i.submission_id WHERE i.children ");
    sql.push("UNION SELECT c.id FROM intake i JOIN submissions p ON p.form_id = i.form_id ");
    sql.push("JOIN submissions c ON c.parent_id = p.id ");
    sql.push("UNION SELECT every.id FROM (SELECT 1 FROM intake WHERE submission_id IS NULL AND form_id IS NULL LIMIT 1) AS e ");
    sql.push("CROSS JOIN (").push(EVERY_ID).push(") AS every LIMIT ").bind(max_notes);
    Ok(reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// The next submissions by id, including deleted ones that still have derived rows.
pub(super) async fn ids_after(
    transaction: &mut Transaction,
    last: i64,
    max_notes: i64,
) -> Result<Vec<i64>, StoreError> {
    let mut sql = transaction.sql();
    for (at, (select, order)) in [
        ("SELECT id FROM submissions WHERE id > ", " ORDER BY id LIMIT "),
        ("SELECT id FROM listed_submissions WHERE id > ", " ORDER BY id LIMIT "),
        ("SELECT submission_id AS id FROM listed_documents WHERE submission_id > ", " ORDER BY submission_id LIMIT "),
        (
            "SELECT DISTINCT submission_id AS id FROM listed_terms WHERE submission_id > ",
            " ORDER BY submission_id LIMIT ",
        ),
        (
            "SELECT DISTINCT submission_id AS id FROM listed_by_label WHERE submission_id > ",
            " ORDER BY submission_id LIMIT ",
        ),
        (
            "SELECT submission_id AS id FROM submission_changes WHERE (NOT deleted OR shown_in <> submission_id) \
                AND submission_id > ",
            " ORDER BY submission_id LIMIT ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        sql.push(if at == 0 { "SELECT id FROM (" } else { " UNION SELECT id FROM (" });
        sql.push(select).bind(last).push(order).bind(max_notes).push(") AS following");
    }
    sql.push(" ORDER BY id LIMIT ").bind(max_notes);
    Ok(transaction.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}
