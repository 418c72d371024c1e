//! Groups of users: listing, reading, deleting. Creating and updating is in [`mod@write`].
//!
//! The built-in group has every user as a member, without rows that would have to be maintained.

mod change;
mod members;
mod spellings;
mod write;

use std::borrow::Cow;
use std::time::Instant;

use serde::Deserialize;

use super::engine::{Retry, hold_row_memory, out_of_memory};
use super::statement::{
    Fields, ListRecord, MalformedRecord, Page, PageRequest, PageScan, Row, SortDirection, Sql, truth,
};
use super::{Store, StoreError, Texts};
use crate::memory::{self, MemorySpent};

pub use change::{Durability, GroupWrite, GroupWriteError, Guard, MemberChange, NewMembers, Report, WrittenGroup};

/// A group as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GroupSummary {
    /// The bare id.
    pub id: i64,
    /// The group's name.
    pub name: String,
    /// The caller's identifier for it.
    pub external_id: Option<String>,
    /// Whether it is synchronized with a directory through the API.
    #[serde(deserialize_with = "truth")]
    pub managed: bool,
    /// How many members it has.
    pub members: u64,
}

/// A group with its members.
#[derive(Clone, Debug)]
pub struct Group {
    /// What lists show.
    pub summary: GroupSummary,
    /// The e-mail addresses of its members as they were first written, in ascending order of their folded form.
    pub emails: Texts,
    /// The names of the members, in the same order.
    pub names: Texts,
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
    /// There is no such group.
    NotFound,
}

/// The memory that is reserved for each member of a group that is read, in bytes: both texts, and both again in the
/// response and its compressed form. Longer texts are counted as they arrive.
///
/// Larger: groups are refused for which there would be memory. Smaller: reading a group fails half-way.
const MEMBER_BYTES: usize = 128;

impl Group {
    /// A group without its members yet. Reserves memory for them.
    fn begin(id: i64, row: &Row, room: i64) -> Result<Self, sqlx::Error> {
        let members: i64 = row.get(3)?;
        let (name, external_id, managed) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let members_count = u64::try_from(members).expect("a count is not negative");
        let bytes = usize::try_from(members_count).unwrap_or(usize::MAX).saturating_mul(MEMBER_BYTES);
        if bytes > UNRESERVED_BYTES {
            memory::expect_rows(bytes).map_err(out_of_memory)?;
        }
        if members > room {
            return Err(out_of_memory(MemorySpent));
        }
        let summary = GroupSummary { id, name, external_id, managed, members: members_count };
        Ok(Self { summary, emails: Texts::default(), names: Texts::default() })
    }

    fn add_member(&mut self, row: &Row) -> Result<(), sqlx::Error> {
        let (email, name) = (row.text(0)?, row.text(1)?);
        hold_row_memory(email.len() + name.len() + 2 * size_of::<u32>())?;
        self.emails.push(email);
        self.names.push(name);
        Ok(())
    }
}

/// Groups up to this size, in bytes, are read without reserving memory first.
///
/// Larger: requests in flight hold more unreserved memory. Smaller: ordinary groups pay for the reservation.
const UNRESERVED_BYTES: usize = 64 * 1024;

const MEMBER_COUNT: &str = "CASE WHEN g.built_in THEN (SELECT count(*) FROM users) \
    ELSE (SELECT count(*) FROM group_members m WHERE m.group_id = g.id) END";

impl ListRecord<'_> for GroupSummary {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self {
            id: fields.integer()?,
            name: fields.text()?.into_owned(),
            external_id: fields.optional_text()?.map(Cow::into_owned),
            managed: fields.truth()?,
            members: fields.count()?,
        })
    }
}

fn write_listed(sql: &mut Sql, filter: &GroupFilter) {
    sql.push(" FROM groups g WHERE true");
    if filter.managed {
        sql.push(" AND g.managed");
    }
    if let Some(external_id) = &filter.external_id {
        sql.push(" AND g.external_id = ").bind(external_id.as_str());
    }
}

