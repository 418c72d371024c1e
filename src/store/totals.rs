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
use super::statement::{Dialect, JsonRows, PageRequest, PageScan, Row, SortDirection, Sql, sql};
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
    /// `counted` in the table `listed_counts`.
    fn counted(self) -> Sql {
        Sql::text(match self {
            Self::Forms => "'forms'",
            Self::Groups => "'groups'",
            Self::ManagedGroups => "'managed groups'",
            Self::Users => "'users'",
        })
    }

    /// `counted` in the table `stale_counts`.
    fn noted(self) -> Sql {
        match self {
            Self::ManagedGroups => Self::Groups.counted(),
            _ => self.counted(),
        }
    }

    /// The rows, with a condition to which more can be added.
    fn rows(self) -> Sql {
        Sql::text(match self {
            Self::Forms => "FROM forms WHERE NOT disabled AND parent_id IS NULL",
            Self::Groups => "FROM groups WHERE true",
            Self::ManagedGroups => "FROM groups WHERE managed",
            Self::Users => "FROM users WHERE true",
        })
    }

    /// An expression: how many there are in the block `n.key`.
    fn count_of_block(self) -> Sql {
        sql!(
            "(SELECT count(*) {+counted_rows} AND id BETWEEN n.key << 10 AND (n.key << 10) + 1023)",
            counted_rows = self.rows()
        )
    }

    /// A condition: the counts of all blocks may be wrong.
    fn all_are_stale(self) -> Sql {
        sql!("EXISTS (SELECT 1 FROM stale_counts WHERE counted = {+noted} AND key = -1)", noted = self.noted())
    }

    /// A table expression `n (key)`: the blocks whose counts may be wrong.
    fn stale_blocks(self) -> Sql {
        sql!("(SELECT DISTINCT key FROM stale_counts WHERE counted = {+noted} AND key >= 0) AS n", noted = self.noted())
    }

    /// An expression: how many there are.
    pub(super) fn total(self) -> Sql {
        sql!(
            "CASE WHEN {+all_are_stale} THEN (SELECT count(*) {+counted_rows}) ELSE CAST(
               coalesce((SELECT listed FROM listed_counts
                 WHERE counted = {+counted} AND key = -1 AND status = ''), 0)
               + coalesce((SELECT sum({+count_of_block} - coalesce((SELECT c.listed FROM listed_counts c
                 WHERE c.counted = {+counted} AND c.key = n.key AND c.status = ''), 0)) FROM {+stale_blocks}), 0)
               AS bigint) END",
            all_are_stale = self.all_are_stale(),
            counted_rows = self.rows(),
            counted = self.counted(),
            count_of_block = self.count_of_block(),
            stale_blocks = self.stale_blocks(),
        )
    }

    /// Where a page begins.
    pub(super) fn start_of(self, page: PageRequest) -> PageStart {
        if page.offset() < MAX_SKIPPED { PageStart::Offset(page) } else { PageStart::Skipped(self, page) }
    }

    /// Counts some blocks again; without blocks, all.
    async fn recount(self, transaction: &mut Transaction, blocks: Option<&[i64]>) -> Result<(), StoreError> {
        let [old, new] = match blocks {
            Some(blocks) => {
                let mut keys = JsonRows::new();
                blocks.iter().for_each(|key| keys.push(&(key,)));
                [
                    sql!(
                        "DELETE FROM listed_counts WHERE counted = {+counted} AND (key = -1 OR key {in blocks})",
                        counted = self.counted(),
                        blocks,
                    ),
                    sql!(
                        "INSERT INTO listed_counts (counted, key, status, listed)
                         SELECT {+counted}, key, '', listed
                         FROM (SELECT n.key, {+count_of_block} AS listed FROM {rows keys: key bigint} AS n) AS counted
                         WHERE listed > 0",
                        counted = self.counted(),
                        count_of_block = self.count_of_block(),
                        keys = keys.text(),
                    ),
                ]
            }
            None => [
                sql!("DELETE FROM listed_counts WHERE counted = {+counted}", counted = self.counted()),
                sql!(
                    "INSERT INTO listed_counts (counted, key, status, listed)
                     SELECT {+counted}, id >> 10, '', count(*) {+counted_rows} GROUP BY 2
                     {scans: everything is counted}",
                    counted = self.counted(),
                    counted_rows = self.rows(),
                ),
            ],
        };
        let sum = sql!(
            "INSERT INTO listed_counts (counted, key, status, listed)
             SELECT {+counted}, -1, '', sum(listed) FROM listed_counts WHERE counted = {+counted}
             HAVING sum(listed) > 0",
            counted = self.counted(),
        );
        for sql in [old, new, sum] {
            transaction.execute(sql).await?;
        }
        Ok(())
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
    Skipped(CountedList, PageRequest),
}

