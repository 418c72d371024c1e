//! Writes the differences between what should be derived and what is stored, and adjusts the counts.

use std::collections::HashMap;

use serde::Serialize;

use super::derived::{Derived, NOTHING};
use super::reading::DerivedById;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, TableSpec, UNINDEXED_END, sql};

/// How many bytes of rows one statement writes. A long answer may have millions of lines, each of which is a row.
///
/// Larger: statements take more memory, and may take longer than they may. Smaller: more statements.
const MAX_STATEMENT: usize = 4 * 1024 * 1024;

pub(super) const SUBMISSIONS: TableSpec = TableSpec {
    name: "listed_submissions",
    columns: &[
        ("id", "bigint"),
        ("form_id", "bigint"),
        ("status", "text"),
        ("submitter_id", "bigint"),
        ("created_at", "timestamptz"),
        ("updated_at", "timestamptz"),
    ],
    key: 1,
};

pub(super) const DOCUMENTS: TableSpec = TableSpec {
    name: "listed_documents",
    columns: &[("submission_id", "bigint"), ("shown_in", "bigint"), ("document", "text")],
    key: 1,
};

pub(super) const TERMS: TableSpec = TableSpec {
    name: "listed_terms",
    columns: &[("submission_id", "bigint"), ("shown_in", "bigint"), ("term", "bigint")],
    key: 1,
};

const LABELS: TableSpec = TableSpec {
    name: "listed_by_label",
    columns: &[
        ("submission_id", "bigint"),
        ("label_id", "bigint"),
        ("shared", "boolean"),
        ("updated_at", "timestamptz"),
    ],
    key: 1,
};

const COUNTS: TableSpec = TableSpec {
    name: "listed_counts",
    columns: &[("counted", "text"), ("key", "bigint"), ("status", "text"), ("listed", "bigint")],
    key: 3,
};

/// How many submissions were wrong in the search tables.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct Differences {
    /// In the list.
    pub(in crate::store) listed: u64,
    /// In the document or the terms.
    pub(in crate::store) documents: u64,
    /// In the labels.
    pub(in crate::store) labels: u64,
    /// In the change log.
    pub(in crate::store) changes: u64,
}

impl std::ops::AddAssign for Differences {
    fn add_assign(&mut self, other: Self) {
        self.listed += other.listed;
        self.documents += other.documents;
        self.labels += other.labels;
        self.changes += other.changes;
    }
}

/// Rows that replace those of the same submissions.
struct RowReplacement {
    /// The submissions whose rows are deleted.
    removed: Vec<i64>,
    /// Each is written by a statement.
    batches: Vec<JsonRows>,
}

impl RowReplacement {
    fn new() -> Self {
        Self { removed: Vec::new(), batches: Vec::new() }
    }

    fn push(&mut self, row: &impl Serialize) {
        if self.batches.last().is_none_or(|batch| batch.bytes() > MAX_STATEMENT) {
            self.batches.push(JsonRows::new());
        }
        self.batches.last_mut().expect("one was added").push(row);
    }
}

/// Everything that has to be written.
struct DerivedChanges<'d> {
    submissions: RowReplacement,
    documents: RowReplacement,
    /// Those that are not indexed: their submissions, those that show them, and their texts.
    long_documents: Vec<(i64, i64, &'d str)>,
    terms: RowReplacement,
    labels: RowReplacement,
    counts: HashMap<(&'static str, i64, String), i64>,
    differences: Differences,
}

/// Updates the search tables from `stored` to `wanted`.
pub(super) async fn write(
    transaction: &mut Transaction,
    ids: &[i64],
    wanted: &DerivedById,
    stored: &DerivedById,
) -> Result<Differences, StoreError> {
    let changes = DerivedChanges::between(ids, wanted, stored, transaction.dialect());
    let DerivedChanges { submissions, documents, long_documents, terms, labels, counts, differences } = changes;
    SUBMISSIONS.delete(transaction, &submissions.removed).await?;
    for batch in &submissions.batches {
        SUBMISSIONS.upsert(transaction, batch).await?;
    }
    write_documents(transaction, &documents, &long_documents).await?;
    for (table, replacement) in [(TERMS, terms), (LABELS, labels)] {
        table.delete(transaction, &replacement.removed).await?;
        for batch in &replacement.batches {
            table.insert(transaction, batch).await?;
        }
    }
    let mut rows = JsonRows::new();
    // Sorted, so that concurrent writers lock rows in the same order.
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, change)| *change != 0).collect();
    counts.sort_unstable();
    counts.iter().for_each(|((counted, key, status), change)| rows.push(&(counted, key, status, change)));
    COUNTS.add(transaction, &rows, "listed").await?;
    Ok(differences)
}

