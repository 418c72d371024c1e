//! Groups of users: listing, reading, deleting. Creating and updating is in [`mod@write`], reading long lists of members
//! in [`listing`].
//!
//! The built-in group has every active user as a member, without rows that would have to be maintained.

mod change;
mod listing;
mod manager;
mod members;
mod spellings;
mod syncs;
mod undo;
mod write;

use std::borrow::Cow;
use std::time::Instant;

use serde::Deserialize;

use super::derived::totals::{CountedList, MEMBERS, PageStart, STALE, not_negative, read_not_negative};
use super::directory::{held_count, release_held};
use super::engine::{HeldRows, PooledConnection, Transaction, retry};
use super::statement::{Fields, ListRecord, MalformedRecord, Page, PageRequest, Row, Sql, sql, truth};
use super::{Store, StoreError, TextList};

pub use change::{
    Durability, GroupWrite, GroupWriteError, Guard, MemberChange, NewMembers, Report, SyncedBy, WriteMode, WrittenGroup,
};
pub use listing::MemberReader;
pub use manager::GivenGroup;
pub(super) use members::read_ids;
pub(super) use syncs::{ChangedGroup, SyncKind, add_sync, keep_run};
pub use syncs::{GroupSync, Provisioned, SyncMembers};
pub use undo::Undone;
pub(super) use write::{advance_user_sequence, begin, is_built_in_name, next_id};

/// A group as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GroupSummary {
    /// The bare id.
    pub id: i64,
    /// The group's name.
    pub name: String,
    /// The caller's identifier for it.
    pub external_id: Option<String>,
    /// Whether a directory maintains it.
    #[serde(deserialize_with = "truth")]
    pub managed: bool,
    /// Whether it belongs to SCIM, so that `PUT /group` does not write it.
    #[serde(deserialize_with = "truth")]
    pub is_of_scim: bool,
    /// How many members it has.
    #[serde(deserialize_with = "read_not_negative")]
    pub members: u64,
}

/// A group with its members, or the first of them.
#[derive(Clone, Debug)]
pub struct Group {
    /// What lists show.
    pub summary: GroupSummary,
    /// Whether it is the built-in group.
    pub built_in: bool,
    /// How many members a directory removed without that being applied: [`crate::store::HeldMember`].
    pub held: u64,
    /// Whether an administrator decided against the directory, which has not written all members since.
    pub diverged: bool,
    /// The members, in ascending order of their folded addresses.
    pub members: Members,
    /// Reads the members behind these, if there may be more.
    pub rest: Option<MemberReader>,
}

/// Members of a group.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// The e-mail addresses as they were first written.
    pub emails: TextList,
    /// The names, in the same order.
    pub names: TextList,
}

/// Which groups are listed.
#[derive(Clone, Debug, Default)]
pub struct GroupFilter {
    /// Only those that are synchronized through the API.
    pub managed: bool,
    /// Only the one with this identifier.
    pub external_id: Option<String>,
}

/// The outcome of deleting a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It was deleted.
    Deleted {
        /// How many members it had.
        detached: u64,
    },
    /// A flow step uses it, so it was emptied but not deleted.
    UsedInFlows {
        /// How many members it had.
        detached: u64,
    },
    /// The built-in group can't be deleted.
    BuiltIn,
    /// It belongs to SCIM.
    OfScim,
    /// There is no such group.
    NotFound,
}

/// Groups of up to this many members are read by one statement, so that no write comes between them.
///
/// Larger: such a group takes more memory. Smaller: more groups are read by several statements.
const MAX_MEMBERS_AT_ONCE: i64 = 4_000;

/// How many bytes of addresses and names such a group may have. The statement's other members are read again.
///
/// Larger: such a group takes more memory. Smaller: as for [`MAX_MEMBERS_AT_ONCE`].
const MAX_BYTES_AT_ONCE: usize = 1024 * 1024;

impl Members {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.emails.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.emails.is_empty()
    }

    fn bytes(&self) -> usize {
        self.emails.bytes() + self.names.bytes()
    }

    /// Adds the member in the first two columns of a row.
    fn add(&mut self, row: &Row, held: &HeldRows) -> Result<(), sqlx::Error> {
        let (email, name) = (row.text(0)?, row.text(1)?);
        held.hold(email.len() + name.len() + 2 * size_of::<u32>())?;
        self.emails.push(email);
        self.names.push(name);
        Ok(())
    }
}

impl GroupSummary {
    /// Reads columns in the order in which [`Store::find_group`] selects them.
    fn read(id: i64, row: &Row) -> Result<Self, sqlx::Error> {
        let (name, external_id, managed) = (row.get(0)?, row.get(1)?, row.get(4)?);
        Ok(Self { id, name, external_id, managed, is_of_scim: row.get(7)?, members: not_negative(row.get(6)?) })
    }

