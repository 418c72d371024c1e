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

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::change::{Durability, GroupWrite, GroupWriteError, MemberChange, Report, SyncedBy, WriteMode, WrittenGroup};
use super::members::{count_members, replace_members};
use super::spellings::find_spellings;
use super::syncs::{ChangedGroup, keep_sync};
use super::{GroupSummary, IS_OF_SCIM};
use crate::store::engine::{Database, Transaction, retry};
use crate::store::import::check::ALL_USERS;
use crate::store::statement::{Dialect, Row, Sql, fold, sql};
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

/// Whether a name is that of the built-in group, in any case: people could not tell the two groups apart.
pub(in crate::store) fn is_built_in_name(name: &str) -> bool {
    fold(name) == fold(ALL_USERS)
}

/// Begins a transaction that may write groups, for a caller that has been waiting since `waiting_since`. On SQLite,
/// write transactions exclude each other anyway.
pub(in crate::store) async fn begin(database: &Database, waiting_since: Instant) -> Result<Transaction, StoreError> {
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
        if is_built_in_name(&write.name) {
            return Err(GroupWriteError::BuiltIn);
        }
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
        let was_tried = &AtomicBool::new(false);
        let written = retry::run(|| async move {
            let is_retry = was_tried.swap(true, Ordering::Relaxed);
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
                None => {
                    (create(&mut transaction, write, mode.durability).await?, write.external_id.clone(), true, false)
                }
            };
            let changed = ChangedGroup { id, name: &write.name, is_new: created, is_renamed };
            let (members, count) = match &write.members {
                Some(members) => {
                    let (members, _) = find_spellings(members, transaction.connection()).await?;
                    let change = replace_members(&mut transaction, changed, &members, mode, by).await?;
                    // The members are now exactly these, but for inactive ones.
                    let count = members.count() as u64 - change.inactive;
                    (change, count)
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
            let group = GroupSummary {
                id,
                name: write.name.clone(),
                external_id,
                managed: true,
                is_of_scim: false,
                members: count,
            };
            match mode.durability {
                Durability::Commit => transaction.commit().await?,
                Durability::DryRun => transaction.roll_back().await?,
            }
            Ok(WrittenGroup { group, created, members })
        });
        let written = written.await;
        self.note_group_write();
        written
    }
}

/// A group that may be the one to write.
struct Candidate {
    id: i64,
    name: String,
    external_id: Option<String>,
    managed: bool,
    built_in: bool,
    is_of_scim: bool,
}

impl Candidate {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            external_id: row.get(2)?,
            managed: row.get(3)?,
            built_in: row.get(4)?,
            is_of_scim: row.get(5)?,
        })
    }

    /// Whether nothing but the members has to change.
    fn matches(&self, write: &GroupWrite, external_id: Option<&str>) -> bool {
        self.managed && self.name == write.name && self.external_id.as_deref() == external_id
    }
}

/// Finds the group to write.
async fn find(transaction: &mut Transaction, write: &GroupWrite) -> Result<Option<Candidate>, GroupWriteError> {
    let name = &write.name;
    let condition = match &write.external_id {
        None => sql!("g.name = {name}", name),
        Some(external_id) => sql!("g.name = {name} OR g.external_id = {external_id}", name, external_id),
    };
    let sql = sql!(
        "SELECT g.id, g.name, g.external_id, g.managed, g.built_in, {+is_of_scim}
         FROM groups g WHERE {+condition} ORDER BY g.id",
        is_of_scim = Sql::text(IS_OF_SCIM),
        condition,
    );
    let rows = transaction.fetch_all(sql).await?;
    let candidates = rows.iter().map(Candidate::read).collect::<Result<Vec<_>, _>>()?;
    let identified = |candidate: &Candidate| write.external_id.is_some() && candidate.external_id == write.external_id;
    let (mut identified, named): (Vec<_>, Vec<_>) = candidates.into_iter().partition(identified);
    if named.iter().any(|candidate| candidate.built_in) {
        return Err(GroupWriteError::BuiltIn);
    }
    let found = match identified.pop() {
        Some(Candidate { name, built_in: true, .. }) if name == write.name => return Err(GroupWriteError::BuiltIn),
        Some(Candidate { built_in: true, .. }) => return Err(GroupWriteError::BuiltInIdentified),
        Some(identified) => Some(identified),
        // A group of the same name without an identifier is adopted; one with another identifier is not touched.
        None if write.external_id.is_some() => named.into_iter().find(|candidate| candidate.external_id.is_none()),
        None if named.len() > 1 => return Err(GroupWriteError::AmbiguousName),
        None => named.into_iter().next(),
    };
    if found.as_ref().is_some_and(|found| found.is_of_scim) {
        return Err(GroupWriteError::OfScim);
    }
    Ok(found)
}

