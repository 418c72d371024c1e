//! What is held: lists it, and applies or drops it.
//!
//! A decision is about all that the guard of one group holds, also users who leave the account. It begins a new ten minutes of
//! the group. Removals that are applied are a sync, which can be undone. Removals that are dropped leave the group diverged from
//! its directory, which is not told.

use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;

use super::guard::{HeldKind, held_count, is_shown};
use super::leaving::{self, Leavers};
use crate::store::derived::totals::not_negative;
use crate::store::engine::{Transaction, retry};
use crate::store::groups::{ChangedGroup, Group, SyncKind, SyncedBy, add_sync, begin, read_ids};
use crate::store::statement::sql;
use crate::store::{Actor, AuditEntry, Store, StoreError, audit};

/// A group of which something is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGroup {
    /// The group.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// How many members.
    pub held: u64,
    /// Since when.
    pub since: Timestamp,
}

/// A member whose removal is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldMember {
    /// The e-mail address.
    pub email: String,
    /// What is held.
    pub kind: HeldKind,
    /// Since when.
    pub at: Timestamp,
    /// The name of the token.
    pub actor: String,
    /// The token.
    pub token: Option<i64>,
}

/// What is done with what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldDecision {
    /// It is carried out.
    Apply,
    /// It is forgotten.
    Drop,
}

impl Store {
    /// The groups of which something is held.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_held_groups(&self) -> Result<Vec<HeldGroup>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT g.id, g.name, {+held_count}, (SELECT min(x.at) FROM directory_held x WHERE x.group_id = g.id)
             FROM groups g WHERE g.id IN (SELECT x.group_id FROM directory_held x WHERE {+is_shown}) ORDER BY g.id
             {scans: few groups are held at a time}",
            held_count = held_count(),
            is_shown = is_shown(),
        );
        let rows = reader.fetch_all(sql).await?;
        let read = rows.iter().map(|row| {
            Ok(HeldGroup { id: row.get(0)?, name: row.get(1)?, held: not_negative(row.get(2)?), since: row.get(3)? })
        });
        Ok(read.collect::<Result<_, sqlx::Error>>()?)
    }

    /// The members of a group whose removal is held, in the order of their addresses, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_held_members(&self, group: i64, limit: u32) -> Result<Vec<HeldMember>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT v.email, x.kind, x.at, x.actor, x.token_id FROM directory_held x JOIN users v ON v.id = x.user_id
             WHERE x.group_id = {group} AND {+is_shown}
             ORDER BY v.email_folded {pg: COLLATE \"C\"}, v.id LIMIT {limit}",
            group,
            is_shown = is_shown(),
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        let read = rows.iter().map(|row| {
            Ok(HeldMember {
                email: row.get(0)?,
                kind: HeldKind::parse(&row.get::<String>(1)?),
                at: row.get(2)?,
                actor: row.get(3)?,
                token: row.get(4)?,
            })
        });
        Ok(read.collect::<Result<_, sqlx::Error>>()?)
    }

    /// How many removals are held in all.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_held(&self) -> Result<u64, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*) FROM directory_held x WHERE {+is_shown} {scans: few removals are held at a time}",
            is_shown = is_shown(),
        );
        Ok(not_negative(reader.fetch_one(sql).await?.get(0)?))
    }

    /// Applies or drops what is held of a group. Returns the group without its members, and how many removals there were; `None`
    /// if there is no such group.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`]. Nothing was changed then.
    pub async fn decide_held(
        &self,
        id: i64,
        decision: HeldDecision,
        by: &SyncedBy,
        actor: &Actor,
    ) -> Result<Option<(Group, u64)>, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let decided = retry::run(|| async move {
            let mut transaction = begin(&self.database, waiting_since).await?;
            let Some(before) = Group::find_without_members(transaction.connection(), id).await? else {
                return Ok(None);
            };
            let held = before.held;
            match decision {
                HeldDecision::Apply => apply(&mut transaction, &before, by).await?,
                HeldDecision::Drop if held > 0 => {
                    let sql = sql!("UPDATE directory_groups SET diverged = TRUE WHERE group_id = {id}", id);
                    transaction.execute(sql).await?;
                }
                HeldDecision::Drop => {}
            }
            transaction.execute(sql!("DELETE FROM directory_held WHERE group_id = {id}", id)).await?;
            transaction.execute(sql!("DELETE FROM directory_removals WHERE group_id = {id}", id)).await?;
            let found = Group::find_without_members(transaction.connection(), id).await?;
            if held > 0 {
                let entry = AuditEntry {
                    action: match decision {
                        HeldDecision::Apply => "group.apply",
                        HeldDecision::Drop => "group.drop",
                    },
                    subject: format!("group {id}"),
                    details: json!({ "name": before.summary.name, "removals": held }),
                };
                audit::append(&mut transaction, actor, entry, Timestamp::now()).await?;
            }
            transaction.commit().await?;
            Ok(found.map(|group| (group, held)))
        });
        let decided = decided.await;
        self.note_group_write();
        decided
    }
}

/// Carries out what is held of a group.
async fn apply(transaction: &mut Transaction, group: &Group, by: &SyncedBy) -> Result<(), sqlx::Error> {
    let id = group.summary.id;
    let (mut removed, mut leavers) = (Vec::new(), Leavers::default());
    let sql = sql!("SELECT user_id, kind FROM directory_held WHERE group_id = {id}", id);
    for row in transaction.fetch_all(sql).await? {
        let user = row.get(0)?;
        match HeldKind::parse(&row.get::<String>(1)?) {
            HeldKind::Removed => removed.push(user),
            HeldKind::Deactivated => leavers.deactivated.push(user),
            HeldKind::Deleted => leavers.deleted.push(user),
        }
    }
    let mut detached = Vec::new();
    let sql = sql!(
        "DELETE FROM group_members WHERE group_id = {id} AND user_id {in removed} RETURNING user_id",
        id,
        removed = &removed,
    );
    read_ids(transaction, sql, &mut detached).await?;
    let sql = sql!("DELETE FROM inactive_members WHERE group_id = {id} AND user_id {in removed}", id, removed);
    transaction.execute(sql).await?;
    if !detached.is_empty() {
        let changed = ChangedGroup { id, name: &group.summary.name, is_new: false, is_renamed: false };
        add_sync(transaction, changed, by, None, &[], &detached).await?;
    }
    leaving::carry_out(transaction, &leavers, by, SyncKind::Single).await?;
    Ok(())
}

/// Forgets what is held of a group that SCIM no longer writes; what is held of users goes on to the account.
pub(in crate::store) async fn release(transaction: &mut Transaction, id: i64) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "INSERT INTO directory_held (group_id, user_id, kind, at, actor, token_id)
         SELECT g.id, x.user_id, x.kind, x.at, x.actor, x.token_id
         FROM directory_held x CROSS JOIN groups g
         WHERE x.group_id = {id} AND x.kind <> 'removed' AND g.built_in AND g.id <> {id}
         ON CONFLICT (group_id, user_id) DO NOTHING
         {scans: the index of the built-in group has one row}",
        id,
    );
    transaction.execute(sql).await?;
    transaction.execute(sql!("DELETE FROM directory_held WHERE group_id = {id}", id)).await?;
    Ok(())
}
