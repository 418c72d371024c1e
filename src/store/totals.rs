//! How many forms, groups, users and members there are, without counting rows, and where a page far inside a list
//! begins.
//!
//! Triggers append what a statement adds to or removes from a count to `listed_total_changes`, in the writer's own
//! transaction; a settler adds these changes to `listed_totals` later. A count is the kept one plus the changes, read
//! by one statement, so it is exact at once, also on a standby, and no request waits for a settler. Submissions need the
//! intake instead, because what is derived from them depends on rows that other transactions may be changing. Whether
//! a form, group, user or member counts depends on its own row only, so its writer knows.
//!
//! On SQLite, which has one writer at a time, the trigger adds to the count itself, and there are never any changes.
//!
//! Forms and groups are also counted in blocks of 1,024 ids. A page far inside skips whole blocks by their counts, and
//! at most one block row by row. Ids from a sequence fill their blocks, so a hundred thousand rows are a hundred blocks;
//! with scattered ids, a page costs no more than the offset that it replaces.
//!
//! Left out: a kept order of the members of each group. It would make far pages of huge groups flat, but writing a
//! group would cost twice as much, and whoever wants all members reads them as one answer.

use super::engine::{Database, Transaction};
use super::settle::Settler;
use super::statement::{Dialect, PageRequest, PageScan, SortDirection, Sql};
use super::{Store, StoreError, with_causes};

/// What is counted as one list in the order of its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedList {
    Forms,
    Groups,
    ManagedGroups,
}

impl CountedList {
    fn literal(self) -> &'static str {
        match self {
            Self::Forms => "'forms'",
            Self::Groups => "'groups'",
            Self::ManagedGroups => "'managed groups'",
        }
    }

    /// Adds an expression: how many there are.
    pub(super) fn write_total(self, sql: &mut Sql) {
        sql.push_either("(SELECT CAST(coalesce(sum(listed), 0) AS bigint) FROM (", "coalesce((");
        sql.push("SELECT listed FROM listed_totals WHERE counted = ").push(self.literal()).push(" AND key = -1");
        if sql.dialect() == Dialect::Postgres {
            sql.push(" UNION ALL SELECT listed FROM listed_total_changes WHERE counted = ").push(self.literal());
        }
        sql.push_either(") AS parts)", "), 0)");
    }

    /// Adds the start of a statement whose pages may be far inside: the table `skipped (listed, before_id)`.
    pub(super) fn write_skipped(self, sql: &mut Sql, page: PageRequest) -> PageStart {
        if page.offset() < MAX_SKIPPED {
            return PageStart::Offset(page);
        }
        sql.push("WITH blocks (key, listed) AS (SELECT key, sum(listed) FROM (");
        sql.push("SELECT key, listed FROM listed_totals WHERE counted = ").push(self.literal()).push(" AND key >= 0 ");
        sql.push("UNION ALL SELECT key, listed FROM listed_total_changes WHERE counted = ").push(self.literal());
        sql.push(") AS parts GROUP BY key), skipped (listed, before_id) AS (");
        sql.push("SELECT CAST(coalesce(max(through), 0) AS bigint), coalesce(max(key) + 1, 0) << 10 FROM (");
        sql.push("SELECT key, sum(listed) OVER (ORDER BY key) AS through FROM blocks) AS running WHERE through <= ");
        sql.bind(page.offset()).push(") ");
        PageStart::Skipped(page)
    }
}

/// How many rows of an index are skipped one by one, before blocks are skipped by their counts.
///
/// Larger: pages far inside take longer. Smaller: adding up the blocks takes longer than skipping would.
const MAX_SKIPPED: i64 = 2_000;

/// Where a page of a [`CountedList`] begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageStart {
    Offset(PageRequest),
    Skipped(PageRequest),
}

impl PageStart {
    /// Adds the condition on the ids of a page.
    pub(super) fn write_condition(self, sql: &mut Sql, id: &'static str) {
        if let Self::Skipped(_) = self {
            sql.push(" AND ").push(id).push(" >= (SELECT before_id FROM skipped)");
        }
    }

