//! The change log: which submissions changed, in the order in which formgate noticed it.
//!
//! Owns reading it, as the feed does. Settling writes it: [`super::settle`]. What counts as a change is what a caller of
//! `GET /submission/{id}` would notice, and, only here and not in webhooks, what decides which filters match.
//!
//! A reader keeps a [`ChangeCursor`]. Everything that was committed before a read has a number when the read begins, so
//! a page after which nothing follows is complete.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;

use super::engine::{Database, PooledConnection, Retry};
use super::settle::{Settled, Settler};
use super::statement::{Row, Sql};
use super::submissions::{Submissions, read_submissions};
use super::{Store, StoreError};

/// How long the log keeps a deletion. A reader that was away for longer has to begin again.
///
/// Larger: deletions take room for longer. Smaller: a reader that rests for some weeks has to load everything again.
const KEPT: Duration = Duration::from_hours(90 * 24);

/// Of how many forms, sub-forms included, the changes are looked up one form after the other.
///
/// Larger: as many lookups for each page. Smaller: the changes of all forms are read to find those of a few.
const MAX_LOOKED_UP: usize = 64;

/// How many changes are read to find those of more forms than [`MAX_LOOKED_UP`].
///
/// Larger: a page takes longer. Smaller: a reader of rare forms gets more empty pages.
const MAX_READ: i64 = 20_000;

/// An expression: a new random epoch of the log.
pub(super) const NEW_EPOCH: [&str; 2] = ["replace(gen_random_uuid()::text, '-', '')", "lower(hex(randomblob(16)))"];

/// How many requests of an account wait for changes at once, on each node. Others are answered at once.
///
/// Larger: they may take all the requests that the account may have in flight. Smaller: few programs can wait.
pub(super) const MAX_WAITING: usize = 8;

/// How far a reader has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    /// Which log it is of.
    pub epoch: String,
    /// The number of the last change that was read.
    pub position: i64,
    /// Where the reader last was at the end of the log, or began: what was listed since then is new to it.
    pub base: i64,
    /// The end of the log when the reader began. Deletions up to there don't concern it.
    pub began: i64,
}

/// From where on changes are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangesFrom {
    /// Every submission once, and then what changes.
    Beginning,
    /// What changes from now on.
    Now,
    /// After what was read before.
    Cursor(ChangeCursor),
}

/// What happened to a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is listed, and was not when the reader last was at the end of the log.
    Created,
    /// It shows something else, or other filters match.
    Updated,
    /// It is no longer listed, or no longer in one of the forms that are read.
    Deleted,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The submission.
    pub submission: i64,
    /// Its form.
    pub form: i64,
    /// What happened.
    pub kind: ChangeKind,
    /// When it happened.
    pub changed_at: Timestamp,
}

/// A page of the log.
#[derive(Debug)]
pub struct ChangePage {
    /// In the order of the log.
    pub changes: Vec<Change>,
    /// Those that are listed, as they are now.
    pub submissions: Submissions,
    /// Where to read on.
    pub cursor: ChangeCursor,
    /// Whether there is more to read now.
    pub has_more: bool,
}

/// The result of reading.
#[derive(Debug)]
pub enum ChangesRead {
    /// A page.
    Page(ChangePage),
    /// The cursor leads nowhere: the reader has to begin again.
    Lost(LostCursor),
}

/// Why a cursor leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostCursor {
    /// Deletions that it has not seen are no longer kept.
    Expired,
    /// It is of another database, or the log has begun again since.
    Reset,
    /// The log has not got as far: an older state was restored.
    Ahead,
}

/// The state of a log.
struct LogState {
    epoch: String,
    last: i64,
    /// The last number of a deletion that is no longer kept.
    forgotten: i64,
    is_settled: bool,
}

