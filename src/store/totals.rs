//! How many forms, groups, users and members there are, without counting rows, and where a page far inside a list
//! begins.
//!
//! Writers only note which counts may be wrong now, in the table `stale_counts` and in their own transaction. A list counts
//! the noted ones itself and takes all others from `listed_counts`, in one statement, so it is exact at once, also on a
//! standby, and no request waits for a settler. Later a settler counts the noted ones again, and deletes the notes in the
//! same transaction. A note that was not necessary changes nothing, so it does not matter how often a trigger fires. On
//! Postgres, the settler deletes only notes that it sees, and counts after that: what another transaction writes meanwhile
//! keeps its note.
//!
//! Forms, groups and users are counted in blocks of 1,024 ids. So a note costs a list at most a thousand rows, and a page far
//! inside skips whole blocks by their counts, and at most one block row by row. Ids from a sequence fill their blocks, so a
//! hundred thousand rows are a hundred blocks; with scattered ids, a page costs no more than the offset that it replaces.
//! Members are counted by group.
//!
//! Left out: a kept order of the members of each group. It would make far pages of huge groups flat, but writing a
//! group would cost twice as much, and whoever wants all members reads them as one answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer};

use super::engine::{Database, PooledConnection, Transaction};
use super::settle::{Settler, ran_out_of_time};
use super::statement::{Dialect, JsonRows, PageRequest, PageScan, Row, SortDirection, Sql};
use super::{Store, StoreError, with_causes};

/// What is counted as one list in the order of its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedList {
    Forms,
    Groups,
    ManagedGroups,
    Users,
}

impl CountedList {
    const ALL: [Self; 4] = [Self::Forms, Self::Groups, Self::ManagedGroups, Self::Users];

    /// `counted` in the table `listed_counts`.
    fn literal(self) -> &'static str {
        match self {
            Self::Forms => "'forms'",
            Self::Groups => "'groups'",
            Self::ManagedGroups => "'managed groups'",
            Self::Users => "'users'",
        }
    }

    /// `counted` in the table `stale_counts`.
    fn noted(self) -> &'static str {
        match self {
            Self::ManagedGroups => "'groups'",
            _ => self.literal(),
        }
    }

    /// The rows, with a condition to which more can be added.
    fn rows(self) -> &'static str {
        match self {
            Self::Forms => " FROM forms WHERE NOT disabled AND parent_id IS NULL",
            Self::Groups => " FROM groups WHERE true",
            Self::ManagedGroups => " FROM groups WHERE managed",
            Self::Users => " FROM users WHERE true",
        }
    }

    /// Adds an expression: how many there are in the block `n.key`.
    fn write_block(self, sql: &mut Sql) {
        sql.push("(SELECT count(*)").push(self.rows());
        sql.push(" AND id BETWEEN n.key << 10 AND (n.key << 10) + 1023)");
    }

    /// Adds a condition: whether the counts of all blocks may be wrong.
    fn write_all_are_stale(self, sql: &mut Sql) {
        sql.push("EXISTS (SELECT 1 FROM stale_counts WHERE counted = ").push(self.noted()).push(" AND key = -1)");
    }

    /// Adds a table expression `n (key)`: the blocks whose counts may be wrong.
    fn write_stale(self, sql: &mut Sql) {
        sql.push("(SELECT DISTINCT key FROM stale_counts WHERE counted = ").push(self.noted());
        sql.push(" AND key >= 0) AS n");
    }

    /// Adds an expression: how many there are.
    pub(super) fn write_total(self, sql: &mut Sql) {
        sql.push("CASE WHEN ");
        self.write_all_are_stale(sql);
        sql.push(" THEN (SELECT count(*)").push(self.rows()).push(") ELSE CAST(");
        sql.push("coalesce((SELECT listed FROM listed_counts WHERE counted = ").push(self.literal());
        sql.push(" AND key = -1 AND status = ''), 0) + coalesce((SELECT sum(");
        self.write_block(sql);
        sql.push(" - coalesce((SELECT c.listed FROM listed_counts c WHERE c.counted = ").push(self.literal());
        sql.push(" AND c.key = n.key AND c.status = ''), 0)) FROM ");
        self.write_stale(sql);
        sql.push("), 0) AS bigint) END");
    }

    /// Adds the start of a statement whose pages may be far inside: the table `skipped (listed, last_id)`.
    pub(super) fn write_skipped(self, sql: &mut Sql, page: PageRequest) -> PageStart {
        if page.offset() < MAX_SKIPPED {
            return PageStart::Offset(page);
        }
        sql.push("WITH blocks (key, listed) AS (SELECT key, listed FROM listed_counts WHERE counted = ");
        sql.push(self.literal()).push(" AND key >= 0 AND status = '' AND key NOT IN (SELECT n.key FROM ");
        self.write_stale(sql);
        sql.push(") UNION ALL SELECT n.key, ");
        self.write_block(sql);
        sql.push(" FROM ");
        self.write_stale(sql);
        sql.push("), skipped (listed, last_id) AS (");
        // Not the first id behind them: that of the last block is none.
        sql.push("SELECT CAST(coalesce(max(through), 0) AS bigint), coalesce((max(key) << 10) + 1023, 0) FROM (");
        sql.push("SELECT key, sum(listed) OVER (ORDER BY key) AS through FROM blocks) AS running WHERE through <= ");
        sql.bind(page.offset()).push(" AND NOT ");
        self.write_all_are_stale(sql);
        sql.push(") ");
        PageStart::Skipped(page)
    }

    /// Counts some blocks again; without blocks, all.
    async fn recount(self, transaction: &mut Transaction, blocks: Option<&[i64]>) -> Result<(), StoreError> {
        let mut sql = transaction.sql();
        sql.push("DELETE FROM listed_counts WHERE counted = ").push(self.literal());
        if let Some(blocks) = blocks {
            sql.push(" AND (key = -1 OR key").in_ids(blocks).push(")");
        }
        transaction.execute(sql).await?;
        let mut sql = transaction.sql();
        sql.push(INSERT).push("SELECT ").push(self.literal());
        match blocks {
            Some(blocks) => {
                let mut keys = JsonRows::new();
                blocks.iter().for_each(|key| keys.push(&(key,)));
                sql.push(", key, '', listed FROM (SELECT n.key, ");
                self.write_block(&mut sql);
                sql.push(" AS listed FROM ").push_rows(keys.text(), &[("key", "bigint")]);
                sql.push(" AS n) AS counted WHERE listed > 0");
            }
            None => {
                sql.push(", id >> 10, '', count(*)").push(self.rows()).push(" GROUP BY 2");
            }
        }
        transaction.execute(sql).await?;
        let mut sql = transaction.sql();
        sql.push(INSERT)
            .push("SELECT ")
            .push(self.literal())
            .push(", -1, '', sum(listed) FROM listed_counts WHERE counted = ");
        sql.push(self.literal()).push(" HAVING sum(listed) > 0");
        transaction.execute(sql).await?;
        Ok(())
    }
}

