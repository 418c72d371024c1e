//! Undoes a sync: in one transaction, the users who came with it leave the group, and those who left come back.
//!
//! Only the members are restored; the group keeps its name and its identifier. A sync is undone only if no later sync
//! touched one of the same members, since an undo would then take back a decision of the later one. An undo is a sync too,
//! so it can be undone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;

use super::change::{Durability, SyncedBy};
use super::syncs::{self, ChangedGroup};
use super::write;
use crate::store::engine::{Retry, Transaction};
use crate::store::statement::Sql;
use crate::store::{Actor, AuditEntry, Store, StoreError, audit};

/// The outcome of undoing a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It was undone, or would be.
    Undone {
        /// The addresses of users who became members.
        attached: Vec<String>,
        /// The addresses of users who stopped being members.
        detached: Vec<String>,
        /// How many members of the sync were left out: other programs deleted the users, or changed their membership
        /// already.
        skipped: u64,
    },
    /// There is no such sync, or it was too old to be kept.
    NotFound,
    /// The group was deleted.
    GroupDeleted,
    /// A later sync touched the same members.
    TouchedLater {
        /// The first such sync.
        sync: i64,
        /// Whether it is the undo of this one.
        is_undo: bool,
    },
}

/// What a sync changed, for undoing it.
struct Changes {
    group: i64,
    group_name: String,
    attached: Vec<i64>,
    detached: Vec<i64>,
}

impl Store {
    /// Undoes a sync for an administrator, or returns what that would change. An undo is a row of the audit log too.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`]. Nothing was changed then.
    pub async fn undo_group_sync(
        &self,
        id: i64,
        by: Option<&Actor>,
        durability: Durability,
    ) -> Result<Undone, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let mut retry = Retry::default();
        loop {
            match self.try_to_undo(id, by, durability, waiting_since).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => {
                    self.note_group_write();
                    return outcome;
                }
            }
        }
    }

    async fn try_to_undo(
        &self,
        id: i64,
        by: Option<&Actor>,
        durability: Durability,
        waiting_since: Instant,
    ) -> Result<Undone, StoreError> {
        let mut transaction = write::begin(&self.database, waiting_since).await?;
        let Some(changes) = find_changes(&mut transaction, id).await? else { return Ok(Undone::NotFound) };
        let mut sql = transaction.sql();
        sql.push("SELECT name FROM groups WHERE id = ").bind(changes.group);
        if transaction.fetch_all(sql).await?.is_empty() {
            return Ok(Undone::GroupDeleted);
        }
        if let Some((sync, is_undo)) = find_later(&mut transaction, id, &changes).await? {
            return Ok(Undone::TouchedLater { sync, is_undo });
        }
        let mut sql = transaction.sql();
        sql.push("INSERT INTO group_members (group_id, user_id) SELECT ").bind(changes.group);
        sql.push(", u.id FROM users u WHERE u.id").in_ids(&changes.detached);
        sql.push(" AND NOT EXISTS (SELECT 1 FROM group_members m WHERE m.user_id = u.id AND m.group_id = ");
        sql.bind(changes.group).push(") RETURNING user_id");
        let attached = read_ids(&mut transaction, sql).await?;
        let mut sql = transaction.sql();
        sql.push("DELETE FROM group_members WHERE group_id = ").bind(changes.group).push(" AND user_id");
        sql.in_ids(&changes.attached).push(" RETURNING user_id");
        let detached = read_ids(&mut transaction, sql).await?;
        let group = ChangedGroup { id: changes.group, name: &changes.group_name, is_new: false, is_renamed: false };
        let changed = attached.len() + detached.len();
        if changed > 0
            && let Some(actor) = by
        {
            let by = SyncedBy { name: Arc::from(actor.name.as_str()), token: None };
            syncs::add(&mut transaction, group, &by, Some(id), &attached, &detached).await?;
            let entry = AuditEntry {
                action: "group.undo",
                subject: format!("sync {id} of {}", changes.group_name),
                details: json!({ "attached": attached.len(), "detached": detached.len() }),
            };
            audit::append(&mut transaction, actor, entry, Timestamp::now()).await?;
        }
        let skipped = (changes.attached.len() + changes.detached.len() - changed) as u64;
        let attached = read_addresses(&mut transaction, &attached).await?;
        let detached = read_addresses(&mut transaction, &detached).await?;
        match durability {
            Durability::Commit => transaction.commit().await?,
            Durability::DryRun => transaction.roll_back().await?,
        }
        Ok(Undone::Undone { attached, detached, skipped })
    }
}

async fn find_changes(transaction: &mut Transaction, id: i64) -> Result<Option<Changes>, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT s.group_id, coalesce((SELECT g.name FROM groups g WHERE g.id = s.group_id), s.group_name), ");
    sql.push("s.attached, s.detached FROM group_syncs s WHERE s.id = ").bind(id);
    let rows = transaction.fetch_all(sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Changes {
        group: row.get(0)?,
        group_name: row.get(1)?,
        attached: parse_ids(&row.get::<String>(2)?)?,
        detached: parse_ids(&row.get::<String>(3)?)?,
    }))
}

/// The first later sync of the group that touched one of the members, and whether it is the undo of this one.
async fn find_later(
    transaction: &mut Transaction,
    id: i64,
    changes: &Changes,
) -> Result<Option<(i64, bool)>, sqlx::Error> {
    let touched: HashSet<i64> = changes.attached.iter().chain(&changes.detached).copied().collect();
    let mut sql = transaction.sql();
    sql.push("SELECT id, undoes, attached, detached FROM group_syncs WHERE group_id = ").bind(changes.group);
    sql.push(" AND id > ").bind(id).push(" ORDER BY id");
    let mut later = None;
    // Row by row: together, the syncs of a large group may take more memory than a request has.
    transaction
        .fetch_each(sql, &mut |row| {
            if later.is_none() {
                let lists = [parse_ids(&row.get::<String>(2)?)?, parse_ids(&row.get::<String>(3)?)?];
                if lists.iter().flatten().any(|user| touched.contains(user)) {
                    later = Some((row.get(0)?, row.get::<Option<i64>>(1)? == Some(id)));
                }
            }
            Ok(())
        })
        .await?;
    Ok(later)
}

fn parse_ids(text: &str) -> Result<Vec<i64>, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

async fn read_ids(transaction: &mut Transaction, sql: Sql) -> Result<Vec<i64>, sqlx::Error> {
    let rows = transaction.fetch_all(sql).await?;
    rows.iter().map(|row| row.get(0)).collect()
}

async fn read_addresses(transaction: &mut Transaction, ids: &[i64]) -> Result<Vec<String>, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT email FROM users WHERE id").in_ids(ids).push(" ORDER BY email_folded");
    sql.push_either(" COLLATE \"C\"", "");
    let rows = transaction.fetch_all(sql).await?;
    rows.iter().map(|row| row.get(0)).collect()
}