/// Removes the deletions that are no longer kept, and notes how far they went.
pub(super) async fn forget_old(database: &Database) -> Result<(), StoreError> {
    let mut transaction = Settler::begin_for_a_command(database).await?;
    for table in [
        "DELETE FROM submission_changes WHERE deleted AND shown_in = submission_id AND changed_at < ",
        "DELETE FROM submission_moves WHERE changed_at < ",
    ] {
        let mut sql = transaction.sql();
        sql.push(table).bind(Timestamp::now() - KEPT).push(" RETURNING seq");
        let rows = transaction.fetch_all(sql).await?;
        let seqs = rows.iter().map(|row| row.get::<Option<i64>>(0)).collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = seqs.into_iter().flatten().max() {
            let mut sql = transaction.sql();
            sql.push("UPDATE change_state SET forgotten_seq = ").bind(last);
            sql.push(" WHERE forgotten_seq < ").bind_again();
            transaction.execute(sql).await?;
        }
    }
    Ok(transaction.commit().await?)
}

/// A row of the log.
struct LogEntry {
    seq: i64,
    change: Change,
}

impl Store {
    /// The changes after a cursor, at most `limit`; of some forms, sub-forms included, unless `forms` is empty.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if what was committed before can't be numbered in time; [`StoreError::Unavailable`],
    /// [`StoreError::Statement`].
    pub async fn changes(&self, from: &ChangesFrom, forms: &[i64], limit: u32) -> Result<ChangesRead, StoreError> {
        let mut retry = Retry::default();
        loop {
            match self.try_to_read_changes(from, forms, limit).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_read_changes(
        &self,
        from: &ChangesFrom,
        forms: &[i64],
        limit: u32,
    ) -> Result<ChangesRead, StoreError> {
        let (read, is_settled) = self.read_changes(from, forms, limit).await?;
        if is_settled {
            return Ok(read);
        }
        match self.settle().await? {
            Settled::Yes => Ok(self.read_changes(from, forms, limit).await?.0),
            // Numbers can't be given now.
            Settled::CannotWrite => Err(StoreError::Unsettled),
        }
    }

    /// A page, and whether everything that was committed before had a number.
    async fn read_changes(
        &self,
        from: &ChangesFrom,
        forms: &[i64],
        limit: u32,
    ) -> Result<(ChangesRead, bool), StoreError> {
        let mut reader = self.database.reader().await?;
        // So that a submission shows what it showed when it got its number, or a later state that got none yet.
        reader.begin_reading().await?;
        let state = LogState::read(&mut reader).await?;
        let cursor = match start(from, &state) {
            Ok(cursor) => cursor,
            Err(lost) => return Ok((ChangesRead::Lost(lost), true)),
        };
        let page = if *from == ChangesFrom::Now {
            ChangePage { changes: Vec::new(), submissions: Submissions::default(), cursor, has_more: false }
        } else {
            read_page(&mut reader, cursor, &state, forms, limit).await?
        };
        reader.end_transaction("COMMIT").await?;
        Ok((ChangesRead::Page(page), state.is_settled))
    }

    /// Begins the log again: every cursor is lost.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn reset_changes(&self) -> Result<(), StoreError> {
        let mut transaction = Settler::begin_for_a_command(&self.database).await?;
        let mut sql = transaction.sql();
        sql.push("UPDATE change_state SET epoch = ").push_each(NEW_EPOCH);
        transaction.execute(sql).await?;
        Ok(transaction.commit().await?)
    }

    /// A permit to wait for changes; None if as many wait as may.
    #[must_use]
    pub fn wait_for_changes(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.changes_waited_for).try_acquire_owned().ok()
    }

    /// Whether something was noted that has no number yet, or the log is longer than up to a cursor.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn has_changes_after(&self, cursor: &ChangeCursor) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let state = LogState::read(&mut reader).await?;
        Ok(!state.is_settled || state.epoch != cursor.epoch || state.last != cursor.position)
    }
}

impl LogState {
    async fn read(reader: &mut PooledConnection) -> Result<Self, sqlx::Error> {
        let mut sql = reader.sql();
        sql.push(
            "SELECT epoch, last_seq, forgotten_seq, coalesce((SELECT max(seq) FROM submission_changes WHERE deleted ",
        );
        sql.push("AND changed_at < ").bind(Timestamp::now() - KEPT);
        sql.push("), 0), NOT EXISTS (SELECT 1 FROM intake) AND NOT EXISTS (SELECT 1 FROM intake_unnumbered) ");
        sql.push("FROM change_state");
        let row = reader.fetch_one(sql).await?;
        let forgotten = row.get::<i64>(2)?.max(row.get(3)?);
        Ok(Self { epoch: row.get(0)?, last: row.get(1)?, forgotten, is_settled: row.get(4)? })
    }
}

