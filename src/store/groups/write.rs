//! `PUT /group` as one transaction of a fixed number of statements, however many members it lists.
//!
//! Writes of one account's groups exclude each other: on one node by a lock in memory, between nodes by a lock in the
//! database (an advisory lock on Postgres, the write lock on SQLite). So two calls for one group, or one new user in
//! two groups, can't interleave, and each result is true. Writes of other programs can still collide. The database
//! reports that, and the whole transaction is retried.
//!
//! A dry run is the same transaction, rolled back, so its result can't differ from that of the real call.
//!
//! The most frequent write of a directory is an unchanged group with other members. On Postgres that is one call of a
//! function, which takes the lock in shared mode: such writes run concurrently, except for those of the same group. If
//! more has to change, or two such calls create the same user, the call does nothing, and the write takes the lock
//! exclusively.

use std::time::{Duration, Instant};

use super::GroupSummary;
use super::change::{Durability, GroupWrite, GroupWriteError, MemberChange, Report, SyncedBy, WriteMode, WrittenGroup};
use super::members::{count_members, replace_members};
use super::spellings::find_spellings;
use super::syncs::{ChangedGroup, keep_sync};
use crate::store::engine::{Database, Retry, Transaction};
use crate::store::statement::{Dialect, Row};
use crate::store::{Store, StoreError, users};

/// How long one statement of a write may take, including the wait for the lock.
///
/// Larger: requests wait longer for a database that is stuck. Smaller: a write of hundreds of thousands of members, or
/// one that waits for it, is cut off.
const STATEMENT_LIMIT: Duration = Duration::from_secs(60);

/// Begins a transaction with [`STATEMENT_LIMIT`] and waits for the lock on groups. Its number is arbitrary; nothing
/// else in the account's database uses it, except for `formgate_sync_group` of the schema, which takes the same
/// lock in shared mode.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '60s'; \
    SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(7310577365311121506)";

/// Begins a transaction that may write groups, for a caller that has been waiting since `waiting_since`. On SQLite,
/// write transactions exclude each other anyway.
pub(super) async fn begin(database: &Database, waiting_since: Instant) -> Result<Transaction, StoreError> {
    database.begin_with(BEGIN, STATEMENT_LIMIT, waiting_since).await
}

impl Store {
    /// Creates or updates one group and replaces its membership, in one transaction. If that changes something, keeps it as
    /// a sync.
    ///
    /// # Errors
    /// [`GroupWriteError`]. Nothing was changed then.
    pub async fn write_group(
        &self,
        write: &GroupWrite,
        mode: WriteMode,
        by: &SyncedBy,
    ) -> Result<WrittenGroup, GroupWriteError> {
        let plain = WriteMode { guard: None, durability: Durability::Commit, report: Report::Counts };
        if mode == plain
            && let Some(members) = &write.members
            && let Some((group, members)) = self.replace_members_by_one_call(write, members, by).await?
        {
            self.note_group_write();
            return Ok(WrittenGroup { group, created: false, members });
        }
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let mut retry = Retry::default();
        loop {
            match self.try_to_write_group(write, mode, by, retry.is_retry(), waiting_since).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => {
                    self.note_group_write();
                    return outcome;
                }
            }
        }
    }

    async fn try_to_write_group(
        &self,
        write: &GroupWrite,
        mode: WriteMode,
        by: &SyncedBy,
        is_retry: bool,
        waiting_since: Instant,
    ) -> Result<WrittenGroup, GroupWriteError> {
        let mut transaction = begin(&self.database, waiting_since).await?;
        if is_retry {
            advance_user_sequence(&mut transaction).await?;
        }
        users::fold_new(&mut transaction).await?;
        let found = find(&mut transaction, write).await?;
        let (id, external_id, created, is_renamed) = match found {
            Some(found) => {
                let external_id = write.external_id.clone().or_else(|| found.external_id.clone());
                if !found.matches(write, external_id.as_deref()) {
                    update(&mut transaction, found.id, write, external_id.clone()).await?;
                }
                (found.id, external_id, false, found.name != write.name)
            }
            None => (create(&mut transaction, write, mode.durability).await?, write.external_id.clone(), true, false),
        };
        let changed = ChangedGroup { id, name: &write.name, is_new: created, is_renamed };
        let (members, count) = match &write.members {
            Some(members) => {
                let (members, _) = find_spellings(members, transaction.connection()).await?;
                let change = replace_members(&mut transaction, changed, &members, mode, by).await?;
                // The members are now exactly these.
                (change, members.count() as u64)
            }
            None => {
                let change = MemberChange {
                    report: (mode.report == Report::Members).then(Default::default),
                    ..Default::default()
                };
                keep_sync(&mut transaction, changed, by, &[], &[]).await?;
                (change, count_members(&mut transaction, id).await?)
            }
        };
        let group = GroupSummary { id, name: write.name.clone(), external_id, managed: true, members: count };
        match mode.durability {
            Durability::Commit => transaction.commit().await?,
            Durability::DryRun => transaction.roll_back().await?,
        }
        Ok(WrittenGroup { group, created, members })
    }
}

/// A group that may be the one to write.
struct Candidate {
    id: i64,
    name: String,
    external_id: Option<String>,
    managed: bool,
    built_in: bool,
}

impl Candidate {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            external_id: row.get(2)?,
            managed: row.get(3)?,
            built_in: row.get(4)?,
        })
    }

    /// Whether nothing but the members has to change.
    fn matches(&self, write: &GroupWrite, external_id: Option<&str>) -> bool {
        self.managed && self.name == write.name && self.external_id.as_deref() == external_id
    }
}

