//! Submissions, their answers and all that hangs on them as rows.
//!
//! On Postgres, the database folds answers by itself, and makes the documents and the lines by triggers; for submissions
//! that are new, it is told when to make them ([`Documents`]). On SQLite, whose triggers rest during an import, all of it is
//! made here.

use std::collections::HashSet;

use super::documents::Documents;
use super::record::SubmissionRecord;
use super::rest_triggers;
use super::rows::{Instant, Rows, Table};
use super::write::distinct;
use crate::store::StoreError;
use crate::store::database::Transaction;
use crate::store::filter::fold;
use crate::store::search::conditions::DOCUMENT_SEPARATOR;
use crate::store::sql::Dialect;

const SUBMISSIONS: Table = Table {
    name: "submissions",
    columns: &[
        ("id", "bigint"),
        ("form_id", "bigint"),
        ("parent_id", "bigint"),
        ("status", "text"),
        ("draft", "boolean"),
        ("submitter_id", "bigint"),
        ("created_at", "timestamptz"),
        ("updated_at", "timestamptz"),
    ],
    key: 1,
};

const ANSWERS: Table = Table {
    name: "answers",
    columns: &[
        ("submission_id", "bigint"),
        ("element_id", "bigint"),
        ("value", "text"),
        ("files", "jsonb"),
        ("updated_at", "timestamptz"),
    ],
    key: 2,
};

const ANSWERS_FOLDED: Table = Table {
    name: "answers",
    columns: &[
        ("submission_id", "bigint"),
        ("element_id", "bigint"),
        ("value", "text"),
        ("files", "jsonb"),
        ("updated_at", "timestamptz"),
        ("folded", "text"),
    ],
    key: 2,
};

pub(in crate::store) const DOCUMENTS: Table =
    Table { name: "submission_documents", columns: &[("submission_id", "bigint"), ("document", "text")], key: 1 };

pub(in crate::store) const LINES: Table = Table {
    name: "answer_lines",
    columns: &[("submission_id", "bigint"), ("element_id", "bigint"), ("line", "text")],
    key: 3,
};

const LABELS: Table = Table {
    name: "submission_labels",
    columns: &[("submission_id", "bigint"), ("label_id", "bigint"), ("shared", "boolean")],
    key: 3,
};

const PENDING: Table =
    Table { name: "submission_pending", columns: &[("submission_id", "bigint"), ("user_id", "bigint")], key: 2 };

const PARTICIPANTS: Table =
    Table { name: "submission_participants", columns: &[("submission_id", "bigint"), ("user_id", "bigint")], key: 2 };

const FLOW_STEPS: Table = Table {
    name: "submission_flow_steps",
    columns: &[("submission_id", "bigint"), ("flow_step_id", "bigint")],
    key: 2,
};

/// Writes submissions; `stored` are those that the database has already.
pub(super) async fn write(
    transaction: &mut Transaction,
    submissions: &[&SubmissionRecord],
    stored: &HashSet<i64>,
    documents: Documents,
) -> Result<(), StoreError> {
    let stored: Vec<i64> = submissions.iter().map(|s| s.id).filter(|id| stored.contains(id)).collect();
    let dialect = transaction.dialect();
    let mut rows = Rows::new();
    for s in submissions {
        let (created_at, updated_at) = (Instant::new(s.created_at, dialect), Instant::new(s.updated_at, dialect));
        let status = s.status.as_str();
        rows.push(&(s.id, s.form_id, s.parent_id, status, s.draft, s.submitter_id, created_at, updated_at));
    }
    SUBMISSIONS.upsert(transaction, &rows).await?;
    match dialect {
        Dialect::Postgres => write_answers(transaction, submissions, &stored, documents).await?,
        Dialect::Sqlite => write_answers_and_documents(transaction, submissions, &stored).await?,
    }

    let mut labels = Rows::new();
    for submission in submissions {
        distinct(&submission.labels).for_each(|label| labels.push(&(submission.id, label, false)));
        distinct(&submission.shared_labels).for_each(|label| labels.push(&(submission.id, label, true)));
    }
    LABELS.replace(transaction, &stored, &labels).await?;
    let (mut pending, mut participants, mut steps) = (Rows::new(), Rows::new(), Rows::new());
    for submission in submissions {
        distinct(&submission.pending_on).for_each(|user| pending.push(&(submission.id, user)));
        distinct(&submission.participants).for_each(|user| participants.push(&(submission.id, user)));
        distinct(&submission.flow_steps).for_each(|step| steps.push(&(submission.id, step)));
    }
    PENDING.replace(transaction, &stored, &pending).await?;
    PARTICIPANTS.replace(transaction, &stored, &participants).await?;
    FLOW_STEPS.replace(transaction, &stored, &steps).await
}

