//! Writes submissions with their answers, labels, users and flow steps.

use std::collections::HashSet;

use super::record::{SubmissionRecord, distinct};
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{JsonRows, JsonTimestamp, TableSpec};

const SUBMISSIONS: TableSpec = TableSpec {
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

const ANSWERS: TableSpec = TableSpec {
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

const LABELS: TableSpec = TableSpec {
    name: "submission_labels",
    columns: &[("submission_id", "bigint"), ("label_id", "bigint"), ("shared", "boolean")],
    key: 3,
};

const PENDING: TableSpec =
    TableSpec { name: "submission_pending", columns: &[("submission_id", "bigint"), ("user_id", "bigint")], key: 2 };

const PARTICIPANTS: TableSpec = TableSpec {
    name: "submission_participants",
    columns: &[("submission_id", "bigint"), ("user_id", "bigint")],
    key: 2,
};

const FLOW_STEPS: TableSpec = TableSpec {
    name: "submission_flow_steps",
    columns: &[("submission_id", "bigint"), ("flow_step_id", "bigint")],
    key: 2,
};

/// Writes submissions. `stored` are those that the database already has.
pub(super) async fn write(
    transaction: &mut Transaction,
    submissions: &[&SubmissionRecord],
    stored: &HashSet<i64>,
) -> Result<(), StoreError> {
    let stored: Vec<i64> = submissions.iter().map(|s| s.id).filter(|id| stored.contains(id)).collect();
    let dialect = transaction.dialect();
    let mut rows = JsonRows::new();
    for s in submissions {
        let (created_at, updated_at) =
            (JsonTimestamp::new(s.created_at, dialect), JsonTimestamp::new(s.updated_at, dialect));
        let status = s.status.as_str();
        rows.push(&(s.id, s.form_id, s.parent_id, status, s.draft, s.submitter_id, created_at, updated_at));
    }
    SUBMISSIONS.upsert(transaction, &rows).await?;

    let (mut answers, mut labels) = (JsonRows::new(), JsonRows::new());
    for submission in submissions {
        for answer in &submission.answers {
            let files = (!answer.files.is_empty()).then_some(&answer.files);
            let updated_at = JsonTimestamp::new(answer.updated_at.unwrap_or(submission.updated_at), dialect);
            answers.push(&(submission.id, answer.element_id, answer.stored_value(), files, updated_at));
        }
        distinct(&submission.labels).for_each(|label| labels.push(&(submission.id, label, false)));
        distinct(&submission.shared_labels).for_each(|label| labels.push(&(submission.id, label, true)));
    }
    ANSWERS.replace(transaction, &stored, &answers).await?;
    LABELS.replace(transaction, &stored, &labels).await?;
    let (mut pending, mut participants, mut steps) = (JsonRows::new(), JsonRows::new(), JsonRows::new());
    for submission in submissions {
        distinct(&submission.pending_on).for_each(|user| pending.push(&(submission.id, user)));
        distinct(&submission.participants).for_each(|user| participants.push(&(submission.id, user)));
        distinct(&submission.flow_steps).for_each(|step| steps.push(&(submission.id, step)));
    }
    PENDING.replace(transaction, &stored, &pending).await?;
    PARTICIPANTS.replace(transaction, &stored, &participants).await?;
    FLOW_STEPS.replace(transaction, &stored, &steps).await
}