const INSERT: &str = "INSERT INTO listed_counts (counted, key, status, listed) ";

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
            sql.push(" AND ").push(id).push(" > (SELECT last_id FROM skipped)");
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

/// A count. Stored ones that another program has changed may be below zero, and are shown as zero.
pub(super) fn not_negative(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

/// The same of a count in JSON.
pub(super) fn read_not_negative<'j, D: Deserializer<'j>>(json: D) -> Result<u64, D::Error> {
    i64::deserialize(json).map(not_negative)
}

/// An expression: how many members a group `g` has. The counts are looked up, not joined: Postgres would join by sorting the
/// counts of all groups, until its statistics know how many there are.
pub(super) const MEMBERS: &str = "CASE WHEN g.id IN (SELECT key FROM stale_counts WHERE counted = 'members') \
    OR -1 IN (SELECT key FROM stale_counts WHERE counted = 'members') \
    THEN (SELECT count(*) FROM group_members c WHERE c.group_id = g.id) \
    ELSE coalesce((SELECT listed FROM listed_counts WHERE counted = 'members' AND key = g.id AND status = ''), 0) END";

/// An expression: what it costs lists to count the noted ones themselves. A note is 1, and as many again for every 500 rows.
/// Of very many notes, only some are looked at.
pub(super) const STALE: &str = "(SELECT CAST(coalesce(sum(1 + coalesce((SELECT c.listed FROM listed_counts c \
    WHERE c.counted = n.counted AND c.key = n.key AND c.status = ''), 0) / 500), 0) AS bigint) \
    FROM (SELECT counted, key FROM stale_counts LIMIT 100) AS n)";

/// From which cost on the noted ones are counted again. Fewer than the notes that [`STALE`] looks at.
///
/// Larger: lists take longer, up to 50 µs for each. Smaller: more transactions count.
const MAX_STALE: i64 = 20;

/// After how many writes of groups of this node the noted ones are counted again, if no list is read.
///
/// Larger: the next list reads more rows. Smaller: more transactions count.
const WRITES_PER_RECOUNT: usize = 100;

impl Store {
    /// Reads a list: one row, whose second column is [`STALE`]. Counts again in the background if that saves lists time, also
    /// if the list took too long.
    pub(super) async fn fetch_list(&self, mut reader: PooledConnection, sql: Sql) -> Result<Row, StoreError> {
        let row = reader.fetch_one(sql).await.map_err(StoreError::from);
        drop(reader);
        let is_costly = match &row {
            Ok(row) => row.get::<i64>(1)? > MAX_STALE,
            Err(error) => ran_out_of_time(error),
        };
        if is_costly {
            self.recount_later();
        }
        row
    }

    /// Counts a write of a group, and counts again now and then.
    pub(super) fn note_group_write(&self) {
        if self.settler.counts_to(WRITES_PER_RECOUNT) {
            self.recount_later();
        }
    }

    fn recount_later(&self) {
        let Some(turn) = self.settler.try_to_recount() else { return };
        let database = self.database.clone();
        tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = recount(&database).await {
                tracing::debug!(cause = with_causes(&error), "lists could not be counted again; they count themselves");
            }
        });
    }
}

