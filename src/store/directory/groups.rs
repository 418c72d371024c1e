//! Reads groups as a directory sees them: every group, also those that a product or `PUT /group` maintains.
//!
//! A group's version covers its members without reading them all into memory: their number and two sums of their ids.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::condition::GroupTest;
use super::{Listing, SortDirection, order_by};
use crate::store::derived::totals::not_negative;
use crate::store::engine::PooledConnection;
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// Who writes a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupManager {
    /// A product.
    Product,
    /// `PUT /group`.
    Api,
    /// SCIM.
    Scim,
}

/// A group as a directory sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryGroup {
    /// The number.
    pub id: i64,
    /// The name.
    pub name: String,
    /// The identifier in the directory.
    pub external_id: Option<String>,
    /// Who writes it.
    pub manager: GroupManager,
    /// Whether all active users are its members.
    pub built_in: bool,
    /// When a directory created it and last wrote it, if it belongs to one.
    pub written: Option<[Timestamp; 2]>,
    /// Whether an administrator decided against the directory, which has not written all members since.
    pub diverged: bool,
    /// How many members it has, and two sums of their ids. Zeros for the built-in group; `None` if they were not counted.
    pub members: Option<[i64; 3]>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The group.
    pub group: i64,
    /// The user.
    pub user: i64,
    /// The user's name; may be empty.
    pub name: String,
}

/// What groups are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupOrder {
    /// The number.
    #[default]
    Id,
    /// The name.
    DisplayName,
    /// The identifier in the directory.
    ExternalId,
}

/// The columns of a group `g` with what a directory said of it, `d`.
pub(super) const COLUMNS: &str = "g.id, g.name, g.external_id, g.managed, g.built_in, d.created_at, d.updated_at, \
    coalesce(d.diverged, FALSE)";

impl DirectoryGroup {
    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let created: Option<Timestamp> = row.get(5)?;
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            external_id: row.get(2)?,
            manager: match (created, row.get(3)?) {
                (Some(_), _) => GroupManager::Scim,
                (None, true) => GroupManager::Api,
                (None, false) => GroupManager::Product,
            },
            built_in: row.get(4)?,
            written: created.zip(row.get(6)?).map(|(created, updated)| [created, updated]),
            diverged: row.get(7)?,
            members: None,
        })
    }

    /// One group, with its members counted.
    pub(super) async fn find(connection: &mut PooledConnection, id: i64) -> Result<Option<Self>, sqlx::Error> {
        let Some(group) = Self::find_uncounted(connection, id).await? else { return Ok(None) };
        let mut groups = [group];
        count_members(connection, &mut groups).await?;
        let [group] = groups;
        Ok(Some(group))
    }

    /// One group. To count fifty thousand members takes longer than to add one.
    pub(super) async fn find_uncounted(
        connection: &mut PooledConnection,
        id: i64,
    ) -> Result<Option<Self>, sqlx::Error> {
        let sql = sql!(
            "SELECT {+columns} FROM groups g LEFT JOIN directory_groups d ON d.group_id = g.id WHERE g.id = {id}",
            columns = Sql::text(COLUMNS),
            id,
        );
        connection.fetch_optional(sql).await?.as_ref().map(Self::read).transpose()
    }
}

/// Sets how many members groups have, and the sums of their ids.
pub(super) async fn count_members(
    connection: &mut PooledConnection,
    groups: &mut [DirectoryGroup],
) -> Result<(), sqlx::Error> {
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    let sql = sql!(
        "SELECT group_id, count(*), CAST(sum(user_id % 4294967291) AS bigint),
           CAST(sum((user_id % 2147483647) * (user_id % 2147483629) % 4294967291) AS bigint)
         FROM group_members WHERE group_id {in ids} GROUP BY group_id",
        ids,
    );
    let mut counted: HashMap<i64, [i64; 3]> = HashMap::new();
    for row in connection.fetch_all(sql.with_custom_plan()).await? {
        counted.insert(row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?]);
    }
    for group in groups {
        group.members = Some(counted.get(&group.id).copied().unwrap_or_default());
    }
    Ok(())
}

