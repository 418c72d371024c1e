//! Undoes a sync: in one transaction, the users who came with it leave the group, and those who left come back.
//!
//! Only the members are restored; the group keeps its name and its identifier. Memberships of inactive users, which nothing shows,
//! are restored like others. The members of the built-in group are the active users, so undoing a sync of it activates or
//! deactivates users. A directory whose sync was undone is not told, so its group is marked as diverged. A sync is undone only if no later sync
//! touched one of the same members, since an undo would then take back a decision of the later one. An undo is a sync too,
//! so it can be undone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;

use super::change::SyncedBy;
use super::syncs::{ChangedGroup, add_sync, parse_ids};
use super::write;
use crate::store::engine::{PooledConnection, Transaction, retry};
use crate::store::statement::{Sql, sql};
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
    built_in: bool,
    attached: Vec<i64>,
    detached: Vec<i64>,
}

impl Store {
    /// Undoes a sync for the administrator `by`. An undo is a row of the audit log too.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`]. Nothing was changed then.
    pub async fn undo_group_sync(&self, id: i64, by: &Actor) -> Result<Undone, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let undone = retry::run(|| async move {
            let mut transaction = write::begin(&self.database, waiting_since).await?;
            let changes = match find_undoable(transaction.connection(), id).await? {
                Ok(changes) => changes,
                Err(refused) => return Ok(refused),
            };
            let (attached, detached) = changes.restore(&mut transaction).await?;
            let group = ChangedGroup { id: changes.group, name: &changes.group_name, is_new: false, is_renamed: false };
            let changed = attached.len() + detached.len();
            if changed > 0 {
                let by_actor = SyncedBy { name: Arc::from(by.name.as_str()), token: None };
                add_sync(&mut transaction, group, &by_actor, Some(id), &attached, &detached).await?;
                let sql =
                    sql!("UPDATE directory_groups SET diverged = TRUE WHERE group_id = {group}", group = group.id);
                transaction.execute(sql).await?;
                let entry = AuditEntry {
                    action: "group.undo",
                    subject: format!("sync {id} of {}", changes.group_name),
                    details: json!({ "attached": attached.len(), "detached": detached.len() }),
                };
                audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
            }
            let mut lists: [Vec<String>; 2] = Default::default();
            for (list, ids) in lists.iter_mut().zip([attached, detached]) {
                *list = read_addresses(transaction.connection(), &ids, Sql::text("TRUE")).await?;
            }
            transaction.commit().await?;
            let [attached, detached] = lists;
            Ok(changes.undone(attached, detached))
        });
        let undone = undone.await;
        self.note_group_write();
        undone
    }

    /// What [`Self::undo_group_sync`] would change now. Only reads, in one snapshot, and waits for no write of a group.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn preview_undo(&self, id: i64) -> Result<Undone, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let preview = match find_undoable(&mut reader, id).await? {
            Ok(changes) => {
                let is_member = changes.is_member();
                let attached = sql!("NOT {+is_member}", is_member = is_member.clone());
                let attached = read_addresses(&mut reader, &changes.detached, attached).await?;
                let detached = read_addresses(&mut reader, &changes.attached, is_member).await?;
                changes.undone(attached, detached)
            }
            Err(refused) => refused,
        };
        reader.end_transaction("COMMIT").await?;
        Ok(preview)
    }
}