/// Where reading starts.
fn start(from: &ChangesFrom, state: &LogState) -> Result<ChangeCursor, LostCursor> {
    let LogState { epoch, last, forgotten, .. } = state;
    match from {
        ChangesFrom::Beginning => Ok(ChangeCursor { epoch: epoch.clone(), position: 0, base: 0, began: *last }),
        ChangesFrom::Now => Ok(ChangeCursor { epoch: epoch.clone(), position: *last, base: *last, began: *last }),
        ChangesFrom::Cursor(cursor) if cursor.epoch != *epoch => Err(LostCursor::Reset),
        ChangesFrom::Cursor(cursor) if cursor.position.max(cursor.began) > *last => Err(LostCursor::Ahead),
        ChangesFrom::Cursor(cursor) if *forgotten > cursor.position.max(cursor.began) => Err(LostCursor::Expired),
        ChangesFrom::Cursor(cursor) => Ok(cursor.clone()),
    }
}

async fn read_page(
    reader: &mut PooledConnection,
    mut cursor: ChangeCursor,
    state: &LogState,
    forms: &[i64],
    limit: u32,
) -> Result<ChangePage, StoreError> {
    // One more than is returned shows whether there is more.
    let wanted = i64::from(limit) + 1;
    let (mut entries, read_to) = if forms.is_empty() {
        let mut sql = reader.sql();
        write_entries(&mut sql, cursor.position);
        sql.push(" ORDER BY seq LIMIT ").bind(wanted);
        (read_entries(reader, sql, &cursor).await?, state.last)
    } else {
        entries_of_forms(reader, &cursor, state, forms, wanted).await?
    };
    let mut has_more = read_to < state.last;
    if entries.len() > limit as usize {
        entries.truncate(limit as usize);
        has_more = true;
        cursor.position = entries.last().map_or(cursor.position, |entry| entry.seq);
    } else {
        cursor.position = read_to;
    }
    // Of what was deleted before it began, a reader has seen nothing.
    entries.retain(|entry| entry.change.kind != ChangeKind::Deleted || entry.seq > cursor.began);
    let changes: Vec<Change> = entries.into_iter().map(|entry| entry.change).collect();
    let listed = changes.iter().filter(|change| change.kind != ChangeKind::Deleted).map(|change| change.submission);
    let submissions = read_submissions(reader, listed.collect()).await?;
    if !has_more {
        cursor.base = cursor.position;
    }
    Ok(ChangePage { changes, submissions, cursor, has_more })
}

/// The entries of some forms and their sub-forms, and up to which number the log was read.
async fn entries_of_forms(
    reader: &mut PooledConnection,
    cursor: &ChangeCursor,
    state: &LogState,
    forms: &[i64],
    wanted: i64,
) -> Result<(Vec<LogEntry>, i64), StoreError> {
    let mut sql = reader.sql();
    sql.push("SELECT id FROM ");
    super::search::write_with_sub_forms(&mut sql, forms);
    sql.push(" AS wanted LIMIT ").bind(MAX_LOOKED_UP as i64 + 1);
    let rows = reader.fetch_all(sql).await?;
    let mut all: Vec<i64> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let (mut entries, mut read_to) = (Vec::new(), state.last);
    if all.len() <= MAX_LOOKED_UP {
        // Forms that were deleted have no submissions, and may have had some.
        all.extend(forms);
        let all: Vec<i64> = all.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        if cursor.position < state.last {
            for form in &all {
                let mut sql = reader.sql();
                write_entries(&mut sql, cursor.position);
                sql.push(" AND form_id = ").bind(*form).push(" ORDER BY seq LIMIT ").bind(wanted);
                entries.extend(read_entries(reader, sql, cursor).await?);
            }
            entries.extend(
                read_moves(reader, cursor, read_to, wanted, |sql| {
                    sql.in_ids(&all);
                })
                .await?,
            );
        }
    } else {
        let mut sql = reader.sql();
        sql.push("SELECT max(seq), count(*) FROM (SELECT seq FROM submission_changes WHERE seq > ");
        sql.bind(cursor.position).push(" ORDER BY seq LIMIT ").bind(MAX_READ).push(") AS next");
        let row = reader.fetch_one(sql).await?;
        if row.get::<i64>(1)? == MAX_READ {
            read_to = row.get::<Option<i64>>(0)?.unwrap_or(state.last);
        }
        let within = |sql: &mut Sql| {
            sql.push(" IN ");
            super::search::write_with_sub_forms(sql, forms);
        };
        let mut sql = reader.sql();
        write_entries(&mut sql, cursor.position);
        sql.push(" AND seq <= ").bind(read_to).push(" AND form_id");
        within(&mut sql);
        sql.push(" ORDER BY seq LIMIT ").bind(wanted);
        entries.extend(read_entries(reader, sql, cursor).await?);
        entries.extend(read_moves(reader, cursor, read_to, wanted, within).await?);
    }
    entries.sort_unstable_by_key(|entry| entry.seq);
    entries.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
    Ok((entries, read_to))
}