/// What [`count_members`] counts after these users were added and removed.
pub(super) fn counted(before: [i64; 3], attached: &BTreeSet<i64>, detached: &BTreeSet<i64>) -> [i64; 3] {
    let of_user =
        |user: i64| [1, user % 4_294_967_291, (user % 2_147_483_647) * (user % 2_147_483_629) % 4_294_967_291];
    let sum = |users: &BTreeSet<i64>, sums: [i64; 3], sign: i64| {
        users.iter().fold(sums, |[count, first, second], user| {
            let [one, two, three] = of_user(*user);
            [count + sign * one, first + sign * two, second + sign * three]
        })
    };
    sum(detached, sum(attached, before, 1), -1)
}

impl GroupOrder {
    /// The text of a group `g` by which it is ordered.
    pub(super) fn text(self) -> Option<&'static str> {
        match self {
            Self::Id => None,
            Self::DisplayName => Some("lower(g.name)"),
            Self::ExternalId => Some("g.external_id"),
        }
    }

    fn order(self, direction: SortDirection) -> Sql {
        order_by(self.text(), "g.id", direction)
    }
}

impl Store {
    /// A part of a list of groups, and how many the whole list has.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_directory_groups(
        &self,
        listing: &Listing<GroupTest, GroupOrder>,
    ) -> Result<(Vec<DirectoryGroup>, u64), StoreError> {
        let mut reader = self.database.reader().await?;
        let is_listed = || listing.filter.is_listed(&GroupTest::is_matched);
        let sql = sql!(
            "SELECT {+columns} FROM groups g LEFT JOIN directory_groups d ON d.group_id = g.id WHERE {+is_listed}
             ORDER BY {+order_of_list} LIMIT {limit} OFFSET {offset}
             {scans: a directory may filter by anything}",
            columns = Sql::text(COLUMNS),
            is_listed = is_listed(),
            order_of_list = listing.order.order(listing.direction),
            limit = listing.limit,
            offset = listing.offset(),
        );
        let (mut groups, held) = (Vec::new(), reader.rows());
        let mut each = |row: Row| {
            held.hold(row.bytes())?;
            groups.push(DirectoryGroup::read(&row)?);
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        count_members(&mut reader, &mut groups).await?;
        if let Some(total) = listing.known_total(groups.len()) {
            return Ok((groups, total));
        }
        let sql = sql!(
            "SELECT count(*) FROM groups g WHERE {+is_listed} {scans: a directory may filter by anything}",
            is_listed = is_listed(),
        );
        let total = not_negative(reader.fetch_one(sql).await?.get(0)?);
        Ok((groups, total))
    }

    /// One group.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_directory_group(&self, id: i64) -> Result<Option<DirectoryGroup>, StoreError> {
        let mut reader = self.database.reader().await?;
        Ok(DirectoryGroup::find(&mut reader, id).await?)
    }

    /// One group with all its members, in one snapshot. Those of the built-in group are not read.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_directory_group_with_members(
        &self,
        id: i64,
    ) -> Result<Option<(DirectoryGroup, Vec<GroupMember>)>, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let Some(group) = DirectoryGroup::find(&mut reader, id).await? else { return Ok(None) };
        let members = read_members(&mut reader, &[id]).await?;
        reader.end_transaction("COMMIT").await?;
        Ok(Some((group, members)))
    }

    /// All members of some groups, by group. Those of the built-in group are not read.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_directory_members(&self, groups: &[i64]) -> Result<Vec<GroupMember>, StoreError> {
        let mut reader = self.database.reader().await?;
        Ok(read_members(&mut reader, groups).await?)
    }
}

async fn read_members(connection: &mut PooledConnection, groups: &[i64]) -> Result<Vec<GroupMember>, sqlx::Error> {
    let sql = sql!(
        "SELECT m.group_id, u.id, u.name
         FROM group_members m JOIN users u ON u.id = m.user_id
         WHERE m.group_id {in groups} ORDER BY m.group_id, u.id",
        groups,
    );
    let (mut members, held) = (Vec::new(), connection.rows());
    let mut each = |row: Row| {
        let name = row.text(2)?.to_owned();
        held.hold(name.len() + size_of::<GroupMember>())?;
        members.push(GroupMember { group: row.get(0)?, user: row.get(1)?, name });
        Ok(())
    };
    connection.fetch_each(sql.with_custom_plan(), &mut each).await?;
    Ok(members)
}
