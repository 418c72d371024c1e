//! Replaces a group's members. Rows of members that stay are not written, and an unknown e-mail address creates a
//! user.
//!
//! All members of a statement are bound as arrays on Postgres and as one JSON value on SQLite, so its text never
//! grows.

use std::sync::Arc;

use super::GroupSummary;
use super::change::{GroupWrite, GroupWriteError, MemberChange, NewMembers, Report, SyncedBy, WriteMode};
use super::spellings::find_spellings;
use super::syncs::{ChangedGroup, keep_sync};
use crate::store::derived::totals;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, Row, Sql, fold, sql};
use crate::store::{Store, StoreError};

/// The members that a group should have, in the form that each database reads fastest.
enum WantedMembers<'m> {
    /// As arrays.
    Postgres(&'m NewMembers),
    /// As JSON: the folded address, the name (empty in a report) and, where folding changed it, the address.
    Sqlite(Arc<str>),
}

impl<'m> WantedMembers<'m> {
    fn new(dialect: Dialect, members: &'m NewMembers) -> Self {
        match dialect {
            Dialect::Postgres => Self::Postgres(members),
            Dialect::Sqlite => {
                // A report reads no names, which may be most of the text.
                let mut rows = rows_of(members).map(|[folded, email, _]| [folded, email, ""]);
                let all = next_json(&mut rows, usize::MAX);
                Self::Sqlite(all.map_or_else(|| "[]".into(), Arc::from))
            }
        }
    }

    /// The members as a table `w (folded, email, name)`.
    fn table(&self) -> Sql {
        match self {
            Self::Postgres(members) => sql!("unnest({+arrays}) AS w (folded, email, name)", arrays = arrays(members)),
            Self::Sqlite(rows) => sql!(
                "(SELECT value->>0 AS folded, coalesce(value->>2, value->>0) AS email, value->>1 AS name
                  FROM json_each({rows})) AS w",
                rows,
            ),
        }
    }
}

/// The members as rows of folded address, address and name.
fn rows_of(members: &NewMembers) -> impl Iterator<Item = [&str; 3]> {
    let columns = members.folded.iter().zip(members.emails.iter()).zip(members.names.iter());
    columns.map(|((folded, email), name)| [folded, email, name])
}

/// The next members as JSON of at least `bytes` bytes, or as many as are left. None after the last one.
fn next_json<'m>(rows: &mut impl Iterator<Item = [&'m str; 3]>, bytes: usize) -> Option<String> {
    let mut json = Vec::new();
    while json.len() < bytes
        && let Some([folded, email, name]) = rows.next()
    {
        json.push(if json.is_empty() { b'[' } else { b',' });
        let written = if folded == email {
            serde_json::to_writer(&mut json, &[folded, name])
        } else {
            serde_json::to_writer(&mut json, &[folded, name, email])
        };
        written.expect("texts are JSON, and memory takes them");
    }
    if json.is_empty() {
        return None;
    }
    json.push(b']');
    Some(String::from_utf8(json).expect("JSON is UTF-8"))
}

/// The members for Postgres as three arrays: folded addresses, addresses, names.
fn arrays(members: &NewMembers) -> Sql {
    let NewMembers { folded, emails, names, .. } = members;
    if Arc::ptr_eq(folded, emails) {
        sql!("{folded}::text[], {folded}::text[], {names}::text[]", folded, names)
    } else {
        sql!("{folded}::text[], {emails}::text[], {names}::text[]", folded, emails, names)
    }
}

/// The most members that are replaced by one call.
///
/// Larger: the call runs into the statement limit of ordinary requests, which is shorter than that of a group's
/// transaction. Smaller: more groups take four round trips instead of one.
const MAX_MEMBERS_PER_CALL: usize = 1_000;

/// Replaces the members, unless a guard forbids it.
pub(super) async fn replace_members(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    members: &NewMembers,
    mode: WriteMode,
    by: &SyncedBy,
) -> Result<MemberChange, GroupWriteError> {
    let id = group.id;
    let report = match mode.report {
        Report::Counts => None,
        Report::Members => {
            let wanted = WantedMembers::new(transaction.dialect(), members);
            Some(list_changes(transaction, id, &wanted).await?)
        }
    };

    // Only a guard needs the previous count.
    let (before, change) = match transaction.dialect() {
        Dialect::Postgres => change_members_on_postgres(transaction, group, members, by).await?,
        Dialect::Sqlite => {
            let before = if mode.guard.is_some() { count_members(transaction, id).await? } else { 0 };
            (before, change_members_on_sqlite(transaction, group, members, by).await?)
        }
    };
    if let Some(guard) = mode.guard
        && change.detached * 100 > before * u64::from(guard.max_detached_percent)
    {
        return Err(GroupWriteError::Guarded { detached: change.detached, members: before });
    }
    Ok(MemberChange { report, ..change })
}