impl Store {
    /// One page of the groups, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_groups(&self, filter: &GroupFilter, page: PageRequest) -> Result<Page<GroupSummary>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT (SELECT count(*)");
        write_listed(&mut sql, filter);
        sql.push("), (").push_records(&["g.id", "g.name", "g.external_id", "g.managed", MEMBER_COUNT]);
        sql.push(" FROM (SELECT *");
        write_listed(&mut sql, filter);
        sql.push(" ORDER BY g.id").limit(&PageScan::forward(page, SortDirection::Ascending)).push(") AS g)");
        let row = reader.fetch_one(sql).await?;
        let total: i64 = row.get(0)?;
        Ok(Page { items: row.records(1)?, total: u64::try_from(total).expect("a count is not negative") })
    }

    /// One group with all its members, by one statement, so that no write comes between them. Members are read only if
    /// there is memory for all of them.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_group(&self, id: i64) -> Result<Option<Group>, StoreError> {
        let mut reader = self.database.reader().await?;
        let room = i64::try_from(memory::room_for_rows() / MEMBER_BYTES).unwrap_or(i64::MAX);
        let mut sql = reader.sql();
        // A generic plan from a time with few users would read all of them for each member.
        sql.force_custom_plan().push("SELECT name, detail, managed, members FROM (");
        sql.push("SELECT g.name, g.external_id AS detail, g.managed, ").push(MEMBER_COUNT).push(" AS members, ");
        sql.push("NULL AS folded, 0 AS user_id FROM groups g WHERE g.id = ").bind(id);
        sql.push(" UNION ALL SELECT u.email, u.name, NULL, NULL, u.email_folded, u.id FROM groups g ");
        sql.push("JOIN group_members m ON m.group_id = g.id JOIN users u ON u.id = m.user_id ");
        sql.push("WHERE NOT g.built_in AND g.id = ").bind(id);
        sql.push(" AND (SELECT count(*) FROM group_members WHERE group_id = ").bind(id).push(") <= ").bind(room);
        sql.push(" UNION ALL SELECT u.email, u.name, NULL, NULL, u.email_folded, u.id FROM users u ");
        // CASE, because counting all users takes a while.
        sql.push("WHERE CASE WHEN (SELECT g.built_in FROM groups g WHERE g.id = ").bind(id);
        sql.push(") THEN (SELECT count(*) FROM users) <= ").bind(room).push(" ELSE false END");
        sql.push(") AS shown ORDER BY folded").push_either(" COLLATE \"C\"", "").push(" NULLS FIRST, user_id");
        let mut found: Option<Group> = None;
        let mut each = |row: Row| {
            match &mut found {
                // The row of the group comes first, because it has no address. Without a group there are no members.
                None => found = Some(Group::begin(id, &row, room)?),
                Some(group) => group.add_member(&row)?,
            }
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        Ok(found)
    }

    /// Removes all members of a group, and deletes it unless a flow step uses it, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn delete_group(&self, id: i64) -> Result<Deletion, StoreError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let mut retry = Retry::default();
        loop {
            match self.try_to_delete_group(id, waiting_since).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_delete_group(&self, id: i64, waiting_since: Instant) -> Result<Deletion, StoreError> {
        let mut transaction = write::begin(&self.database, waiting_since).await?;
        let mut sql = transaction.sql();
        sql.push("SELECT g.built_in, EXISTS (SELECT 1 FROM flow_step_groups f WHERE f.group_id = g.id)");
        sql.push(" FROM groups g WHERE g.id = ").bind(id);
        let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(Deletion::NotFound) };
        let (built_in, used): (bool, bool) = (row.get(0)?, row.get(1)?);
        if built_in {
            return Ok(Deletion::BuiltIn);
        }
        let mut sql = transaction.sql();
        sql.push("DELETE FROM group_members WHERE group_id = ").bind(id);
        let detached = transaction.execute(sql).await?;
        if !used {
            let mut sql = transaction.sql();
            sql.push("DELETE FROM groups WHERE id = ").bind(id);
            transaction.execute(sql).await?;
        }
        transaction.commit().await?;
        Ok(if used { Deletion::UsedInFlows { detached } } else { Deletion::Deleted { detached } })
    }
}