impl Changes {
    /// A condition: the user `u` is a member, shown or not.
    fn is_member(&self) -> Sql {
        if self.built_in {
            return Sql::text("u.active");
        }
        sql!(
            "(EXISTS (SELECT 1 FROM group_members m WHERE m.user_id = u.id AND m.group_id = {group})
              OR EXISTS (SELECT 1 FROM inactive_members m WHERE m.user_id = u.id AND m.group_id = {group}))",
            group = self.group,
        )
    }

    /// Adds who went, and removes who came. Returns both.
    async fn restore(&self, transaction: &mut Transaction) -> Result<(Vec<i64>, Vec<i64>), sqlx::Error> {
        let Self { group, attached: come, detached: gone, .. } = self;
        if self.built_in {
            let sql = sql!("UPDATE users SET active = TRUE WHERE id {in gone} AND NOT active RETURNING id", gone);
            let attached = read_ids(transaction, sql).await?;
            let sql = sql!("UPDATE users SET active = FALSE WHERE id {in come} AND active RETURNING id", come);
            return Ok((attached, read_ids(transaction, sql).await?));
        }
        let sql = sql!(
            "INSERT INTO group_members (group_id, user_id) SELECT {group}, u.id FROM users u
             WHERE u.id {in gone} AND NOT {+is_member} RETURNING user_id",
            group = *group,
            gone,
            is_member = self.is_member(),
        );
        let attached = read_ids(transaction, sql).await?;
        let mut detached = Vec::new();
        for sql in [
            sql!(
                "DELETE FROM group_members WHERE group_id = {group} AND user_id {in come} RETURNING user_id",
                group = *group,
                come,
            ),
            sql!(
                "DELETE FROM inactive_members WHERE group_id = {group} AND user_id {in come} RETURNING user_id",
                group = *group,
                come,
            ),
        ] {
            detached.append(&mut read_ids(transaction, sql).await?);
        }
        Ok((attached, detached))
    }

    fn undone(&self, attached: Vec<String>, detached: Vec<String>) -> Undone {
        let skipped = (self.attached.len() + self.detached.len()).saturating_sub(attached.len() + detached.len());
        Undone::Undone { attached, detached, skipped: skipped as u64 }
    }
}

/// What a sync changed if it can be undone; otherwise why it can't.
async fn find_undoable(connection: &mut PooledConnection, id: i64) -> Result<Result<Changes, Undone>, sqlx::Error> {
    let Some(changes) = find_changes(connection, id).await? else { return Ok(Err(Undone::NotFound)) };
    let sql = sql!("SELECT 1 FROM groups WHERE id = {group}", group = changes.group);
    if connection.fetch_all(sql).await?.is_empty() {
        return Ok(Err(Undone::GroupDeleted));
    }
    Ok(match find_later(connection, id, &changes).await? {
        Some((sync, is_undo)) => Err(Undone::TouchedLater { sync, is_undo }),
        None => Ok(changes),
    })
}

async fn find_changes(connection: &mut PooledConnection, id: i64) -> Result<Option<Changes>, sqlx::Error> {
    let sql = sql!(
        "SELECT s.group_id, coalesce((SELECT g.name FROM groups g WHERE g.id = s.group_id), s.group_name),
           s.attached, s.detached, EXISTS (SELECT 1 FROM groups g WHERE g.id = s.group_id AND g.built_in)
         FROM group_syncs s WHERE s.id = {id}",
        id,
    );
    let rows = connection.fetch_all(sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Changes {
        group: row.get(0)?,
        group_name: row.get(1)?,
        attached: parse_ids(&row.get::<String>(2)?)?,
        detached: parse_ids(&row.get::<String>(3)?)?,
        built_in: row.get(4)?,
    }))
}

/// The first later sync of the group that touched one of the members, and whether it is the undo of this one.
async fn find_later(
    connection: &mut PooledConnection,
    id: i64,
    changes: &Changes,
) -> Result<Option<(i64, bool)>, sqlx::Error> {
    let touched: HashSet<i64> = changes.attached.iter().chain(&changes.detached).copied().collect();
    let sql = sql!(
        "SELECT id, undoes, attached, detached FROM group_syncs WHERE group_id = {group} AND id > {id} ORDER BY id",
        group = changes.group,
        id,
    );
    let mut later = None;
    // Row by row: together, the syncs of a large group may take more memory than a request has.
    connection
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

async fn read_ids(transaction: &mut Transaction, sql: Sql) -> Result<Vec<i64>, sqlx::Error> {
    let rows = transaction.fetch_all(sql).await?;
    rows.iter().map(|row| row.get(0)).collect()
}

/// The addresses of users `u` with these ids that satisfy a condition.
async fn read_addresses(
    connection: &mut PooledConnection,
    ids: &[i64],
    condition: Sql,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = sql!(
        "SELECT u.email FROM users u WHERE u.id {in ids} AND {+condition}
         ORDER BY u.email_folded {pg: COLLATE \"C\"}",
        ids,
        condition,
    );
    let rows = connection.fetch_all(sql).await?;
    rows.iter().map(|row| row.get(0)).collect()
}