    /// Adds the limit and the offset.
    pub(super) fn write_limit(self, sql: &mut Sql) {
        match self {
            Self::Offset(page) => sql.limit(&PageScan::forward(page, SortDirection::Ascending)),
            Self::Skipped(page) => {
                sql.push(" LIMIT ").bind(i64::from(page.size)).push(" OFFSET ").bind(page.offset());
                sql.push(" - (SELECT listed FROM skipped)")
            }
        };
    }
}

/// A count, of which the triggers keep that it is never negative.
pub(super) fn not_negative(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

/// An expression: how many users there are. Like those below for Postgres, and for SQLite, which has no changes to add.
pub(super) const USERS: [&str; 2] = [
    "(SELECT CAST(coalesce(sum(listed), 0) AS bigint) FROM (\
        SELECT listed FROM listed_totals WHERE counted = 'users' AND key = 0 \
        UNION ALL SELECT listed FROM listed_total_changes WHERE counted = 'users') AS parts)",
    "coalesce((SELECT listed FROM listed_totals WHERE counted = 'users' AND key = 0), 0)",
];

/// An expression: how many members a group `g` has. Reads all changes, so it is for one group.
pub(super) const MEMBERS_OF_ONE: [&str; 2] = [
    "(SELECT CAST(coalesce(sum(listed), 0) AS bigint) FROM (\
        SELECT listed FROM listed_totals WHERE counted = 'members' AND key = g.id \
        UNION ALL SELECT listed FROM listed_total_changes WHERE counted = 'members' AND key = g.id) AS parts)",
    "coalesce((SELECT listed FROM listed_totals WHERE counted = 'members' AND key = g.id), 0)",
];

/// A table to join to groups `g`, for [`MEMBERS_OF_EACH`]. The changes are read once, however many groups there are.
pub(super) const CHANGES_OF_MEMBERS: [&str; 2] = [
    " LEFT JOIN (SELECT key, CAST(sum(listed) AS bigint) AS listed FROM listed_total_changes \
        WHERE counted = 'members' GROUP BY key) AS c ON c.key = g.id",
    "",
];

/// An expression: how many members each group has. Looked up for each, not joined: Postgres would join by sorting the counts of all
/// groups, until its statistics know how many there are.
pub(super) const MEMBERS_OF_EACH: [&str; 2] = [
    "coalesce((SELECT listed FROM listed_totals WHERE counted = 'members' AND key = g.id), 0) + coalesce(c.listed, 0)",
    "coalesce((SELECT listed FROM listed_totals WHERE counted = 'members' AND key = g.id), 0)",
];

/// An expression: how many changes are not added up yet.
pub(super) const PENDING: [&str; 2] = ["(SELECT count(*) FROM listed_total_changes)", "0"];

/// How many changes a list may read before they are added up.
///
/// Larger: lists read more changes, at about 100 ns each. Smaller: more transactions add up.
const MAX_PENDING: i64 = 200;

/// After how many writes of groups of this node the changes are added up, if no list is read.
///
/// Larger: the next list reads more changes. Smaller: more transactions add up.
const WRITES_PER_SETTLING: usize = 100;

const ADD_UP: [&str; 2] = [
    "WITH change AS (DELETE FROM listed_total_changes RETURNING counted, key, listed) \
        INSERT INTO listed_totals AS kept (counted, key, listed) \
        SELECT counted, key, sum(listed) FROM (SELECT counted, key, listed FROM change \
        UNION ALL SELECT counted, -1, listed FROM change WHERE counted IN ('forms', 'groups', 'managed groups')) AS added \
        GROUP BY 1, 2 HAVING sum(listed) <> 0 \
        ON CONFLICT (counted, key) DO UPDATE SET listed = kept.listed + excluded.listed",
    "DELETE FROM listed_totals WHERE listed = 0",
];

impl Store {
    /// Adds up the changes in the background if a list has read many.
    pub(super) fn note_pending(&self, pending: i64) {
        if pending > MAX_PENDING {
            self.add_up_later();
        }
    }

    /// Counts a write of a group, and adds up the changes now and then.
    pub(super) fn note_group_write(&self) {
        if self.database.dialect() == Dialect::Postgres && self.settler.counts_to(WRITES_PER_SETTLING) {
            self.add_up_later();
        }
    }

    fn add_up_later(&self) {
        let Some(turn) = self.settler.try_to_add_up() else { return };
        let database = self.database.clone();
        tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = add_up(&database).await {
                tracing::debug!(
                    cause = with_causes(&error),
                    "changes of counts could not be added up; read as they are"
                );
            }
        });
    }
}