pub(super) async fn count_members(transaction: &mut Transaction, id: i64) -> Result<u64, sqlx::Error> {
    let sql = sql!("SELECT {+members} FROM groups g WHERE g.id = {id}", members = Sql::text(totals::MEMBERS), id);
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    Ok(totals::not_negative(row.get(0)?))
}

/// On Postgres a function of the schema replaces the members, and keeps the sync. It also returns the previous count.
async fn change_members_on_postgres(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    members: &NewMembers,
    by: &SyncedBy,
) -> Result<(u64, MemberChange), sqlx::Error> {
    let ChangedGroup { id, name, is_new, is_renamed } = group;
    let sql = sql!(
        "{pg: SELECT members_before, attached, detached, created, inactive
         FROM formgate_sync_and_keep({id}, {+arrays}, {name}, {is_new}, {is_renamed}, {by}, {token})}",
        id,
        arrays = arrays(members),
        name,
        is_new,
        is_renamed,
        by = &*by.name,
        token = by.token,
    );
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    Ok((count(&row, 0)?, MemberChange::read(&row, 1)?))
}

fn count(row: &Row, column: usize) -> Result<u64, sqlx::Error> {
    Ok(u64::try_from(row.get::<i64>(column)?).expect("a count is not negative"))
}

impl MemberChange {
    fn read(row: &Row, from: usize) -> Result<Self, sqlx::Error> {
        let [attached, detached, created] = [count(row, from)?, count(row, from + 1)?, count(row, from + 2)?];
        Ok(Self { attached, detached, created, inactive: count(row, from + 3)?, report: None })
    }
}

impl Store {
    /// Replaces the members of a group on Postgres by one call, if nothing else has to change and no other writer
    /// creates, renames or deletes groups. Returns None, without a change, if that is not the case.
    ///
    /// This takes one round trip; a transaction takes four. If the connection breaks before the answer, the members
    /// may already be replaced, and the next try changes nothing.
    pub(super) async fn replace_members_by_one_call(
        &self,
        write: &GroupWrite,
        members: &NewMembers,
        by: &SyncedBy,
    ) -> Result<Option<(GroupSummary, MemberChange)>, StoreError> {
        if self.database.dialect() == Dialect::Sqlite || members.count() > MAX_MEMBERS_PER_CALL {
            return Ok(None);
        }
        let _lock = self.group_writes.read().await;
        let mut writer = self.database.writer().await?;
        let (members, all_exist) = find_spellings(members, &mut writer).await?;
        // Two writes that share the lock could each create a user for the same mailbox.
        if !all_exist {
            return Ok(None);
        }
        let sql = sql!(
            "{pg: SELECT group_id, group_external_id, attached, detached, created, inactive
             FROM formgate_sync_group({name}, {external_id}, {+arrays}, {by}, {token})}",
            name = &write.name,
            external_id = write.external_id.clone(),
            arrays = arrays(&members),
            by = &*by.name,
            token = by.token,
        );
        let row = writer.fetch_one(sql).await?;
        let Some(id) = row.get::<Option<i64>>(0)? else { return Ok(None) };
        let (name, external_id) = (write.name.clone(), row.get(1)?);
        let change = MemberChange::read(&row, 2)?;
        let members = members.count() as u64 - change.inactive;
        let group = GroupSummary { id, name, external_id, managed: true, is_of_scim: false, members };
        Ok(Some((group, change)))
    }
}

/// How many bytes of members are bound at once on SQLite, which copies the value and converts the JSON to its own
/// format.
///
/// Larger: a write takes several times as much memory. Smaller: it takes more statements.
const CHUNK_BYTES: usize = 256 * 1024;

