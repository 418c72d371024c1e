//! Reads users as a directory sees them: every user, also those that a product or `PUT /group` created.

use jiff::Timestamp;

use super::condition::UserTest;
use super::user_writes::DirectoryUserValues;
use super::{Listing, SortDirection, order_by};
use crate::store::derived::totals::not_negative;
use crate::store::engine::PooledConnection;
use crate::store::statement::{Row, Sql, sql};
use crate::store::{Store, StoreError};

/// A user as a directory sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUser {
    /// The number.
    pub id: i64,
    /// What a directory writes.
    pub values: DirectoryUserValues,
    /// When a directory first and last wrote it, if one did.
    pub written: Option<[Timestamp; 2]>,
}

/// What users are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserOrder {
    /// The number.
    #[default]
    Id,
    /// The user name.
    UserName,
    /// The address.
    Email,
    /// The name that is shown.
    DisplayName,
    /// The identifier in the directory.
    ExternalId,
    /// The given name.
    GivenName,
    /// The family name.
    FamilyName,
    /// The whole name.
    FormattedName,
    /// Whether it is active.
    Active,
}

/// The columns of a user `u` with what a directory said of it, `d`.
pub(super) const COLUMNS: &str = "u.id, coalesce(d.user_name, u.email), u.email, u.name, d.external_id, d.given_name, \
    d.family_name, d.formatted_name, u.active, d.created_at, d.updated_at";

impl DirectoryUser {
    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let created: Option<Timestamp> = row.get(9)?;
        Ok(Self {
            id: row.get(0)?,
            values: DirectoryUserValues {
                user_name: row.get(1)?,
                email: row.get(2)?,
                display_name: row.get(3)?,
                external_id: row.get(4)?,
                given_name: row.get(5)?,
                family_name: row.get(6)?,
                formatted_name: row.get(7)?,
                active: row.get(8)?,
            },
            written: created.zip(row.get(10)?).map(|(created, updated)| [created, updated]),
        })
    }

    /// One user.
    pub(super) async fn find(connection: &mut PooledConnection, id: i64) -> Result<Option<Self>, sqlx::Error> {
        let sql = sql!(
            "SELECT {+columns} FROM users u LEFT JOIN directory_users d ON d.user_id = u.id WHERE u.id = {id}",
            columns = Sql::text(COLUMNS),
            id,
        );
        connection.fetch_optional(sql).await?.as_ref().map(Self::read).transpose()
    }
}

impl UserOrder {
    /// The text of a user `u` with what a directory said of it, `d`, by which it is ordered.
    pub(super) fn text(self) -> Option<&'static str> {
        match self {
            Self::Id => None,
            Self::UserName => Some("coalesce(d.user_name_folded, u.email_folded)"),
            Self::Email => Some("u.email_folded"),
            Self::DisplayName => Some("lower(nullif(u.name, ''))"),
            Self::ExternalId => Some("d.external_id"),
            Self::GivenName => Some("lower(d.given_name)"),
            Self::FamilyName => Some("lower(d.family_name)"),
            Self::FormattedName => Some("lower(d.formatted_name)"),
            Self::Active => Some("CASE WHEN u.active THEN 'true' ELSE 'false' END"),
        }
    }

    fn order(self, direction: SortDirection) -> Sql {
        order_by(self.text(), "u.id", direction)
    }
}

impl Store {
    /// A part of a list of users, and how many the whole list has.
    ///
    /// # Errors
    /// [`StoreError::MemorySpent`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_directory_users(
        &self,
        listing: &Listing<UserTest, UserOrder>,
    ) -> Result<(Vec<DirectoryUser>, u64), StoreError> {
        let mut reader = self.database.reader().await?;
        let is_listed = || listing.filter.is_listed(&UserTest::is_matched);
        let sql = sql!(
            "SELECT {+columns} FROM users u LEFT JOIN directory_users d ON d.user_id = u.id WHERE {+is_listed}
             ORDER BY {+order_of_list} LIMIT {limit} OFFSET {offset}
             {scans: a directory may filter by anything}",
            columns = Sql::text(COLUMNS),
            is_listed = is_listed(),
            order_of_list = listing.order.order(listing.direction),
            limit = listing.limit,
            offset = listing.offset(),
        );
        let (mut users, held) = (Vec::new(), reader.rows());
        let mut each = |row: Row| {
            held.hold(row.bytes())?;
            users.push(DirectoryUser::read(&row)?);
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        if let Some(total) = listing.known_total(users.len()) {
            return Ok((users, total));
        }
        let sql = sql!(
            "SELECT count(*) FROM users u LEFT JOIN directory_users d ON d.user_id = u.id WHERE {+is_listed}
             {scans: a directory may filter by anything}",
            is_listed = is_listed(),
        );
        let total = not_negative(reader.fetch_one(sql).await?.get(0)?);
        Ok((users, total))
    }

    /// One user.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_directory_user(&self, id: i64) -> Result<Option<DirectoryUser>, StoreError> {
        let mut reader = self.database.reader().await?;
        Ok(DirectoryUser::find(&mut reader, id).await?)
    }
}

impl<T, O> Listing<T, O> {
    /// The offset for a statement.
    pub(super) fn offset(&self) -> i64 {
        i64::try_from(self.offset).unwrap_or(i64::MAX)
    }

    /// How many the whole list has, if the rows that were read say so.
    pub(super) fn known_total(&self, read: usize) -> Option<u64> {
        let is_end = (read as u64) < u64::from(self.limit) && (read > 0 || self.offset == 0);
        is_end.then(|| self.offset + read as u64)
    }
}