/// The submissions that left the forms for others. `within` adds the condition on a form.
async fn read_moves(
    reader: &mut PooledConnection,
    cursor: &ChangeCursor,
    read_to: i64,
    wanted: i64,
    within: impl Fn(&mut Sql),
) -> Result<Vec<LogEntry>, StoreError> {
    let mut sql = reader.sql();
    sql.push(
        "SELECT m.submission_id, m.form_id, m.seq, m.seq, TRUE, m.changed_at FROM submission_moves m WHERE m.seq > ",
    );
    sql.bind(cursor.position).push(" AND m.seq <= ").bind(read_to).push(" AND m.form_id");
    within(&mut sql);
    sql.push(
        " AND NOT EXISTS (SELECT 1 FROM submission_changes c WHERE c.submission_id = m.submission_id AND c.form_id",
    );
    within(&mut sql);
    sql.push(") ORDER BY m.seq LIMIT ").bind(wanted);
    read_entries(reader, sql, cursor).await
}

/// Adds the query of the entries after a position, up to further conditions.
fn write_entries(sql: &mut Sql, position: i64) {
    sql.push(
        "SELECT submission_id, form_id, seq, listed_seq, deleted, changed_at FROM submission_changes WHERE seq > ",
    );
    sql.bind(position);
}

async fn read_entries(
    reader: &mut PooledConnection,
    sql: Sql,
    cursor: &ChangeCursor,
) -> Result<Vec<LogEntry>, StoreError> {
    let rows = reader.fetch_all(sql).await?;
    let entry = |row: &Row| {
        let kind = if row.get(4)? {
            ChangeKind::Deleted
        } else if row.get::<Option<i64>>(3)?.is_some_and(|listed| listed > cursor.base) {
            ChangeKind::Created
        } else {
            ChangeKind::Updated
        };
        let change = Change { submission: row.get(0)?, form: row.get(1)?, kind, changed_at: row.get(5)? };
        Ok(LogEntry { seq: row.get(2)?, change })
    };
    Ok(rows.iter().map(entry).collect::<Result<_, sqlx::Error>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_lost_if_the_log_can_not_be_followed_from_it() {
        let state = LogState { epoch: "a".into(), last: 20, forgotten: 10, is_settled: true };
        let start_at = |epoch: &str, position, began| {
            let cursor = ChangeCursor { epoch: epoch.into(), position, base: 0, began };
            start(&ChangesFrom::Cursor(cursor), &state).map(|cursor| cursor.position)
        };
        assert_eq!(start_at("a", 12, 0), Ok(12));
        assert_eq!(start_at("a", 20, 20), Ok(20));
        assert_eq!(start_at("b", 12, 0), Err(LostCursor::Reset));
        assert_eq!(start_at("a", 21, 0), Err(LostCursor::Ahead));
        assert_eq!(start_at("a", 3, 21), Err(LostCursor::Ahead), "it began in a state that is gone");
        assert_eq!(start_at("a", 9, 5), Err(LostCursor::Expired));
        assert_eq!(start_at("a", 3, 15), Ok(3), "it began after those deletions");
    }
}
