//! Syncs: every write of a group that changed something, with the users who came and went, for 90 days.
//!
//! A directory changes a group by many requests. Those of one token that follow each other are one sync, a *run*: it has who came
//! and who went in all, so that it can be undone as a whole. Another write of the group, an undo or a pause ends a run, and so does
//! the first removal of the guard's ten minutes: what emptied a group is not one with what filled it.
//!
//! A sync is written in the transaction of its write, so there is none for a write that was rolled back. The functions of the
//! Postgres schema add theirs themselves. Members are kept as ids: a list of a hundred thousand takes less than a
//! megabyte, and a write that changes nothing adds nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::change::SyncedBy;
use crate::store::directory::current_began;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// How long a sync is kept. `formgate_sync_and_keep` of the schema has the same number.
///
/// Larger: the databases of accounts with large directories grow. Smaller: a mistake that is noticed late can't be undone.
const KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The longest pause between two requests of a run.
///
/// Larger: what a directory does at different times is undone together. Smaller: a directory that writes slowly has several runs.
const PAUSE: Duration = Duration::from_secs(10 * 60);

/// How many users a run may have. The next request begins another one.
///
/// Larger: a request that adds one user reads and writes longer lists. Smaller: writing a large group takes several runs.
const MAX_RUN: i64 = 100_000;

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
    /// When a directory last changed the group in this run. None for a single write.
    pub changed_at: Option<Timestamp>,
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

/// Whether a change is a part of a run of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum SyncKind {
    Single,
    Run,
}

/// A group that is being written.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct ChangedGroup<'g> {
    pub(in crate::store) id: i64,
    pub(in crate::store) name: &'g str,
    pub(in crate::store) is_new: bool,
    pub(in crate::store) is_renamed: bool,
}

impl ChangedGroup<'_> {
    fn is_as_before(&self, attached: &[i64], detached: &[i64]) -> bool {
        !self.is_new && !self.is_renamed && attached.is_empty() && detached.is_empty()
    }
}