/// Adds the changes to the counts, one settler at a time.
pub(super) async fn add_up(database: &Database) -> Result<(), StoreError> {
    if database.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let mut transaction = Settler::begin_for_a_request(database).await?;
    add_up_within(&mut transaction).await?;
    transaction.commit().await?;
    // Each list reads the dead rows too.
    if let Ok(mut writer) = database.writer().await {
        writer.vacuum("listed_total_changes").await.ok();
    }
    Ok(())
}

/// Lets a transaction insert counts. Those that others insert, as in a restore of a dump, are dropped.
const MAY_ADD_UP: &str = "SET LOCAL formgate.adds_up = 'on'";

/// Adds the changes to the counts, those of the transaction itself included.
pub(super) async fn add_up_within(transaction: &mut Transaction) -> Result<(), StoreError> {
    if transaction.dialect() == Dialect::Postgres {
        transaction.command(MAY_ADD_UP).await?;
        for statement in ADD_UP {
            let mut sql = transaction.sql();
            sql.push(statement);
            transaction.execute(sql).await?;
        }
    }
    Ok(())
}

/// What the counts should be.
const RECOUNT: &str = "SELECT 'forms' AS counted, id >> 10 AS key, count(*) AS listed FROM forms \
    WHERE NOT disabled AND parent_id IS NULL GROUP BY 2 \
    UNION ALL SELECT 'groups', id >> 10, count(*) FROM groups GROUP BY 2 \
    UNION ALL SELECT 'managed groups', id >> 10, count(*) FROM groups WHERE managed GROUP BY 2 \
    UNION ALL SELECT 'forms', -1, count(*) FROM forms WHERE NOT disabled AND parent_id IS NULL \
    UNION ALL SELECT 'groups', -1, count(*) FROM groups \
    UNION ALL SELECT 'managed groups', -1, count(*) FROM groups WHERE managed \
    UNION ALL SELECT 'users', 0, count(*) FROM users \
    UNION ALL SELECT 'members', group_id, count(*) FROM group_members GROUP BY 2";

/// Adds a query of how many counts are wrong.
pub(super) fn write_count_wrong(sql: &mut Sql) {
    sql.push("SELECT count(*) FROM (SELECT counted, key FROM (SELECT counted, key, listed FROM (").push(RECOUNT);
    sql.push(") AS recounted WHERE listed <> 0 UNION ALL SELECT counted, key, -listed FROM listed_totals ");
    sql.push("UNION ALL SELECT counted, key, -listed FROM listed_total_changes ");
    sql.push(
        "UNION ALL SELECT counted, -1, -listed FROM listed_total_changes WHERE counted NOT IN ('users', 'members')",
    );
    sql.push(") AS differences GROUP BY counted, key HAVING sum(listed) <> 0) AS wrong");
}

/// Recounts, while writers of these tables wait. Returns how many counts were wrong.
pub(super) async fn repair(database: &Database) -> Result<u64, StoreError> {
    add_up(database).await?;
    let mut transaction = Settler::begin_for_a_command(database).await?;
    let mut sql = transaction.sql();
    write_count_wrong(&mut sql);
    let maybe_wrong: i64 = transaction.fetch_all(sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    if maybe_wrong == 0 {
        return Ok(0);
    }
    if transaction.dialect() == Dialect::Postgres {
        transaction.command("LOCK TABLE forms, groups, users, group_members IN SHARE ROW EXCLUSIVE MODE").await?;
    }
    let mut sql = transaction.sql();
    write_count_wrong(&mut sql);
    let wrong: i64 = transaction.fetch_all(sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    add_up_within(&mut transaction).await?;
    for statement in ["DELETE FROM listed_totals", "INSERT INTO listed_totals (counted, key, listed) "] {
        let mut sql = transaction.sql();
        sql.push(statement);
        if statement.starts_with("INSERT") {
            sql.push(RECOUNT);
        }
        transaction.execute(sql).await?;
    }
    transaction.commit().await?;
    Ok(wrong.unsigned_abs())
}
