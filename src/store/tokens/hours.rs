//! Requests of each token in each hour: written behind together with the last uses, and read for charts.
//!
//! On SQLite, each hour is also kept as one row: a chart of 30 days would otherwise read tens of thousands of rows, at the
//! expense of the node itself.
//!
//! Several nodes write the same hour, so a write adds to what is stored. Adding twice would count twice. A write whose
//! commit was not answered is therefore looked up by its [`CommitMark`] before it is tried again.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, Row, Sql};
use crate::store::{Store, StoreError};

/// How long hours are kept. Larger: the table grows. Smaller: a year can't be compared with the one before.
const KEPT: SignedDuration = SignedDuration::from_hours(400 * 24);

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Those within the rate limit.
    pub admitted: i64,
    /// Those that were answered with 429.
    pub refused: i64,
}

impl RequestCounts {
    /// Adds other requests.
    pub fn add(&mut self, other: Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.refused = self.refused.saturating_add(other.refused);
    }

    /// All of them.
    #[must_use]
    pub fn total(self) -> i64 {
        self.admitted.saturating_add(self.refused)
    }
}

/// The requests of a token in an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenHour {
    /// Where the hour begins.
    pub hour: Timestamp,
    /// The token.
    pub token: i64,
    /// Its requests.
    pub counts: RequestCounts,
}

/// Identifies a write, so that it can be asked later whether it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMark {
    /// The transaction, on Postgres.
    Transaction(i64),
    /// A row as the write left it, on SQLite, where no other node writes.
    Row(TokenHour),
}

/// Adds to the stored hours, and forgets old ones. Returns the mark of the write; `None` if there is nothing to add.
pub(super) async fn add(
    transaction: &mut Transaction,
    hours: &[TokenHour],
    now: Timestamp,
) -> Result<Option<CommitMark>, sqlx::Error> {
    let Some(first) = hours.first() else { return Ok(None) };
    transaction.execute(upsert(transaction.sql(), hours)).await?;
    remove_old(transaction, "DELETE FROM token_hours WHERE hour < ", now).await?;
    if transaction.dialect() == Dialect::Sqlite {
        transaction.execute(write_lists(transaction.sql(), hours)).await?;
        remove_old(transaction, "DELETE FROM token_hour_lists WHERE hour < ", now).await?;
    }
    let mut mark = transaction.sql();
    match transaction.dialect() {
        Dialect::Postgres => {
            mark.push("SELECT txid_current()");
            let row = transaction.connection().fetch_one(mark).await?;
            Ok(Some(CommitMark::Transaction(row.get(0)?)))
        }
        Dialect::Sqlite => {
            let row = transaction.connection().fetch_optional(select_row(mark, first)).await?;
            Ok(row.as_ref().map(read).transpose()?.map(CommitMark::Row))
        }
    }
}

async fn remove_old(transaction: &mut Transaction, delete: &'static str, now: Timestamp) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push(delete).bind(now - KEPT);
    transaction.execute(sql).await.map(drop)
}

/// Brings the rows that have a whole hour up to date.
fn write_lists(mut sql: Sql, changed: &[TokenHour]) -> Sql {
    let hours: BTreeSet<i64> = changed.iter().map(|of| of.hour.as_microsecond()).collect();
    sql.push("INSERT INTO token_hour_lists (hour, counts) SELECT hour, ")
        .push_each(LIST)
        .push(" FROM token_hours WHERE ");
    sql.push("hour").in_ids(&hours.into_iter().collect::<Vec<_>>()).push(" GROUP BY hour ");
    sql.push("ON CONFLICT (hour) DO UPDATE SET counts = excluded.counts");
    sql
}

/// The requests of all tokens in an hour: `token admitted refused` of each, separated by blanks.
const LIST: [&str; 2] = [
    "string_agg(concat_ws(' ', token_id, admitted, refused), ' ')",
    "group_concat(token_id || ' ' || admitted || ' ' || refused, ' ')",
];

/// Reads a [`LIST`]. `None` if it is something else.
fn read_list(hour: Timestamp, list: &str, hours: &mut Vec<TokenHour>) -> Option<()> {
    let mut numbers = list.split(' ').map(|number| number.parse::<i64>().ok());
    while let Some(token) = numbers.next() {
        let counts = RequestCounts { admitted: numbers.next()??, refused: numbers.next()?? };
        hours.push(TokenHour { hour, token: token?, counts });
    }
    Some(())
}