impl GroupSync {
    /// Selects syncs `s`.
    fn select() -> Sql {
        Sql::text(
            "SELECT s.id, s.at, s.group_id, s.group_name, s.is_new, s.actor, s.token_id, s.undoes, s.attached_count, \
             s.detached_count, s.changed_at FROM group_syncs s",
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
            changed_at: row.get(10)?,
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
    if group.is_as_before(attached, detached) {
        return Ok(());
    }
    add_sync(transaction, group, by, None, attached, detached).await?;
    let oldest = Timestamp::now() - KEPT;
    transaction.execute(sql!("DELETE FROM group_syncs WHERE at < {oldest}", oldest)).await?;
    Ok(())
}

/// Keeps a change by a directory in its run, or begins one.
pub(in crate::store) async fn keep_run(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
    if group.is_as_before(attached, detached) {
        return Ok(());
    }
    let removing_since = if detached.is_empty() { None } else { current_began(transaction, group.id).await? };
    let sql = sql!(
        "SELECT s.id, s.detached_count FROM group_syncs s
         WHERE s.id = (SELECT max(n.id) FROM group_syncs n WHERE n.group_id = {group})
           AND s.token_id = {token} AND s.changed_at > {clock - pause} AND s.at >= {began}
           AND s.attached_count + s.detached_count < {most}",
        group = group.id,
        token = by.token,
        pause = PAUSE,
        began = removing_since.unwrap_or(Timestamp::UNIX_EPOCH),
        most = MAX_RUN,
    );
    let Some(row) = transaction.fetch_all(sql).await?.pop() else {
        keep_sync(transaction, group, by, attached, detached).await?;
        let sql = sql!(
            "UPDATE group_syncs SET changed_at = at
             WHERE id = (SELECT max(n.id) FROM group_syncs n WHERE n.group_id = {group})",
            group = group.id,
        );
        transaction.execute(sql).await?;
        return Ok(());
    };
    let (id, gone): (i64, i64) = (row.get(0)?, row.get(1)?);
    if gone == 0 && detached.is_empty() && !attached.is_empty() {
        // While a directory fills a large group, its growing list is extended without being read.
        let sql = sql!(
            "UPDATE group_syncs SET changed_at = {clock}, group_name = {name}, attached_count = attached_count + {count},
               attached = CASE attached_count WHEN 0 THEN {all}
                 ELSE substr(attached, 1, length(attached) - 1) || ',' || substr({all}, 2) END
             WHERE id = {id}",
            name = group.name,
            count = count(attached),
            all = as_json(attached),
            id,
        );
        transaction.execute(sql).await?;
        return Ok(());
    }
    let sql = sql!("SELECT attached, detached FROM group_syncs WHERE id = {id}", id);
    let row = transaction.connection().fetch_one(sql).await?;
    let [mut come, mut gone] =
        [parse_ids(&row.get::<String>(0)?)?, parse_ids(&row.get::<String>(1)?)?].map(BTreeSet::from_iter);
    // A user who came and went is as before.
    let is_new = |user: &&i64| !gone.remove(*user);
    come.extend(attached.iter().filter(is_new).collect::<Vec<_>>());
    let was_before = |user: &&i64| !come.remove(*user);
    gone.extend(detached.iter().filter(was_before).collect::<Vec<_>>());
    let [come, gone] = [come, gone].map(|users| users.into_iter().collect::<Vec<i64>>());
    let sql = sql!(
        "UPDATE group_syncs SET changed_at = {clock}, group_name = {name}, attached = {attached}, detached = {detached},
           attached_count = {attached_count}, detached_count = {detached_count} WHERE id = {id}",
        name = group.name,
        attached = as_json(&come),
        detached = as_json(&gone),
        attached_count = count(&come),
        detached_count = count(&gone),
        id,
    );
    transaction.execute(sql).await?;
    Ok(())
}

fn as_json(ids: &[i64]) -> String {
    serde_json::to_string(ids).expect("numbers are JSON")
}

pub(super) fn parse_ids(text: &str) -> Result<Vec<i64>, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn count(ids: &[i64]) -> i64 {
    i64::try_from(ids.len()).expect("what is in memory can be counted")
}

/// Adds a sync.
pub(in crate::store) async fn add_sync(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    undoes: Option<i64>,
    attached: &[i64],
    detached: &[i64],
) -> Result<(), sqlx::Error> {
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
        attached = as_json(attached),
        detached = as_json(detached),
        attached_count = count(attached),
        detached_count = count(detached),
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// What a directory last sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioned {
    /// Its token.
    pub token: i64,
    /// The name of the token.
    pub name: String,
    /// When it last sent a request, and for which route.
    pub last_request: Option<(Timestamp, String)>,
    /// The run of its last change of a group.
    pub last_change: Option<GroupSync>,
}

/// How many directories are listed.
///
/// Larger: a page gets longer. Smaller: an account with many tokens does not see all of them.
const DIRECTORIES: u32 = 50;

impl Store {
    /// The tokens of directories, which may do nothing else or changed a group by SCIM, and what they last sent.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_provisioned(&self) -> Result<Vec<Provisioned>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT s.id, s.at, s.group_id, s.group_name, s.is_new, s.actor, s.token_id, s.undoes, s.attached_count,
               s.detached_count, s.changed_at, t.id, t.name, t.last_used_at, t.last_used_route
             FROM tokens t LEFT JOIN group_syncs s ON s.id =
               (SELECT n.id FROM group_syncs n WHERE n.token_id = t.id AND n.changed_at IS NOT NULL
                ORDER BY n.changed_at DESC, n.id DESC LIMIT 1)
             WHERE t.revoked_at IS NULL AND (s.id IS NOT NULL OR ' ' || t.scopes || ' ' LIKE '% scim %')
             ORDER BY t.id DESC LIMIT {limit} {scans: an account has few tokens}",
            limit = DIRECTORIES,
        );
        let rows = reader.fetch_all(sql).await?;
        let read = rows.iter().map(|row| {
            let sync: Option<i64> = row.get(0)?;
            let last_used: Option<Timestamp> = row.get(13)?;
            Ok(Provisioned {
                token: row.get(11)?,
                name: row.get(12)?,
                last_request: last_used.zip(row.get(14)?),
                last_change: sync.map(|_| GroupSync::read(row)).transpose()?,
            })
        });
        Ok(read.collect::<Result<_, sqlx::Error>>()?)
    }

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