    /// A group, and whether it is the built-in one.
    async fn find(connection: &mut PooledConnection, id: i64) -> Result<Option<(Self, bool)>, sqlx::Error> {
        let sql = sql!(
            "SELECT g.name, g.external_id, NULL, NULL, g.managed, g.built_in, {+member_count}, {+is_of_scim}
             FROM groups g WHERE g.id = {id}",
            member_count = member_count(),
            is_of_scim = Sql::text(IS_OF_SCIM),
            id,
        );
        let row = connection.fetch_optional(sql).await?;
        row.map(|row| Ok((Self::read(id, &row)?, row.get(5)?))).transpose()
    }
}

impl ListRecord<'_> for GroupSummary {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self {
            id: fields.integer()?,
            name: fields.text()?.into_owned(),
            external_id: fields.optional_text()?.map(Cow::into_owned),
            managed: fields.truth()?,
            is_of_scim: fields.truth()?,
            members: not_negative(fields.integer()?),
        })
    }
}

impl GroupFilter {
    /// A condition: the group `g` is listed.
    fn is_listed(&self) -> Sql {
        let conditions = [
            Some(Sql::text("true")),
            self.managed.then(|| Sql::text("g.managed")),
            self.external_id.as_ref().map(|external_id| sql!("g.external_id = {external_id}", external_id)),
        ];
        Sql::joined(conditions.into_iter().flatten(), " AND ")
    }
}

/// An expression: whether a group `g` belongs to SCIM.
pub(super) const IS_OF_SCIM: &str = "EXISTS (SELECT 1 FROM directory_groups d WHERE d.group_id = g.id)";

/// An expression: whether a group `g` has diverged from its directory.
const IS_DIVERGED: &str = "EXISTS (SELECT 1 FROM directory_groups d WHERE d.group_id = g.id AND d.diverged)";

impl Group {
    /// A group without its members.
    pub(super) async fn find_without_members(
        connection: &mut PooledConnection,
        id: i64,
    ) -> Result<Option<Self>, sqlx::Error> {
        let Some((summary, built_in)) = GroupSummary::find(connection, id).await? else { return Ok(None) };
        let sql = sql!(
            "SELECT {+held_count}, {+is_diverged} FROM groups g WHERE g.id = {id}",
            held_count = held_count(),
            is_diverged = Sql::text(IS_DIVERGED),
            id,
        );
        let row = connection.fetch_one(sql).await?;
        let (held, diverged) = (not_negative(row.get(0)?), row.get(1)?);
        Ok(Some(Self { summary, built_in, held, diverged, members: Members::default(), rest: None }))
    }
}

/// Removes all members of a group, and the group too unless it is used. Returns the members that it had.
pub(super) async fn delete_or_empty(
    transaction: &mut Transaction,
    id: i64,
    is_used: bool,
) -> Result<Vec<i64>, sqlx::Error> {
    let mut detached = Vec::new();
    let members = sql!("DELETE FROM group_members WHERE group_id = {id} RETURNING user_id", id);
    read_ids(transaction, members, &mut detached).await?;
    transaction.execute(sql!("DELETE FROM inactive_members WHERE group_id = {id}", id)).await?;
    release_held(transaction, id).await?;
    if !is_used {
        transaction.execute(sql!("DELETE FROM groups WHERE id = {id}", id)).await?;
    }
    Ok(detached)
}

/// How many members a group `g` has.
pub(super) fn member_count() -> Sql {
    sql!(
        "CASE WHEN g.built_in THEN {+user_count} ELSE {+members} END",
        user_count = CountedList::Users.total(),
        members = Sql::text(MEMBERS),
    )
}

