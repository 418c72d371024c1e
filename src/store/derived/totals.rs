//! How many forms, groups, active users and members there are, without counting rows, and where a page far inside a list
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

mod recounting;

use serde::{Deserialize, Deserializer};

use super::settle::ran_out_of_time;
use crate::store::engine::PooledConnection;
use crate::store::statement::{PageRequest, PageScan, Row, SortDirection, Sql, sql};
use crate::store::{Store, StoreError, with_causes};
use recounting::recount;
pub(in crate::store) use recounting::{count_wrong, note_all, recount_within, repair};

/// What is counted as one list in the order of its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum CountedList {
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
            Self::Users => "FROM users WHERE active",
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
    pub(in crate::store) fn total(self) -> Sql {
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
    pub(in crate::store) fn start_of(self, page: PageRequest) -> PageStart {
        if page.offset() < MAX_SKIPPED { PageStart::Offset(page) } else { PageStart::Skipped(self, page) }
    }
}

/// How many rows of an index are skipped one by one, before blocks are skipped by their counts.
///
/// Larger: pages far inside take longer. Smaller: adding up the blocks takes longer than skipping would.
const MAX_SKIPPED: i64 = 2_000;

/// Where a page of a [`CountedList`] begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) enum PageStart {
    Offset(PageRequest),
    Skipped(CountedList, PageRequest),
}

impl PageStart {
    /// The statement that reads a page: if it is far inside, with the table `skipped (listed, last_id)`.
    pub(in crate::store) fn with_skipped(self, statement: Sql) -> Sql {
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
    pub(in crate::store) fn behind_skipped(self, id: &'static str) -> Sql {
        match self {
            Self::Offset(_) => Sql::default(),
            Self::Skipped(..) => sql!(" AND {+id} > (SELECT last_id FROM skipped)", id = Sql::text(id)),
        }
    }

    /// The limit and the offset.
    pub(in crate::store) fn limit(self) -> Sql {
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
pub(in crate::store) fn not_negative(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

/// The same of a count in JSON.
pub(in crate::store) fn read_not_negative<'j, D: Deserializer<'j>>(json: D) -> Result<u64, D::Error> {
    i64::deserialize(json).map(not_negative)
}

/// An expression: how many members a group `g` has. The counts are looked up, not joined: Postgres would join by sorting the
/// counts of all groups, until its statistics know how many there are.
pub(in crate::store) const MEMBERS: &str = "CASE WHEN g.id IN (SELECT key FROM stale_counts WHERE counted = 'members') \
    OR -1 IN (SELECT key FROM stale_counts WHERE counted = 'members') \
    THEN (SELECT count(*) FROM group_members c WHERE c.group_id = g.id) \
    ELSE coalesce((SELECT listed FROM listed_counts WHERE counted = 'members' AND key = g.id AND status = ''), 0) END";

/// An expression: what it costs lists to count the noted ones themselves. A note is 1, and as many again for every 500 rows.
/// Of very many notes, only some are looked at.
pub(in crate::store) const STALE: &str = "(SELECT CAST(coalesce(sum(1 + coalesce((SELECT c.listed FROM listed_counts c \
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
    pub(in crate::store) async fn fetch_list(&self, mut reader: PooledConnection, sql: Sql) -> Result<Row, StoreError> {
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
    pub(in crate::store) fn note_group_write(&self) {
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