/// Finds the group to write.
async fn find(transaction: &mut Transaction, write: &GroupWrite) -> Result<Option<Candidate>, GroupWriteError> {
    let mut sql = transaction.sql();
    sql.push("SELECT g.id, g.name, g.external_id, g.managed, g.built_in FROM groups g WHERE g.name = ");
    sql.bind(write.name.as_str());
    if let Some(external_id) = &write.external_id {
        sql.push(" OR g.external_id = ").bind(external_id.as_str());
    }
    sql.push(" ORDER BY g.id");
    let rows = transaction.fetch_all(sql).await?;
    let candidates = rows.iter().map(Candidate::read).collect::<Result<Vec<_>, _>>()?;
    let identified = |candidate: &Candidate| write.external_id.is_some() && candidate.external_id == write.external_id;
    let (mut identified, named): (Vec<_>, Vec<_>) = candidates.into_iter().partition(identified);
    if named.iter().any(|candidate| candidate.built_in) {
        return Err(GroupWriteError::BuiltIn);
    }
    match identified.pop() {
        Some(Candidate { name, built_in: true, .. }) if name == write.name => Err(GroupWriteError::BuiltIn),
        Some(Candidate { built_in: true, .. }) => Err(GroupWriteError::BuiltInIdentified),
        Some(identified) => Ok(Some(identified)),
        // A group of the same name without an identifier is adopted; one with another identifier is not touched.
        None if write.external_id.is_some() => Ok(named.into_iter().find(|candidate| candidate.external_id.is_none())),
        None if named.len() > 1 => Err(GroupWriteError::AmbiguousName),
        None => Ok(named.into_iter().next()),
    }
}

/// Updates the name and the identifier of a group.
async fn update(
    transaction: &mut Transaction,
    id: i64,
    write: &GroupWrite,
    external_id: Option<String>,
) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("UPDATE groups SET managed = ").push_either("true", "1").push(", name = ").bind(write.name.as_str());
    sql.push(", external_id = ").bind(external_id).push(" WHERE id = ").bind(id);
    transaction.execute(sql).await?;
    Ok(())
}

/// The id of the built-in group, which is the largest. Ids of other programs beyond it do not count.
const MAX_ID: i64 = 9_007_199_254_740_991;

/// The largest id that a group has, and the last one that was assigned. Neither counts from [`MAX_ID`] on.
const LAST_IDS: [&str; 2] = [
    "SELECT (SELECT coalesce(max(id), 0) FROM groups WHERE id < 9007199254740991), \
        CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM groups_id_seq",
    "SELECT (SELECT coalesce(max(id), 0) FROM groups WHERE id < 9007199254740991), \
        coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'groups'), 0)",
];

/// The lowest id that no group has, for a database whose highest is taken.
const LOWEST_FREE_ID: &str = "SELECT min(id) + 1 FROM (SELECT 0 AS id UNION ALL SELECT id FROM groups) AS taken \
    WHERE id + 1 NOT IN (SELECT id FROM groups)";

/// An id above every id that a group has or had, if there is one. The caller keeps other writes from creating groups.
async fn next_id(transaction: &mut Transaction, durability: Durability) -> Result<i64, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push_each(LAST_IDS);
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    let (largest, assigned): (i64, i64) = (row.get(0)?, row.get(1)?);
    let is_lost = assigned >= MAX_ID;
    let next = largest.max(if is_lost { 0 } else { assigned }) + 1;
    let mut sql = transaction.sql();
    if next >= MAX_ID {
        sql.push(LOWEST_FREE_ID);
    } else {
        // A dry run changes nothing. On Postgres, other programs take numbers from the sequence meanwhile; on SQLite, writing
        // the id of the built-in group again makes the largest id the last one.
        match (durability, transaction.dialect()) {
            (Durability::DryRun, _) => return Ok(next),
            (Durability::Commit, Dialect::Sqlite) if is_lost => {
                sql.push("UPDATE sqlite_sequence SET seq = ").bind(largest).push(" WHERE name = 'groups'");
                transaction.execute(sql).await?;
                return Ok(next);
            }
            (Durability::Commit, Dialect::Sqlite) => return Ok(next),
            (Durability::Commit, Dialect::Postgres) if is_lost => {
                sql.push("SELECT setval('groups_id_seq', ").bind(next).push(")");
            }
            (Durability::Commit, Dialect::Postgres) => {
                sql.push("SELECT setval('groups_id_seq', greatest(nextval('groups_id_seq'), ").bind(next).push("))");
            }
        }
    }
    transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)
}

async fn create(
    transaction: &mut Transaction,
    write: &GroupWrite,
    durability: Durability,
) -> Result<i64, GroupWriteError> {
    let id = next_id(transaction, durability).await?;
    let mut sql = transaction.sql();
    sql.push("INSERT INTO groups (id, name, external_id, managed) VALUES (")
        .bind(id)
        .push(", ")
        .bind(write.name.as_str());
    sql.push(", ").bind(write.external_id.clone()).push(", ").push_either("true", "1").push(")");
    transaction.execute(sql).await?;
    Ok(id)
}

/// Moves the sequence of user ids past ids that other programs assigned explicitly.
async fn advance_user_sequence(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        let mut sql = transaction.sql();
        sql.push("SELECT setval('users_id_seq', greatest((SELECT last_value FROM users_id_seq), (SELECT max(id) FROM users)))");
        transaction.execute(sql).await?;
    }
    Ok(())
}