/// Replaces documents. On SQLite, the full-text index needs the old and the new text of those that it contains.
async fn write_documents(
    transaction: &mut Transaction,
    documents: &RowReplacement,
    long_documents: &[(i64, i64, &str)],
) -> Result<(), StoreError> {
    let has_index = transaction.dialect() == Dialect::Sqlite;
    if has_index && !documents.removed.is_empty() {
        let sql = sql!(
            "INSERT INTO listed_trigrams (listed_trigrams, rowid, document)
             SELECT 'delete', submission_id, document FROM listed_documents
             WHERE submission_id {in ids} AND substr(document, -2) <> {end}",
            ids = &documents.removed,
            end = UNINDEXED_END,
        );
        transaction.execute(sql).await?;
    }
    DOCUMENTS.delete(transaction, &documents.removed).await?;
    for batch in &documents.batches {
        DOCUMENTS.insert(transaction, batch).await?;
        if has_index {
            let sql = sql!(
                "INSERT INTO listed_trigrams (rowid, document) SELECT submission_id, document FROM {+batch}",
                batch = DOCUMENTS.batch(batch),
            );
            transaction.execute(sql).await?;
        }
    }
    for (id, shown_in, text) in long_documents {
        let sql = sql!(
            "INSERT INTO listed_documents (submission_id, shown_in, document) VALUES ({id}, {shown_in}, {text})",
            id = *id,
            shown_in = *shown_in,
            text = *text,
        );
        transaction.execute(sql).await?;
    }
    Ok(())
}

impl<'d> DerivedChanges<'d> {
    fn between(ids: &[i64], wanted: &'d DerivedById, stored: &DerivedById, dialect: Dialect) -> Self {
        let mut changes = Self {
            submissions: RowReplacement::new(),
            documents: RowReplacement::new(),
            long_documents: Vec::new(),
            terms: RowReplacement::new(),
            labels: RowReplacement::new(),
            counts: HashMap::new(),
            differences: Differences::default(),
        };
        for id in ids {
            let stored = stored.get(id).unwrap_or(&NOTHING);
            changes.add(*id, wanted.get(id).unwrap_or(&NOTHING), stored, dialect);
        }
        changes
    }

    fn add(&mut self, id: i64, wanted: &'d Derived, stored: &Derived, dialect: Dialect) {
        if wanted == stored {
            return;
        }
        for (derived, change) in [(wanted, 1), (stored, -1)] {
            for (counted, key, status) in derived.counts() {
                *self.counts.entry((counted, key, status.to_owned())).or_default() += change;
            }
        }
        if wanted.listed != stored.listed {
            self.differences.listed += 1;
            match &wanted.listed {
                Some(listed) => {
                    let [created, updated] =
                        [listed.created_at, listed.updated_at].map(|instant| JsonTimestamp::new(instant, dialect));
                    let row = (id, listed.form, &listed.status, listed.submitter, created, updated);
                    self.submissions.push(&row);
                }
                None => self.submissions.removed.push(id),
            }
        }
        if wanted.document != stored.document {
            if stored.document.is_some() {
                self.documents.removed.push(id);
            }
            match &wanted.document {
                // By itself, without the copies that encoding it in a batch takes.
                Some(document) if document.text.ends_with(UNINDEXED_END) => {
                    self.long_documents.push((id, document.shown_in, &document.text));
                }
                Some(document) => self.documents.push(&(id, document.shown_in, &document.text)),
                None => {}
            }
        }
        if wanted.terms != stored.terms {
            if !stored.terms.is_empty() {
                self.terms.removed.push(id);
            }
            wanted.terms.iter().for_each(|(shown_in, term)| self.terms.push(&(id, shown_in, term)));
        }
        self.differences.documents += u64::from(wanted.document != stored.document || wanted.terms != stored.terms);
        if wanted.labels != stored.labels {
            self.differences.labels += 1;
            if !stored.labels.is_empty() {
                self.labels.removed.push(id);
            }
            for (label, shared, instant) in &wanted.labels {
                self.labels.push(&(id, label, shared, JsonTimestamp::new(*instant, dialect)));
            }
        }
    }
}