/// Counts again what is noted, one settler at a time.
pub(super) async fn recount(database: &Database) -> Result<(), StoreError> {
    let mut transaction = Settler::begin_for_a_request(database).await?;
    recount_within(&mut transaction).await?;
    transaction.commit().await?;
    // Each list reads the dead rows too.
    if database.dialect() == Dialect::Postgres
        && let Ok(mut writer) = database.writer().await
    {
        writer.vacuum("stale_counts").await.ok();
    }
    Ok(())
}

/// Counts again what is noted, by the transaction itself too.
pub(super) async fn recount_within(transaction: &mut Transaction) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push_either(
        "WITH note AS (DELETE FROM stale_counts RETURNING counted, key) SELECT DISTINCT counted, key FROM note",
        "SELECT DISTINCT counted, key FROM stale_counts",
    );
    let notes = transaction.fetch_all(sql).await?;
    if notes.is_empty() {
        return Ok(());
    }
    if transaction.dialect() == Dialect::Sqlite {
        transaction.command("DELETE FROM stale_counts").await?;
    }
    let mut noted: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for note in &notes {
        noted.entry(note.get(0)?).or_default().insert(note.get(1)?);
    }
    for (counted, keys) in noted {
        let keys: Vec<i64> = keys.into_iter().collect();
        let keys = (!keys.contains(&-1)).then_some(keys.as_slice());
        let lists: &[CountedList] = match counted.as_str() {
            "forms" => &[CountedList::Forms],
            "groups" => &[CountedList::Groups, CountedList::ManagedGroups],
            "users" => &[CountedList::Users],
            _ => &[],
        };
        for list in lists {
            list.recount(transaction, keys).await?;
        }
        if lists.is_empty() {
            recount_members(transaction, keys).await?;
        }
    }
    Ok(())
}

/// Counts the members of some groups again; without groups, of all.
async fn recount_members(transaction: &mut Transaction, groups: Option<&[i64]>) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM listed_counts WHERE counted = 'members'");
    if let Some(groups) = groups {
        sql.push(" AND key").in_ids(groups);
    }
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push(INSERT).push("SELECT 'members', group_id, '', count(*) FROM group_members");
    if let Some(groups) = groups {
        sql.push(" WHERE group_id").in_ids(groups);
    }
    sql.push(" GROUP BY group_id");
    transaction.execute(sql).await?;
    Ok(())
}

/// Adds a query of how many counts are wrong, apart from noted ones.
pub(super) fn write_count_wrong(sql: &mut Sql) {
    sql.push("SELECT count(*) FROM (SELECT counted, key FROM (");
    for list in CountedList::ALL {
        sql.push("SELECT ").push(list.literal()).push(" AS counted, ").push(list.noted()).push(" AS noted, ");
        sql.push("id >> 10 AS key, count(*) AS listed").push(list.rows()).push(" GROUP BY id >> 10 UNION ALL ");
    }
    // A program without foreign keys may write members of groups that can't be.
    sql.push(
        "SELECT 'members', 'members', group_id, count(*) FROM group_members WHERE group_id > 0 GROUP BY group_id ",
    );
    sql.push(
        "UNION ALL SELECT counted, CASE counted WHEN 'managed groups' THEN 'groups' ELSE counted END, key, -listed ",
    );
    sql.push(
        "FROM listed_counts WHERE counted IN ('forms', 'groups', 'managed groups', 'users', 'members') AND key >= 0 ",
    );
    // The total is that of the kept counts, also of noted ones.
    sql.push(
        "UNION ALL SELECT counted, 'total', -1, CASE key WHEN -1 THEN -listed ELSE listed END FROM listed_counts ",
    );
    sql.push("WHERE counted IN ('forms', 'groups', 'managed groups', 'users')");
    sql.push(") AS differences WHERE NOT EXISTS (SELECT 1 FROM stale_counts n ");
    sql.push("WHERE n.counted = differences.noted AND n.key IN (differences.key, -1)) ");
    sql.push("GROUP BY counted, key HAVING sum(listed) <> 0) AS wrong");
}

/// Notes that every count may be wrong.
pub(super) async fn note_all(transaction: &mut Transaction) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push("INSERT INTO stale_counts SELECT column1, -1 FROM (VALUES ('forms'), ('groups'), ('users'), ('members')) AS all_counts");
    transaction.execute(sql).await?;
    Ok(())
}

/// Counts everything again if a count is wrong. Returns how many were.
pub(super) async fn repair(database: &Database) -> Result<u64, StoreError> {
    recount(database).await?;
    let mut transaction = Settler::begin_for_a_command(database).await?;
    let mut sql = transaction.sql();
    write_count_wrong(&mut sql);
    let wrong: i64 = transaction.fetch_all(sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    if wrong > 0 {
        note_all(&mut transaction).await?;
        recount_within(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(wrong.unsigned_abs())
}