impl Store {
    /// One page of the groups, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_groups(&self, filter: &GroupFilter, page: PageRequest) -> Result<Page<GroupSummary>, StoreError> {
        let reader = self.database.reader().await?;
        let list = if filter.managed { CountedList::ManagedGroups } else { CountedList::Groups };
        // At most one group has an identifier.
        let (start, total) = match &filter.external_id {
            None => (list.start_of(page), list.total()),
            Some(_) => {
                let is_listed = filter.is_listed();
                (PageStart::Offset(page), sql!("(SELECT count(*) FROM groups g WHERE {+is_listed})", is_listed))
            }
        };
        let sql = sql!(
            "SELECT {+total}, {+stale},
               ({records: g.id, g.name, g.external_id, g.managed, g.is_of_scim, g.members}
                FROM (SELECT g.id, g.name, g.external_id, g.managed, {+is_of_scim} AS is_of_scim,
                        {+member_count} AS members
                      FROM (SELECT * FROM groups g WHERE {+is_listed}{+behind_skipped} ORDER BY g.id{+limit}) AS g
                      ORDER BY g.id) AS g)",
            total,
            stale = Sql::text(STALE),
            is_of_scim = Sql::text(IS_OF_SCIM),
            member_count = member_count(),
            is_listed = filter.is_listed(),
            behind_skipped = start.behind_skipped("g.id"),
            limit = start.limit(),
        );
        let row = self.fetch_list(reader, start.with_skipped(sql)).await?;
        Ok(Page { items: row.records(2)?, total: not_negative(row.get(0)?) })
    }

    /// One group with its members. A group of ordinary size is read by one statement, so that no write comes between
    /// them; of a larger one, the first members and a reader of the others.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_group(&self, id: i64) -> Result<Option<Group>, StoreError> {
        let mut reader = self.database.reader().await?;
        // A generic plan from a time with few users would read all of them for each member.
        let sql = sql!(
            "SELECT name, detail, folded, user_id, managed, built_in, members, is_of_scim, held, is_diverged
             FROM (SELECT g.name, g.external_id AS detail, g.managed, g.built_in, {+member_count} AS members,
                     {+is_of_scim} AS is_of_scim, {+held_count} AS held, {+is_diverged} AS is_diverged,
                     NULL AS folded, 0 AS user_id
                   FROM groups g WHERE g.id = {id}
                   UNION ALL SELECT u.email, u.name, NULL, NULL, NULL, NULL, NULL, NULL, u.email_folded, u.id
                   FROM groups g JOIN group_members m ON m.group_id = g.id JOIN users u ON u.id = m.user_id
                   WHERE NOT g.built_in AND g.id = {id} AND {+members} <= {at_once}
                   UNION ALL SELECT u.email, u.name, NULL, NULL, NULL, NULL, NULL, NULL, u.email_folded, u.id
                   FROM users u
                   WHERE u.active AND CASE WHEN (SELECT g.built_in FROM groups g WHERE g.id = {id}) THEN {+user_count} <= {at_once}
                     ELSE false END) AS shown
             ORDER BY folded {pg: COLLATE \"C\"} NULLS FIRST, user_id
             {scans: all users, if they are few, are the members of the built-in group}",
            member_count = member_count(),
            is_of_scim = Sql::text(IS_OF_SCIM),
            held_count = held_count(),
            is_diverged = Sql::text(IS_DIVERGED),
            id,
            members = Sql::text(MEMBERS),
            user_count = CountedList::Users.total(),
            at_once = MAX_MEMBERS_AT_ONCE,
        )
        .with_custom_plan();
        let (mut found, mut members, mut last, held) = (None, Members::default(), None, reader.rows());
        let mut each = |row: Row| {
            // The row of the group comes first, because it has no address. Without a group there are no members.
            if found.is_none() {
                let standing = (not_negative(row.get(8)?), row.get::<bool>(9)?);
                found = Some((GroupSummary::read(id, &row)?, row.get::<bool>(5)?, standing));
            } else if members.bytes() < MAX_BYTES_AT_ONCE {
                members.add(&row, &held)?;
                last = Some((row.get::<Option<String>>(2)?, row.get::<i64>(3)?));
            }
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        drop(reader);
        let Some((summary, built_in, (held, diverged))) = found else { return Ok(None) };
        let mut group = Group { summary, built_in, held, diverged, members, rest: None };
        if (group.members.len() as u64) < group.summary.members {
            let mut rest = MemberReader::begin(self, id, built_in, group.summary.members).await?;
            match last {
                Some((folded, user)) => rest.continue_behind(folded, user),
                None => group.members = rest.next().await?.unwrap_or_default(),
            }
            group.rest = Some(rest);
        }
        Ok(Some(group))
    }

    /// One group with a page of its members.
    ///
    /// # Errors
    /// Those of [`Self::find_group`].
    pub async fn find_group_page(&self, id: i64, page: PageRequest) -> Result<Option<Group>, StoreError> {
        let mut reader = self.database.reader().await?;
        let Some(mut group) = Group::find_without_members(&mut reader, id).await? else { return Ok(None) };
        drop(reader);
        let (offset, members) = (page.offset().unsigned_abs(), group.summary.members);
        if offset < members {
            let mut rest = MemberReader::begin(self, id, group.built_in, members).await?;
            rest.seek(offset, members, u64::from(page.size)).await?;
            group.members = rest.next().await?.unwrap_or_default();
            group.rest = Some(rest);
        }
        Ok(Some(group))
    }

    /// Removes all members of a group, and deletes it unless a flow step uses it, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn delete_group(&self, id: i64) -> Result<Deletion, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        retry::run(|| async move {
            let mut transaction = begin(&self.database, waiting_since).await?;
            let sql = sql!(
                "SELECT g.built_in, EXISTS (SELECT 1 FROM flow_step_groups f WHERE f.group_id = g.id), {+is_of_scim}
                 FROM groups g WHERE g.id = {id}",
                id,
                is_of_scim = Sql::text(IS_OF_SCIM),
            );
            let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(Deletion::NotFound) };
            let (built_in, used): (bool, bool) = (row.get(0)?, row.get(1)?);
            if built_in {
                return Ok(Deletion::BuiltIn);
            }
            if row.get(2)? {
                return Ok(Deletion::OfScim);
            }
            let detached = delete_or_empty(&mut transaction, id, used).await?.len() as u64;
            transaction.commit().await?;
            Ok(if used { Deletion::UsedInFlows { detached } } else { Deletion::Deleted { detached } })
        })
        .await
    }
}
