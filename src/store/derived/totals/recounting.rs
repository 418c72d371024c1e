//! Counts lists again, and finds counts that are wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::CountedList;
use crate::store::StoreError;
use crate::store::derived::settle::Settler;
use crate::store::engine::{Database, Transaction};
use crate::store::statement::{Dialect, JsonRows, Sql, sql};

impl CountedList {
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

/// Counts again what is noted, one settler at a time.
pub(in crate::store) async fn recount(database: &Database) -> Result<(), StoreError> {
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
pub(in crate::store) async fn recount_within(transaction: &mut Transaction) -> Result<(), StoreError> {
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
pub(in crate::store) fn count_wrong() -> Sql {
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
             SELECT 'users', 'users', id >> 10, count(*) FROM users WHERE active GROUP BY id >> 10
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
pub(in crate::store) async fn note_all(transaction: &mut Transaction) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO stale_counts
         SELECT column1, -1 FROM (VALUES ('forms'), ('groups'), ('users'), ('members')) AS all_counts"
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// Counts everything again if a count is wrong. Returns how many were.
pub(in crate::store) async fn repair(database: &Database) -> Result<u64, StoreError> {
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
