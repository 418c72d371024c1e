//! Requests of each token in each hour: written behind together with the last uses, and read for charts.
//!
//! Each hour is one row: a chart of 30 days would otherwise read tens of thousands of rows, which takes ten times as long.
//!
//! Several nodes write the same hour, so a write adds to what is stored. Adding twice would count twice. A write whose
//! commit was not answered is therefore looked up by its [`CommitMark`] before it is tried again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, Row, Sql, sql};
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
///
/// Leaves out tokens that the database doesn't have, as after it was restored: they must not keep the rest from being
/// written.
pub(super) async fn add(
    transaction: &mut Transaction,
    hours: &[TokenHour],
    now: Timestamp,
) -> Result<Option<CommitMark>, sqlx::Error> {
    let Some(first) = hours.first() else { return Ok(None) };
    let tokens: BTreeSet<i64> = hours.iter().map(|of| of.token).collect();
    let tokens: Vec<i64> = tokens.into_iter().collect();
    let rows = transaction.fetch_all(sql!("SELECT id FROM tokens WHERE id {in tokens}", tokens)).await?;
    let known = rows.iter().map(|row| row.get(0)).collect::<Result<BTreeSet<i64>, _>>()?;
    let mut added: BTreeMap<Timestamp, HourCounts> = BTreeMap::new();
    for of in hours.iter().filter(|of| known.contains(&of.token)) {
        added.entry(of.hour).or_default().entry(of.token).or_default().add(of.counts);
    }
    // In their order, so that two nodes do not wait for each other.
    for (hour, added) in added {
        add_to_hour(transaction, hour, added).await?;
    }
    if transaction.deletes_old_rows() {
        transaction.execute(sql!("DELETE FROM token_hours WHERE hour < {oldest}", oldest = now - KEPT)).await?;
    }
    match transaction.dialect() {
        Dialect::Postgres => {
            let row = transaction.connection().fetch_one(sql!("SELECT txid_current()")).await?;
            Ok(Some(CommitMark::Transaction(row.get(0)?)))
        }
        Dialect::Sqlite => {
            let row = transaction.connection().fetch_optional(select_hour(first.hour)).await?;
            Ok(find(row.as_ref(), first)?.map(CommitMark::Row))
        }
    }
}

/// The requests of each token in an hour. Stored as a JSON array of `[token, admitted, refused]`.
type HourCounts = BTreeMap<i64, RequestCounts>;

/// Adds to the row of an hour.
async fn add_to_hour(transaction: &mut Transaction, hour: Timestamp, added: HourCounts) -> Result<(), sqlx::Error> {
    let insert = sql!("INSERT INTO token_hours (hour, counts) VALUES ({hour}, '[]') ON CONFLICT DO NOTHING", hour);
    transaction.execute(insert).await?;
    let lock = sql!("SELECT hour, counts FROM token_hours WHERE hour = {hour} {pg: FOR UPDATE}", hour);
    let row = transaction.connection().fetch_one(lock).await?;
    let mut counts = read(&row)?;
    for (token, more) in added {
        counts.entry(token).or_default().add(more);
    }
    let counts: Vec<_> = counts.iter().map(|(token, counts)| (token, counts.admitted, counts.refused)).collect();
    let counts = serde_json::to_string(&counts).expect("numbers are JSON");
    let update = sql!("UPDATE token_hours SET counts = {counts} WHERE hour = {hour}", counts, hour);
    transaction.execute(update).await.map(drop)
}

fn select_hour(hour: Timestamp) -> Sql {
    sql!("SELECT hour, counts FROM token_hours WHERE hour = {hour}", hour)
}

/// Reads the counts of a row with an hour and its counts.
fn read(row: &Row) -> Result<HourCounts, sqlx::Error> {
    let counts: Vec<(i64, i64, i64)> =
        serde_json::from_str(row.text(1)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let with = |(token, admitted, refused)| (token, RequestCounts { admitted, refused });
    Ok(counts.into_iter().map(with).collect())
}

/// The requests of the same token in the same hour, if the row has any.
fn find(row: Option<&Row>, of: &TokenHour) -> Result<Option<TokenHour>, sqlx::Error> {
    let counts = row.map(read).transpose()?.and_then(|counts| counts.get(&of.token).copied());
    Ok(counts.map(|counts| TokenHour { counts, ..*of }))
}

impl Store {
    /// Whether a write was committed; `None` while its transaction still runs.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn is_committed(&self, mark: CommitMark) -> Result<Option<bool>, StoreError> {
        let mut reader = self.database.reader().await?;
        match mark {
            CommitMark::Transaction(id) => {
                let status: Option<String> = reader.fetch_one(sql!("SELECT txid_status({id})", id)).await?.get(0)?;
                Ok(match status.as_deref() {
                    Some("in progress") => None,
                    Some("aborted") => Some(false),
                    // Without a status, it is older than any that the server still knows, and so are all that ended well.
                    _ => Some(true),
                })
            }
            CommitMark::Row(left) => {
                let row = reader.fetch_optional(select_hour(left.hour)).await?;
                Ok(Some(find(row.as_ref(), &left)? == Some(left)))
            }
        }
    }

    /// The requests of every token in each hour from an instant on.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_token_hours(&self, since: Timestamp) -> Result<Vec<TokenHour>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT hour, counts FROM token_hours WHERE hour >= {since}", since);
        let mut hours = Vec::new();
        for row in &reader.fetch_all(sql).await? {
            let hour = row.get(0)?;
            hours.extend(read(row)?.into_iter().map(|(token, counts)| TokenHour { hour, token, counts }));
        }
        Ok(hours)
    }

    /// The requests of some tokens from an instant on, of those that had any.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_token_requests(&self, tokens: &[i64], since: Timestamp) -> Result<HourCounts, StoreError> {
        let mut counts = HourCounts::new();
        for of in self.list_token_hours(since).await?.iter().filter(|of| tokens.contains(&of.token)) {
            counts.entry(of.token).or_default().add(of.counts);
        }
        Ok(counts)
    }

    /// The names of some tokens.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_token_names(&self, tokens: &[i64]) -> Result<Vec<(i64, String)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let rows = reader.fetch_all(sql!("SELECT id, name FROM tokens WHERE id {in tokens}", tokens)).await?;
        Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
    }
}