async fn write_answers(
    transaction: &mut Transaction,
    submissions: &[&SubmissionRecord],
    stored: &[i64],
    documents: Documents,
) -> Result<(), StoreError> {
    let (mut changed, mut new, mut new_ids) = (Rows::new(), Rows::new(), Vec::new());
    let is_stored: HashSet<i64> = stored.iter().copied().collect();
    for submission in submissions {
        let rows = if is_stored.contains(&submission.id) {
            &mut changed
        } else {
            new_ids.push(submission.id);
            &mut new
        };
        for answer in &submission.answers {
            let files = (!answer.files.is_empty()).then_some(&answer.files);
            let updated_at = Instant::new(answer.updated_at.unwrap_or(submission.updated_at), Dialect::Postgres);
            rows.push(&(submission.id, answer.element_id, answer.stored_value(), files, updated_at));
        }
    }
    ANSWERS.replace(transaction, stored, &changed).await?;
    if !new.is_empty() {
        rest_triggers(transaction, true).await?;
        ANSWERS.insert(transaction, &new).await?;
        rest_triggers(transaction, false).await?;
        documents.make_for(transaction, &new_ids).await?;
    }
    Ok(())
}

async fn write_answers_and_documents(
    transaction: &mut Transaction,
    submissions: &[&SubmissionRecord],
    stored: &[i64],
) -> Result<(), StoreError> {
    let (mut rows, mut documents, mut lines) = (Rows::new(), Rows::new(), Rows::new());
    for submission in submissions {
        let mut parts = Vec::with_capacity(submission.answers.len());
        for answer in &submission.answers {
            let value = answer.stored_value();
            let folded = fold(&value);
            let files = (!answer.files.is_empty()).then_some(&answer.files);
            let updated_at = Instant::new(answer.updated_at.unwrap_or(submission.updated_at), Dialect::Sqlite);
            rows.push(&(submission.id, answer.element_id, &value, files, updated_at, &folded));
            if folded.contains('\n') {
                folded.split('\n').for_each(|line| lines.push(&(submission.id, answer.element_id, line)));
            }
            parts.push((answer.element_id, folded));
        }
        if !parts.is_empty() {
            documents.push(&(submission.id, document(parts)));
        }
    }
    ANSWERS_FOLDED.replace(transaction, stored, &rows).await?;
    DOCUMENTS.replace(transaction, stored, &documents).await?;
    // Lines have no key: an answer may have one twice.
    LINES.keep_only(transaction, stored, &Rows::new()).await?;
    LINES.insert(transaction, &lines).await
}

/// What the keyword search reads of a submission: its folded answers by element, joined.
pub(in crate::store) fn document(mut parts: Vec<(i64, String)>) -> String {
    parts.sort_unstable_by_key(|(element, _)| *element);
    let mut document = String::with_capacity(parts.iter().map(|(_, folded)| folded.len() + 1).sum());
    for (at, (_, folded)) in parts.iter().enumerate() {
        if at > 0 {
            document.push(DOCUMENT_SEPARATOR);
        }
        document.push_str(folded);
    }
    document
}