impl PageStart {
    /// The statement that reads a page: if it is far inside, with the table `skipped (listed, last_id)`.
    pub(super) fn with_skipped(self, statement: Sql) -> Sql {
        let Self::Skipped(list, page) = self else { return statement };
        // Not the first id behind the skipped blocks: that of the last block is none.
        sql!(
            "WITH blocks (key, listed) AS (
               SELECT key, listed FROM listed_counts
               WHERE counted = {+counted} AND key >= 0 AND status = '' AND key NOT IN (SELECT n.key FROM {+left_out})
               UNION ALL
               SELECT n.key, {+count_of_block} FROM {+stale_blocks}),
             skipped (listed, last_id) AS (
               SELECT CAST(coalesce(max(through), 0) AS bigint), coalesce((max(key) << 10) + 1023, 0)
               FROM (SELECT key, sum(listed) OVER (ORDER BY key) AS through FROM blocks) AS running
               WHERE through <= {offset} AND NOT {+all_are_stale})
             {+statement}",
            counted = list.counted(),
            left_out = list.stale_blocks(),
            count_of_block = list.count_of_block(),
            stale_blocks = list.stale_blocks(),
            offset = page.offset(),
            all_are_stale = list.all_are_stale(),
            statement,
        )
    }

    /// The condition on the ids of a page, after others.
    pub(super) fn behind_skipped(self, id: &'static str) -> Sql {
        match self {
            Self::Offset(_) => Sql::default(),
            Self::Skipped(..) => sql!(" AND {+id} > (SELECT last_id FROM skipped)", id = Sql::text(id)),
        }
    }

    /// The limit and the offset.
    pub(super) fn limit(self) -> Sql {
        match self {
            Self::Offset(page) => sql!("{page scan}", scan = PageScan::forward(page, SortDirection::Ascending)),
            Self::Skipped(_, page) => sql!(
                " LIMIT {size} OFFSET {offset} - (SELECT listed FROM skipped)",
                size = page.size,
                offset = page.offset(),
            ),
        }
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
    let sql = sql!(
        "{pg: WITH note AS (DELETE FROM stale_counts RETURNING counted, key) SELECT DISTINCT counted, key FROM note
         | lite: SELECT DISTINCT counted, key FROM stale_counts}
         {scans: all notes are taken}"
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
    let [old, new] = match groups {
        Some(groups) => [
            sql!("DELETE FROM listed_counts WHERE counted = 'members' AND key {in groups}", groups),
            sql!(
                "INSERT INTO listed_counts (counted, key, status, listed)
                 SELECT 'members', group_id, '', count(*) FROM group_members
                 WHERE group_id {in groups} GROUP BY group_id",
                groups,
            ),
        ],
        None => [
            sql!("DELETE FROM listed_counts WHERE counted = 'members'"),
            sql!(
                "INSERT INTO listed_counts (counted, key, status, listed)
                 SELECT 'members', group_id, '', count(*) FROM group_members GROUP BY group_id
                 {scans: everything is counted}"
            ),
        ],
    };
    for sql in [old, new] {
        transaction.execute(sql).await?;
    }
    Ok(())
}

/// How many counts are wrong, apart from noted ones. The total of a list is that of the kept counts, also of noted ones.
pub(super) fn count_wrong() -> Sql {
    // A program without foreign keys may write members of groups that can't be.
    sql!(
        "SELECT count(*) FROM (
           SELECT counted, key FROM (
             SELECT 'forms' AS counted, 'forms' AS noted, id >> 10 AS key, count(*) AS listed
             FROM forms WHERE NOT disabled AND parent_id IS NULL GROUP BY id >> 10
             UNION ALL
             SELECT 'groups', 'groups', id >> 10, count(*) FROM groups GROUP BY id >> 10
             UNION ALL
             SELECT 'managed groups', 'groups', id >> 10, count(*) FROM groups WHERE managed GROUP BY id >> 10
             UNION ALL
             SELECT 'users', 'users', id >> 10, count(*) FROM users GROUP BY id >> 10
             UNION ALL
             SELECT 'members', 'members', group_id, count(*) FROM group_members WHERE group_id > 0 GROUP BY group_id
             UNION ALL
             SELECT counted, CASE counted WHEN 'managed groups' THEN 'groups' ELSE counted END, key, -listed
             FROM listed_counts
             WHERE counted IN ('forms', 'groups', 'managed groups', 'users', 'members') AND key >= 0
             UNION ALL
             SELECT counted, 'total', -1, CASE key WHEN -1 THEN -listed ELSE listed END
             FROM listed_counts WHERE counted IN ('forms', 'groups', 'managed groups', 'users')) AS differences
           WHERE NOT EXISTS (
             SELECT 1 FROM stale_counts n
             WHERE n.counted = differences.noted AND n.key IN (differences.key, -1))
           GROUP BY counted, key HAVING sum(listed) <> 0) AS wrong
         {scans: everything is counted}"
    )
}

/// Notes that every count may be wrong.
pub(super) async fn note_all(transaction: &mut Transaction) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO stale_counts
         SELECT column1, -1 FROM (VALUES ('forms'), ('groups'), ('users'), ('members')) AS all_counts"
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// Counts everything again if a count is wrong. Returns how many were.
pub(super) async fn repair(database: &Database) -> Result<u64, StoreError> {
    recount(database).await?;
    let mut transaction = Settler::begin_for_a_command(database).await?;
    let rows = transaction.fetch_all(count_wrong()).await?;
    let wrong: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    if wrong > 0 {
        note_all(&mut transaction).await?;
        recount_within(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(wrong.unsigned_abs())
}
