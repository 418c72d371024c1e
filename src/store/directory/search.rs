//! Reads users and groups as one list, for a search at the root of SCIM (RFC 7644, section 3.4.3).
//!
//! One statement orders what both filters find and cuts the page out of it; what is on the page is then read by its ids, in
//! the same snapshot. Without an order, the users are before the groups.

use std::collections::HashMap;

use super::condition::{GroupTest, UserTest};
use super::groups::{DirectoryGroup, GroupOrder, count_members};
use super::users::{DirectoryUser, UserOrder};
use super::{Listing, SortDirection, groups, users};
use crate::store::derived::totals::not_negative;
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryResource {
    /// A user.
    User(DirectoryUser),
    /// A group.
    Group(DirectoryGroup),
}

/// The text of one type by which resources of both are ordered. `NULL` is of no type in a `UNION`.
fn ordered_by(text: Option<&'static str>) -> Sql {
    Sql::text(text.unwrap_or("CAST(NULL AS text)"))
}

impl Store {
    /// A part of a list of users and groups, and how many the whole list has. Both listings ask for the same part.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn search_directory(
        &self,
        users: &Listing<UserTest, UserOrder>,
        groups: &Listing<GroupTest, GroupOrder>,
    ) -> Result<(Vec<DirectoryResource>, u64), StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let is_user_listed = || users.filter.is_listed(&UserTest::is_matched);
        let is_group_listed = || groups.filter.is_listed(&GroupTest::is_matched);
        let order_of_search = match users.direction {
            SortDirection::Ascending => sql!("f.sorted_by {pg: COLLATE \"C\"} NULLS LAST, f.kind, f.id"),
            SortDirection::Descending => {
                sql!("f.sorted_by {pg: COLLATE \"C\"} DESC NULLS FIRST, f.kind DESC, f.id DESC")
            }
        };
        let sql = sql!(
            "SELECT f.kind, f.id FROM (
               SELECT CAST(0 AS bigint) AS kind, u.id AS id, {+text_of_user} AS sorted_by
               FROM users u LEFT JOIN directory_users d ON d.user_id = u.id WHERE {+is_user_listed}
               UNION ALL
               SELECT CAST(1 AS bigint), g.id, {+text_of_group} FROM groups g WHERE {+is_group_listed}
             ) AS f
             ORDER BY {+order_of_search} LIMIT {limit} OFFSET {offset}
             {scans: a directory may filter by anything}",
            text_of_user = ordered_by(users.order.text()),
            is_user_listed = is_user_listed(),
            text_of_group = ordered_by(groups.order.text()),
            is_group_listed = is_group_listed(),
            order_of_search,
            limit = users.limit,
            offset = users.offset(),
        );
        let (mut found, mut ids) = (Vec::new(), [Vec::new(), Vec::new()]);
        for row in reader.fetch_all(sql).await? {
            let (kind, id): (i64, i64) = (row.get(0)?, row.get(1)?);
            let is_group = kind == 1;
            ids[usize::from(is_group)].push(id);
            found.push((is_group, id));
        }
        let total = match users.known_total(found.len()) {
            Some(total) => total,
            None => {
                let sql = sql!(
                    "SELECT (SELECT count(*) FROM users u LEFT JOIN directory_users d ON d.user_id = u.id
                             WHERE {+is_user_listed})
                       + (SELECT count(*) FROM groups g WHERE {+is_group_listed})
                     {scans: a directory may filter by anything}",
                    is_user_listed = is_user_listed(),
                    is_group_listed = is_group_listed(),
                );
                not_negative(reader.fetch_one(sql).await?.get(0)?)
            }
        };
        let held = reader.rows();
        let [user_ids, group_ids] = &ids;
        let sql = sql!(
            "SELECT {+columns_of_user} FROM users u LEFT JOIN directory_users d ON d.user_id = u.id WHERE u.id {in user_ids}",
            columns_of_user = Sql::text(users::COLUMNS),
            user_ids,
        );
        let mut read_users = HashMap::new();
        let mut each = |row: Row| {
            held.hold(row.bytes())?;
            let user = DirectoryUser::read(&row)?;
            read_users.insert(user.id, user);
            Ok(())
        };
        reader.fetch_each(sql.with_custom_plan(), &mut each).await?;
        let sql = sql!(
            "SELECT {+columns_of_group} FROM groups g LEFT JOIN directory_groups d ON d.group_id = g.id WHERE g.id {in group_ids}",
            columns_of_group = Sql::text(groups::COLUMNS),
            group_ids,
        );
        let (mut read_groups, held) = (Vec::new(), reader.rows());
        let mut each = |row: Row| {
            held.hold(row.bytes())?;
            read_groups.push(DirectoryGroup::read(&row)?);
            Ok(())
        };
        reader.fetch_each(sql.with_custom_plan(), &mut each).await?;
        count_members(&mut reader, &mut read_groups).await?;
        reader.end_transaction("COMMIT").await?;
        let mut read_groups: HashMap<i64, _> = read_groups.into_iter().map(|group| (group.id, group)).collect();
        let resource = |(is_group, id)| {
            if is_group {
                read_groups.remove(&id).map(DirectoryResource::Group)
            } else {
                read_users.remove(&id).map(DirectoryResource::User)
            }
        };
        Ok((found.into_iter().filter_map(resource).collect(), total))
    }
}
