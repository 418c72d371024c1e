//! Reads the members of a group in order of their addresses, in batches, so that a list of any length takes the same
//! memory.
//!
//! Every batch is one short statement on a connection of its own checkout, and continues behind the last member that
//! was read. Between two batches nothing is held: no connection, no transaction, no lock of a SQLite file. So the list
//! is no snapshot: a member that is added or removed meanwhile may be in it or not, and one whose address changes may be
//! missing or appear twice. Every other member is in it exactly once. If the group is deleted meanwhile, the list
//! fails instead of ending early.

use super::{Members, StoreError};
use crate::store::Store;
use crate::store::derived::totals::{CountedList, not_negative};
use crate::store::statement::{Dialect, Row, Sql, sql};

/// The most members of a batch.
///
/// Larger: a batch takes more memory. Smaller: more statements for a long list.
const BATCH: i64 = 4_000;

/// How many bytes of addresses and names a batch has at most, unless it is a single member.
///
/// Larger: a batch takes more memory. Smaller: more statements for members with long names.
pub(super) const BATCH_BYTES: usize = 256 * 1024;

/// The last member that was read. Users without a folded address come first; see [`crate::store::users`].
#[derive(Clone, Debug)]
enum After {
    /// A user without a folded address, by id. Only on SQLite.
    Unfolded(i64),
    /// A user by the folded address.
    Address(String),
}

/// The rest of a list of members.
#[derive(Clone, Debug)]
pub struct MemberReader {
    store: Store,
    group: i64,
    built_in: bool,
    /// On SQLite, whether a batch reads users in order of their addresses and looks up each membership, or reads all
    /// members and sorts them. Postgres decides by its statistics.
    walks_users: bool,
    after: After,
    /// How many members are still wanted.
    left: u64,
    batch: i64,
}

impl MemberReader {
    /// A reader that begins with the first member.
    pub(super) async fn begin(store: &Store, group: i64, built_in: bool, members: u64) -> Result<Self, StoreError> {
        let dialect = store.database.dialect();
        let after = match dialect {
            Dialect::Postgres => After::Address(String::new()),
            Dialect::Sqlite => After::Unfolded(0),
        };
        let walks_users = dialect == Dialect::Sqlite && !built_in && {
            let mut reader = store.database.reader().await?;
            let sql = sql!("SELECT {+user_count}", user_count = CountedList::Users.total());
            let users = not_negative(reader.fetch_one(sql).await?.get(0)?);
            // Sorting reads every member for every batch.
            users < members.saturating_mul(members.div_ceil(BATCH.unsigned_abs()))
        };
        Ok(Self { store: store.clone(), group, built_in, walks_users, after, left: u64::MAX, batch: BATCH })
    }

    /// Continues behind a member, given by the folded address and the id.
    pub(super) fn continue_behind(&mut self, folded: Option<String>, id: i64) {
        self.after = folded.map_or(After::Unfolded(id), After::Address);
    }

    /// Moves to the member at an offset, of `members` in all, and limits how many are read from there.
    pub(super) async fn seek(&mut self, offset: u64, members: u64, length: u64) -> Result<(), StoreError> {
        self.left = length;
        let (Some(before), Some(behind)) = (offset.checked_sub(1), members.checked_sub(offset)) else { return Ok(()) };
        let mut reader = self.store.database.reader().await?;
        let source = self.source();
        // From the nearer end.
        let sql = if before <= behind {
            sql!(
                "SELECT * FROM (SELECT u.email_folded, u.id FROM {+source}
                                ORDER BY u.email_folded {pg: COLLATE \"C\"}, u.id LIMIT 1 OFFSET {before}) AS before",
                source,
                before = i64::try_from(before).unwrap_or(i64::MAX),
            )
        } else {
            sql!(
                "SELECT * FROM (SELECT u.email_folded, u.id FROM {+source}
                                ORDER BY u.email_folded {pg: COLLATE \"C\"} DESC, u.id DESC
                                LIMIT 1 OFFSET {behind}) AS before",
                source,
                behind = i64::try_from(behind).unwrap_or(i64::MAX),
            )
        };
        match reader.fetch_optional(sql.with_custom_plan()).await? {
            Some(row) => self.continue_behind(row.get(0)?, row.get(1)?),
            None => self.left = 0,
        }
        Ok(())
    }

    /// The next members; None behind the last one.
    ///
    /// # Errors
    /// [`StoreError::GroupDeleted`], [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn next(&mut self) -> Result<Option<Members>, StoreError> {
        while self.left > 0 {
            let members = self.read_batch().await?;
            if !members.is_empty() {
                self.left -= (members.len() as u64).min(self.left);
                return Ok(Some(members));
            }
            if let After::Address(_) = self.after {
                self.left = 0;
                self.require_group().await?;
            } else {
                self.after = After::Address(String::new());
            }
        }
        Ok(None)
    }

    async fn read_batch(&mut self) -> Result<Members, StoreError> {
        let limit = self.batch.min(i64::try_from(self.left).unwrap_or(i64::MAX));
        let mut reader = self.store.database.reader().await?;
        let after = match &self.after {
            After::Unfolded(id) => sql!("u.email_folded IS NULL AND u.id > {id}", id = *id),
            After::Address(last) => sql!("u.email_folded {pg: COLLATE \"C\"} > {last}", last),
        };
        let sql = sql!(
            "SELECT * FROM (SELECT u.email, u.name, u.email_folded, u.id FROM {+source} AND {+after}
                            ORDER BY u.email_folded {pg: COLLATE \"C\"}, u.id LIMIT {limit}) AS batch",
            source = self.source(),
            after,
            limit,
        )
        .with_custom_plan();
        let (mut members, mut last, mut is_whole, held) = (Members::default(), None, true, reader.rows());
        let mut each = |row: Row| {
            // The rest is read again by the next batch, which is smaller.
            is_whole = is_whole && (members.is_empty() || members.bytes() < BATCH_BYTES);
            if is_whole {
                members.add(&row, &held)?;
                last = Some((row.get::<Option<String>>(2)?, row.get::<i64>(3)?));
            }
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        if let Some((folded, id)) = last {
            self.continue_behind(folded, id);
        }
        if !is_whole {
            self.batch = i64::try_from(members.len()).unwrap_or(BATCH);
        }
        Ok(members)
    }

    /// The tables, and a condition to which more can be added. SQLite reads a CROSS JOIN in its order.
    fn source(&self) -> Sql {
        let group = self.group;
        match (self.built_in, self.walks_users) {
            (true, _) => Sql::text("users u WHERE u.active"),
            (false, true) => sql!(
                "users u INDEXED BY users_email CROSS JOIN group_members m ON m.user_id = u.id
                 WHERE m.group_id = {group}",
                group,
            ),
            (false, false) => {
                sql!("group_members m {lite: CROSS} JOIN users u ON u.id = m.user_id WHERE m.group_id = {group}", group)
            }
        }
    }

    async fn require_group(&self) -> Result<(), StoreError> {
        let mut reader = self.store.database.reader().await?;
        let sql = sql!("SELECT 1 FROM groups WHERE id = {group}", group = self.group);
        reader.fetch_optional(sql).await?.map(drop).ok_or(StoreError::GroupDeleted)
    }
}