/// Leaves out tokens that the database doesn't have, as after it was restored: they must not keep the rest from being
/// written.
fn upsert(mut sql: Sql, hours: &[TokenHour]) -> Sql {
    let rows = hours.iter().map(|of| (of.hour.as_microsecond(), of.token, of.counts.admitted, of.counts.refused));
    let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("numbers are JSON");
    sql.push("INSERT INTO token_hours (hour, token_id, admitted, refused) SELECT ");
    sql.push_either("to_timestamp(counted.hour / 1e6)", "counted.hour");
    sql.push(", counted.token, counted.admitted, counted.refused FROM ");
    let columns = [("hour", "bigint"), ("token", "bigint"), ("admitted", "bigint"), ("refused", "bigint")];
    sql.push_rows(rows, &columns).push(" AS counted WHERE counted.token IN (SELECT id FROM tokens)");
    sql.push(" ON CONFLICT (hour, token_id) DO UPDATE SET admitted = token_hours.admitted + excluded.admitted, ");
    sql.push("refused = token_hours.refused + excluded.refused");
    sql
}

const COLUMNS: &str = "hour, token_id, admitted, refused";

fn read(row: &Row) -> Result<TokenHour, sqlx::Error> {
    let counts = RequestCounts { admitted: row.get(2)?, refused: row.get(3)? };
    Ok(TokenHour { hour: row.get(0)?, token: row.get(1)?, counts })
}

fn select_row(mut sql: Sql, of: &TokenHour) -> Sql {
    sql.push("SELECT ").push(COLUMNS).push(" FROM token_hours WHERE hour = ").bind(of.hour);
    sql.push(" AND token_id = ").bind(of.token);
    sql
}

impl Store {
    /// Whether a write was committed; `None` while its transaction still runs.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn is_committed(&self, mark: CommitMark) -> Result<Option<bool>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        match mark {
            CommitMark::Transaction(id) => {
                sql.push("SELECT txid_status(").bind(id).push(")");
                let status: Option<String> = reader.fetch_one(sql).await?.get(0)?;
                Ok(match status.as_deref() {
                    Some("in progress") => None,
                    Some("aborted") => Some(false),
                    // Without a status, it is older than any that the server still knows, and so are all that ended well.
                    _ => Some(true),
                })
            }
            CommitMark::Row(left) => {
                let row = reader.fetch_optional(select_row(sql, &left)).await?;
                Ok(Some(row.as_ref().map(read).transpose()? == Some(left)))
            }
        }
    }

    /// The requests of every token in each hour from an instant on.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_token_hours(&self, since: Timestamp) -> Result<Vec<TokenHour>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        // A row an hour: with dozens of tokens, a row each would take several times as long.
        sql.push("SELECT hour, ").push_either(LIST[0], "counts");
        sql.push(" FROM ").push_either("token_hours", "token_hour_lists").push(" WHERE hour >= ").bind(since);
        sql.push_either(" GROUP BY hour", "");
        let rows = reader.fetch_all(sql).await?;
        let mut hours = Vec::with_capacity(rows.len());
        for row in &rows {
            read_list(row.get(0)?, row.text(1)?, &mut hours)
                .ok_or_else(|| sqlx::Error::Decode("a list of numbers has something else".into()))?;
        }
        Ok(hours)
    }

    /// The requests of some tokens from an instant on, of those that had any.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_token_requests(
        &self,
        tokens: &[i64],
        since: Timestamp,
    ) -> Result<Vec<(i64, RequestCounts)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        // Postgres adds up to its type numeric.
        sql.push("SELECT token_id, CAST(sum(admitted) AS bigint), CAST(sum(refused) AS bigint) FROM token_hours");
        sql.push(" WHERE hour >= ").bind(since).push(" AND token_id").in_ids(tokens).push(" GROUP BY token_id");
        let rows = reader.fetch_all(sql).await?;
        let read = |row: &Row| Ok((row.get(0)?, RequestCounts { admitted: row.get(1)?, refused: row.get(2)? }));
        Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }

    /// The names of some tokens.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_token_names(&self, tokens: &[i64]) -> Result<Vec<(i64, String)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT id, name FROM tokens WHERE id").in_ids(tokens);
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
    }
}
