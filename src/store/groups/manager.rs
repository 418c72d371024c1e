//! Gives a group to SCIM, to `PUT /group`, or back to the account.

use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;

use super::{GroupSummary, write};
use crate::store::directory::{GroupManager, release_held};
use crate::store::engine::retry;
use crate::store::statement::sql;
use crate::store::{Actor, AuditEntry, Store, StoreError, audit};

/// The outcome of giving a group to someone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenGroup {
    /// It belongs to who was named.
    Given(GroupSummary),
    /// The built-in group belongs to nobody.
    BuiltIn,
    /// There is no such group.
    NotFound,
}

impl Store {
    /// Gives a group to who writes it from now on. Its members do not change. What is held of it is forgotten if SCIM no longer
    /// writes it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn give_group(&self, id: i64, manager: GroupManager, by: &Actor) -> Result<GivenGroup, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        retry::run(|| async move {
            let mut transaction = write::begin(&self.database, waiting_since).await?;
            match GroupSummary::find(transaction.connection(), id).await? {
                None => return Ok(GivenGroup::NotFound),
                Some((_, true)) => return Ok(GivenGroup::BuiltIn),
                Some((_, false)) => {}
            }
            let managed = manager != GroupManager::Product;
            transaction.execute(sql!("UPDATE groups SET managed = {managed} WHERE id = {id}", managed, id)).await?;
            let sql = match manager {
                GroupManager::Scim => sql!(
                    "INSERT INTO directory_groups (group_id, created_at, updated_at) VALUES ({id}, {clock}, {clock})
                     ON CONFLICT (group_id) DO NOTHING",
                    id,
                ),
                GroupManager::Api | GroupManager::Product => {
                    release_held(&mut transaction, id).await?;
                    sql!("DELETE FROM directory_groups WHERE group_id = {id}", id)
                }
            };
            transaction.execute(sql).await?;
            let found = GroupSummary::find(transaction.connection(), id).await?;
            let (group, _) = found.ok_or(sqlx::Error::RowNotFound)?;
            let to = match manager {
                GroupManager::Product => "account",
                GroupManager::Api => "api",
                GroupManager::Scim => "scim",
            };
            let entry = AuditEntry {
                action: "group.give",
                subject: format!("group {id}"),
                details: json!({ "name": group.name, "to": to }),
            };
            audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
            transaction.commit().await?;
            Ok(GivenGroup::Given(group))
        })
        .await
    }
}
