//! Writes checked records table by table, with one statement each, whatever the number of records.

use std::collections::HashSet;

use super::check::ALL_USERS;
use super::record::{FlowStepRecord, FormRecord, GroupRecord, LabelRecord, Record, UserRecord, distinct};
use super::state::ImportState;
use super::submissions;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, JsonRows, TableSpec, fold, sql};

const USERS: TableSpec =
    TableSpec { name: "users", columns: &[("id", "bigint"), ("email", "text"), ("name", "text")], key: 1 };

/// On SQLite the writer of a user also writes the folded address.
const USERS_FOLDED: TableSpec = TableSpec {
    name: "users",
    columns: &[("id", "bigint"), ("email", "text"), ("name", "text"), ("email_folded", "text")],
    key: 1,
};

const LABELS: TableSpec =
    TableSpec { name: "labels", columns: &[("id", "bigint"), ("name", "text"), ("shared", "boolean")], key: 1 };

const FORMS: TableSpec = TableSpec {
    name: "forms",
    columns: &[
        ("id", "bigint"),
        ("name", "text"),
        ("anonymous", "boolean"),
        ("disabled", "boolean"),
        ("graduated", "boolean"),
        ("parent_id", "bigint"),
    ],
    key: 1,
};

const ELEMENTS: TableSpec = TableSpec {
    name: "elements",
    columns: &[
        ("id", "bigint"),
        ("form_id", "bigint"),
        ("position", "integer"),
        ("gid", "text"),
        ("name", "text"),
        ("type", "text"),
    ],
    key: 1,
};

const GROUPS: TableSpec = TableSpec {
    name: "groups",
    columns: &[("id", "bigint"), ("name", "text"), ("external_id", "text"), ("managed", "boolean")],
    key: 1,
};

const MEMBERS: TableSpec =
    TableSpec { name: "group_members", columns: &[("group_id", "bigint"), ("user_id", "bigint")], key: 2 };

const FLOW_STEPS: TableSpec =
    TableSpec { name: "flow_steps", columns: &[("id", "bigint"), ("form_id", "bigint"), ("name", "text")], key: 1 };

const STEP_GROUPS: TableSpec =
    TableSpec { name: "flow_step_groups", columns: &[("flow_step_id", "bigint"), ("group_id", "bigint")], key: 2 };

/// Writes the accepted records of a batch.
pub(super) async fn write(
    transaction: &mut Transaction,
    state: &ImportState,
    accepted: &[&Record],
) -> Result<(), StoreError> {
    let (mut users, mut labels, mut forms, mut groups, mut steps, mut submissions) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for record in accepted {
        match record {
            Record::User(user) => users.push(user),
            Record::Label(label) => labels.push(label),
            Record::Form(form) => forms.push(form),
            Record::Group(group) => groups.push(group),
            Record::FlowStep(step) => steps.push(step),
            Record::Submission(submission) => submissions.push(&**submission),
        }
    }
    write_users(transaction, &users).await?;
    write_labels(transaction, &labels).await?;
    write_forms(transaction, &forms, &state.dropped).await?;
    write_groups(transaction, &groups).await?;
    write_flow_steps(transaction, &steps).await?;
    submissions::write(transaction, &submissions, &state.stored).await
}

async fn write_users(transaction: &mut Transaction, users: &[&UserRecord]) -> Result<(), StoreError> {
    let mut rows = JsonRows::new();
    match transaction.dialect() {
        Dialect::Postgres => {
            users.iter().for_each(|user| rows.push(&(user.id, &user.email, &user.name)));
            USERS.upsert(transaction, &rows).await
        }
        Dialect::Sqlite => {
            users.iter().for_each(|user| rows.push(&(user.id, &user.email, &user.name, fold(&user.email))));
            USERS_FOLDED.upsert(transaction, &rows).await
        }
    }
}

async fn write_labels(transaction: &mut Transaction, labels: &[&LabelRecord]) -> Result<(), StoreError> {
    let mut rows = JsonRows::new();
    labels.iter().for_each(|label| rows.push(&(label.id, &label.name, label.shared)));
    LABELS.upsert(transaction, &rows).await
}

async fn write_forms(
    transaction: &mut Transaction,
    forms: &[&FormRecord],
    dropped: &HashSet<i64>,
) -> Result<(), StoreError> {
    let (mut rows, mut elements) = (JsonRows::new(), JsonRows::new());
    for form in forms {
        rows.push(&(form.id, &form.name, form.anonymous, form.disabled, form.graduated, form.parent_id));
        for (position, element) in form.elements.iter().enumerate() {
            elements.push(&(element.id, form.id, position, &element.gid, &element.name, &element.kind));
        }
    }
    FORMS.upsert(transaction, &rows).await?;
    // First, because a later form may take over the id.
    if !dropped.is_empty() {
        let ids: Vec<i64> = dropped.iter().copied().collect();
        transaction.execute(sql!("DELETE FROM elements WHERE id {in ids}", ids)).await?;
    }
    ELEMENTS.upsert(transaction, &elements).await
}

async fn write_groups(transaction: &mut Transaction, groups: &[&GroupRecord]) -> Result<(), StoreError> {
    let (built_in, groups): (Vec<&GroupRecord>, Vec<_>) = groups.iter().partition(|group| group.name == ALL_USERS);
    // First, because another group may take the previous id of the built-in group.
    if let Some(group) = built_in.last() {
        let sql = sql!("UPDATE groups SET id = {id} WHERE built_in AND id <> {id}", id = group.id);
        transaction.execute(sql).await?;
    }
    let (mut rows, mut members) = (JsonRows::new(), JsonRows::new());
    for group in &groups {
        rows.push(&(group.id, &group.name, &group.external_id, group.managed));
        for member in distinct(&group.members) {
            members.push(&(group.id, member));
        }
    }
    GROUPS.upsert(transaction, &rows).await?;
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    MEMBERS.replace(transaction, &ids, &members).await
}

async fn write_flow_steps(transaction: &mut Transaction, steps: &[&FlowStepRecord]) -> Result<(), StoreError> {
    let (mut rows, mut groups) = (JsonRows::new(), JsonRows::new());
    for step in steps {
        rows.push(&(step.id, step.form_id, &step.name));
        for group in distinct(&step.groups) {
            groups.push(&(step.id, group));
        }
    }
    FLOW_STEPS.upsert(transaction, &rows).await?;
    let ids: Vec<i64> = steps.iter().map(|step| step.id).collect();
    STEP_GROUPS.replace(transaction, &ids, &groups).await
}
