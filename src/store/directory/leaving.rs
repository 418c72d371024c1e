//! Users who leave the account, and who come back.
//!
//! A user who becomes inactive or is deleted is a member of the built-in group who leaves it, and the syncs of that group have
//! it: undoing one makes the users active again, and their memberships return. A user who is deleted loses the memberships, so
//! the sync of each group has that too.

use std::collections::BTreeMap;

use crate::store::engine::Transaction;
use crate::store::groups::{ChangedGroup, SyncKind, SyncedBy, add_sync, keep_run, read_ids};
use crate::store::statement::sql;

/// Users who leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Leavers {
    /// They become inactive.
    pub(super) deactivated: Vec<i64>,
    /// They are deleted; those that a submission needs become inactive and lose their memberships.
    pub(super) deleted: Vec<i64>,
}

/// Lets users leave, and keeps that as syncs. Returns the deleted ones that a submission needs.
pub(super) async fn carry_out(
    transaction: &mut Transaction,
    leavers: &Leavers,
    by: &SyncedBy,
    kind: SyncKind,
) -> Result<Vec<i64>, sqlx::Error> {
    let Leavers { deactivated, deleted } = leavers;
    let (mut gone, mut needed) = (Vec::new(), Vec::new());
    let mut lost: BTreeMap<i64, (String, Vec<i64>)> = BTreeMap::new();
    if !deleted.is_empty() {
        let sql = sql!("SELECT id FROM users WHERE id {in deleted} AND active", deleted);
        read_ids(transaction, sql.with_custom_plan(), &mut gone).await?;
        let sql = sql!(
            "SELECT g.id, g.name, lost.user_id
             FROM (SELECT group_id, user_id FROM group_members WHERE user_id {in deleted}
                   UNION ALL SELECT group_id, user_id FROM inactive_members WHERE user_id {in deleted}) AS lost
             JOIN groups g ON g.id = lost.group_id ORDER BY g.id, lost.user_id",
            deleted,
        );
        for row in transaction.fetch_all(sql.with_custom_plan()).await? {
            let (_, users) = lost.entry(row.get(0)?).or_insert((row.get(1)?, Vec::new()));
            users.push(row.get(2)?);
        }
        needed = delete(transaction, deleted).await?;
    }
    let sql = sql!("UPDATE users SET active = FALSE WHERE id {in deactivated} AND active RETURNING id", deactivated,);
    read_ids(transaction, sql, &mut gone).await?;
    let left = [&**deactivated, &*needed].concat();
    let sql = sql!("UPDATE directory_users SET updated_at = {clock} WHERE user_id {in left}", left = &left);
    transaction.execute(sql).await?;
    let sql = sql!("DELETE FROM directory_held WHERE user_id {in left} AND kind <> 'removed'", left);
    transaction.execute(sql).await?;
    for (id, (name, users)) in &lost {
        let group = ChangedGroup { id: *id, name, is_new: false, is_renamed: false };
        keep(transaction, group, by, kind, &[], users).await?;
    }
    keep_of_account(transaction, by, kind, &[], &gone).await?;
    Ok(needed)
}

/// Deletes users. Returns those that a submission needs, which become inactive instead.
async fn delete(transaction: &mut Transaction, users: &[i64]) -> Result<Vec<i64>, sqlx::Error> {
    let mut needed = Vec::new();
    let sql = sql!(
        "SELECT u.id FROM users u WHERE u.id {in users}
           AND (EXISTS (SELECT 1 FROM submissions WHERE submitter_id = u.id)
             OR EXISTS (SELECT 1 FROM submission_pending WHERE user_id = u.id)
             OR EXISTS (SELECT 1 FROM submission_participants WHERE user_id = u.id))",
        users,
    );
    read_ids(transaction, sql.with_custom_plan(), &mut needed).await?;
    for sql in [
        sql!("DELETE FROM group_members WHERE user_id {in needed}", needed = &needed),
        sql!("DELETE FROM inactive_members WHERE user_id {in needed}", needed = &needed),
        sql!("UPDATE users SET active = FALSE WHERE id {in needed} AND active", needed = &needed),
        sql!("DELETE FROM users WHERE id {in users} AND NOT id {in needed}", users, needed = &needed),
    ] {
        transaction.execute(sql).await?;
    }
    Ok(needed)
}

/// Keeps that a user is active again.
pub(super) async fn keep_return(transaction: &mut Transaction, user: i64, by: &SyncedBy) -> Result<(), sqlx::Error> {
    keep_of_account(transaction, by, SyncKind::Run, &[user], &[]).await
}

/// Keeps who came into the built-in group, and who left it.
async fn keep_of_account(
    transaction: &mut Transaction,
    by: &SyncedBy,
    kind: SyncKind,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
    let built_in = transaction
        .fetch_all(sql!("SELECT id, name FROM groups WHERE built_in {scans: its index has one row}"))
        .await?
        .pop();
    let Some(row) = built_in else { return Ok(()) };
    let name: String = row.get(1)?;
    let group = ChangedGroup { id: row.get(0)?, name: &name, is_new: false, is_renamed: false };
    keep(transaction, group, by, kind, attached, detached).await
}

async fn keep(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    kind: SyncKind,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
    match kind {
        SyncKind::Run => keep_run(transaction, group, by, attached, detached).await,
        SyncKind::Single if attached.is_empty() && detached.is_empty() => Ok(()),
        SyncKind::Single => add_sync(transaction, group, by, None, attached, detached).await,
    }
}