/// Updates the name and the identifier of a group.
async fn update(
    transaction: &mut Transaction,
    id: i64,
    write: &GroupWrite,
    external_id: Option<String>,
) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "UPDATE groups SET managed = TRUE, name = {name}, external_id = {external_id} WHERE id = {id}",
        name = &write.name,
        external_id,
        id,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// The id of the built-in group, which is the largest. Ids of other programs, and numbers of a sequence, from it on do not
/// count.
const MAX_ID: i64 = 9_007_199_254_740_991;

/// An id above every id that a group has or had, if there is one. The caller keeps other writes from creating groups.
pub(in crate::store) async fn next_id(
    transaction: &mut Transaction,
    durability: Durability,
) -> Result<i64, sqlx::Error> {
    // The largest id that a group has, and the last one that was assigned.
    let sql = sql!(
        "SELECT (SELECT coalesce(max(id), 0) FROM groups WHERE id < {max_id}),
           {pg: CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM groups_id_seq
           | lite: coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'groups'), 0)}",
        max_id = MAX_ID,
    );
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    let (largest, assigned): (i64, i64) = (row.get(0)?, row.get(1)?);
    let is_lost = assigned >= MAX_ID;
    let next = largest.max(if is_lost { 0 } else { assigned }) + 1;
    // A dry run changes nothing. On Postgres, other programs take numbers from the sequence meanwhile; on SQLite, writing
    // the id of the built-in group again makes the largest id the last one.
    let sql = match (durability, transaction.dialect()) {
        _ if next >= MAX_ID => sql!(
            "SELECT min(id) + 1 FROM (SELECT 0 AS id UNION ALL SELECT id FROM groups) AS taken
             WHERE id + 1 NOT IN (SELECT id FROM groups)
             {scans: looks for the lowest id that no group has, if the highest is taken}",
        ),
        (Durability::DryRun, _) => return Ok(next),
        (Durability::Commit, Dialect::Sqlite) => {
            if is_lost {
                let sql = sql!("{lite: UPDATE sqlite_sequence SET seq = {largest} WHERE name = 'groups'}", largest);
                transaction.execute(sql).await?;
            }
            return Ok(next);
        }
        (Durability::Commit, Dialect::Postgres) if is_lost => {
            sql!("{pg: SELECT setval('groups_id_seq', {next})}", next)
        }
        (Durability::Commit, Dialect::Postgres) => {
            sql!("{pg: SELECT setval('groups_id_seq', greatest(nextval('groups_id_seq'), {next}))}", next)
        }
    };
    transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)
}

async fn create(
    transaction: &mut Transaction,
    write: &GroupWrite,
    durability: Durability,
) -> Result<i64, GroupWriteError> {
    let id = next_id(transaction, durability).await?;
    let sql = sql!(
        "INSERT INTO groups (id, name, external_id, managed) VALUES ({id}, {name}, {external_id}, TRUE)",
        id,
        name = &write.name,
        external_id = write.external_id.clone(),
    );
    transaction.execute(sql).await?;
    Ok(id)
}

/// Moves the sequence of user ids past ids that other programs assigned explicitly.
pub(in crate::store) async fn advance_user_sequence(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        let sql = sql!(
            "{pg: SELECT setval('users_id_seq',
               greatest((SELECT last_value FROM users_id_seq), (SELECT max(id) FROM users)))}"
        );
        transaction.execute(sql).await?;
    }
    Ok(())
}