/// Replaces the members on SQLite, chunk by chunk. SQLite does not reorder a `CROSS JOIN`: if it underestimated the
/// number of users, it would otherwise scan all wanted members for each user.
async fn change_members_on_sqlite(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    members: &NewMembers,
    by: &SyncedBy,
) -> Result<MemberChange, sqlx::Error> {
    let id = group.id;
    let (mut change, mut rows) = (MemberChange::default(), rows_of(members));
    let mut active: Vec<i64> = Vec::with_capacity(members.count());
    let [mut attached, mut detached, mut hidden] = [Vec::new(), Vec::new(), Vec::new()];
    while let Some(chunk) = next_json(&mut rows, CHUNK_BYTES) {
        let wanted = WantedMembers::Sqlite(chunk.into());
        let users = sql!(
            "{lite: INSERT INTO users (email, name, email_folded) SELECT w.email, w.name, w.folded FROM {+wanted}
             WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)}",
            wanted = wanted.table(),
        );
        change.created += transaction.execute(users).await?;
        let (before, mut inactive) = (active.len(), Vec::new());
        let found = sql!(
            "{lite: SELECT u.id, u.active FROM {+wanted} CROSS JOIN users u ON u.email_folded = w.folded}",
            wanted = wanted.table(),
        );
        let mut each = |row: Row| {
            if row.get(1)? { &mut active } else { &mut inactive }.push(row.get(0)?);
            Ok(())
        };
        transaction.fetch_each(found, &mut each).await?;
        // Not ON CONFLICT DO NOTHING, for which triggers would run for every member that stays.
        let members = sql!(
            "{lite: INSERT INTO group_members (group_id, user_id) SELECT {id}, value FROM json_each({ids})
             WHERE NOT EXISTS (SELECT 1 FROM group_members WHERE group_id = {id} AND user_id = value)
             RETURNING user_id}",
            id,
            ids = &active[before..],
        );
        read_ids(transaction, members, &mut attached).await?;
        if !inactive.is_empty() {
            let kept = sql!(
                "{lite: INSERT INTO inactive_members (group_id, user_id) SELECT {id}, value FROM json_each({ids})
                 WHERE NOT EXISTS (SELECT 1 FROM inactive_members WHERE group_id = {id} AND user_id = value)}",
                id,
                ids = &inactive,
            );
            transaction.execute(kept).await?;
            hidden.append(&mut inactive);
        }
    }
    let others = sql!(
        "{lite: DELETE FROM group_members WHERE group_id = {id} AND user_id NOT IN (SELECT value FROM json_each({ids}))
         RETURNING user_id}",
        id,
        ids = active,
    );
    read_ids(transaction, others, &mut detached).await?;
    change.inactive = hidden.len() as u64;
    let others = sql!(
        "{lite: DELETE FROM inactive_members WHERE group_id = {id}
         AND user_id NOT IN (SELECT value FROM json_each({ids}))}",
        id,
        ids = hidden,
    );
    transaction.execute(others).await?;
    keep_sync(transaction, group, by, &attached, &detached).await?;
    (change.attached, change.detached) = (attached.len() as u64, detached.len() as u64);
    Ok(change)
}

/// Adds the ids that a statement returns.
pub(in crate::store) async fn read_ids(
    transaction: &mut Transaction,
    sql: Sql,
    ids: &mut Vec<i64>,
) -> Result<(), sqlx::Error> {
    let mut each = |row: Row| {
        ids.push(row.get(0)?);
        Ok(())
    };
    transaction.fetch_each(sql, &mut each).await
}

/// The addresses that the write will attach, detach and create. A generic plan from a time with few users would read
/// all of them for each wanted member.
async fn list_changes(
    transaction: &mut Transaction,
    id: i64,
    wanted: &WantedMembers<'_>,
) -> Result<[Vec<String>; 3], sqlx::Error> {
    let attached = sql!(
        "SELECT coalesce(u.email, w.email) FROM {+wanted} LEFT JOIN users u ON u.email_folded = w.folded
         WHERE NOT EXISTS (SELECT 1 FROM group_members m WHERE m.user_id = u.id AND m.group_id = {id})
           AND coalesce(u.active, TRUE)",
        wanted = wanted.table(),
        id,
    );
    let detached = sql!(
        "SELECT u.email FROM group_members m JOIN users u ON u.id = m.user_id
         WHERE m.group_id = {id} AND u.email_folded NOT IN (SELECT w.folded FROM {+wanted})",
        id,
        wanted = wanted.table(),
    );
    let created = sql!(
        "SELECT w.email FROM {+wanted} WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)",
        wanted = wanted.table(),
    );
    let mut lists: [Vec<String>; 3] = Default::default();
    for (list, sql) in lists.iter_mut().zip([attached, detached, created]) {
        let rows = transaction.fetch_all(sql.with_custom_plan()).await?;
        *list = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
        list.sort_by_cached_key(|email| fold(email));
    }
    Ok(lists)
}
