//! Syncs: every write of a group that changed something, with the users who came and went, for 90 days.
//!
//! A sync is added in the transaction of its write, so there is none for a write that was rolled back. The functions of the
//! Postgres schema add theirs themselves. Members are kept as ids: a list of a hundred thousand takes less than a
//! megabyte, and a write that changes nothing adds nothing.

use std::time::Duration;

use jiff::Timestamp;

use super::change::SyncedBy;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// How long a sync is kept. `formgate_sync_and_keep` of the schema has the same number.
///
/// Larger: the databases of accounts with large directories grow. Smaller: a mistake that is noticed late can't be undone.
const KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// How many members of a sync are listed in each direction.
///
/// Larger: the first sync of a large directory takes more memory. Smaller: fewer of them can be compared by eye.
const LISTED: i64 = 1_000;

/// A write of a group that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSync {
    /// Its number; later ones are greater.
    pub id: i64,
    /// When it was written.
    pub at: Timestamp,
    /// The group.
    pub group: i64,
    /// The name of the group after the write.
    pub group_name: String,
    /// Whether it created the group.
    pub is_new: bool,
    /// The name of the token, or the administrator who undid another sync.
    pub actor: String,
    /// The token. None for an undo.
    pub token: Option<i64>,
    /// The sync that it undid.
    pub undoes: Option<i64>,
    /// How many users became members.
    pub attached: u64,
    /// How many users stopped being members.
    pub detached: u64,
}

/// The members that a sync changed: the first ones by folded address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncMembers {
    /// The addresses of users who became members.
    pub attached: Vec<String>,
    /// The addresses of users who stopped being members.
    pub detached: Vec<String>,
}

/// A group that is being written.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct ChangedGroup<'g> {
    pub(in crate::store) id: i64,
    pub(in crate::store) name: &'g str,
    pub(in crate::store) is_new: bool,
    pub(in crate::store) is_renamed: bool,
}

impl GroupSync {
    /// Selects syncs `s`.
    fn select() -> Sql {
        Sql::text(
            "SELECT s.id, s.at, s.group_id, s.group_name, s.is_new, s.actor, s.token_id, s.undoes, s.attached_count, \
             s.detached_count FROM group_syncs s",
        )
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            at: row.get(1)?,
            group: row.get(2)?,
            group_name: row.get(3)?,
            is_new: row.get(4)?,
            actor: row.get(5)?,
            token: row.get(6)?,
            undoes: row.get(7)?,
            attached: row.get::<i64>(8)?.unsigned_abs(),
            detached: row.get::<i64>(9)?.unsigned_abs(),
        })
    }
}

/// Adds a sync, if the group is new or renamed or its members changed, and removes those that are too old.
pub(in crate::store) async fn keep_sync(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
    if !group.is_new && !group.is_renamed && attached.is_empty() && detached.is_empty() {
        return Ok(());
    }
    add(transaction, group, by, None, attached, detached).await?;
    let oldest = Timestamp::now() - KEPT;
    transaction.execute(sql!("DELETE FROM group_syncs WHERE at < {oldest}", oldest)).await?;
    Ok(())
}

/// Adds a sync.
pub(super) async fn add(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    undoes: Option<i64>,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
    let ids = |ids: &[i64]| serde_json::to_string(ids).expect("numbers are JSON");
    let count = |ids: &[i64]| i64::try_from(ids.len()).expect("what is in memory can be counted");
    let sql = sql!(
        "INSERT INTO group_syncs (at, group_id, group_name, is_new, actor, token_id, undoes, attached, detached,
           attached_count, detached_count)
         VALUES ({clock}, {group}, {name}, {is_new}, {actor}, {token}, {undoes}, {attached}, {detached},
           {attached_count}, {detached_count})",
        group = group.id,
        name = group.name,
        is_new = group.is_new,
        actor = &*by.name,
        token = by.token,
        undoes,
        attached = ids(attached),
        detached = ids(detached),
        attached_count = count(attached),
        detached_count = count(detached),
    );
    transaction.execute(sql).await?;
    Ok(())
}

impl Store {
    /// Syncs, the newest first: of one group or all, below the number `before`, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_group_syncs(
        &self,
        group: Option<i64>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<GroupSync>, StoreError> {
        let mut reader = self.database.reader().await?;
        let conditions = [
            Some(Sql::text("true")),
            group.map(|group| sql!("s.group_id = {group}", group)),
            before.map(|before| sql!("s.id < {before}", before)),
        ];
        let sql = sql!(
            "{+select} WHERE {+conditions} ORDER BY s.id DESC LIMIT {limit}",
            select = GroupSync::select(),
            conditions = Sql::joined(conditions.into_iter().flatten(), " AND "),
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(GroupSync::read).collect::<Result<_, _>>()?)
    }

    /// A sync, and at most a thousand members in each direction, with addresses of users who still exist.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_group_sync(&self, id: i64) -> Result<Option<(GroupSync, SyncMembers)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("{+select} WHERE s.id = {id}", select = GroupSync::select(), id);
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let mut lists: [Vec<String>; 2] = Default::default();
        for (list, ids) in lists.iter_mut().zip(["s.attached", "s.detached"]) {
            let sql = sql!(
                "SELECT u.email FROM group_syncs s JOIN users u ON u.id IN
                   {pg: (SELECT e::bigint AS value FROM json_array_elements_text({+ids}::json) AS e)
                   | lite: (SELECT value FROM json_each({+ids}))}
                 WHERE s.id = {id}
                 ORDER BY u.email_folded {pg: COLLATE \"C\"} LIMIT {listed}",
                ids = Sql::text(ids),
                id,
                listed = LISTED,
            );
            let rows = reader.fetch_all(sql).await?;
            *list = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
        }
        let [attached, detached] = lists;
        Ok(Some((GroupSync::read(&row)?, SyncMembers { attached, detached })))
    }
}
