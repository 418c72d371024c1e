//! The change log: which submissions changed, in the order in which formgate noticed it.
//!
//! Owns reading it, as the feed does. Settling writes it: [`super::settle`]. What counts as a change is what a caller of
//! `GET /submission/{id}` would notice, and, only here and not in webhooks, what decides which filters match.
//!
//! A reader keeps a [`ChangeCursor`]. Everything that was committed before a read has a number when the read begins, so
//! a page after which nothing follows is complete. A page ends before a submission that shows something without a
//! number: if that was taken back before it got one, the reader would never learn of it.
//!
//! A cursor also keeps the end of the log of its page, with its stamp: a page leaves out what has a later number, so if the
//! database loses that number, the reader has missed something, however far it had read.

mod form_tree;
mod joining;
mod reading;
mod stamps;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::settle::{Settled, Settler, place_noted, settle_all};
use crate::store::engine::{Database, retry};
use crate::store::statement::{Sql, sql};
use crate::store::submissions::Submissions;
use crate::store::subscriptions::note_lost_deletions;
use crate::store::{Actor, AuditEntry, Store, StoreError, audit};
pub(super) use joining::{Joined, changed_since};
pub(super) use reading::unnumbered_of;
use reading::{LogState, read_page};
pub use stamps::LogMark;
pub(in crate::store) use stamps::{is_in_log, stamp, stamp_of};

/// How long the log keeps a deletion. A reader that was away for longer has to begin again.
///
/// Larger: deletions take room for longer. Smaller: a reader that rests for some weeks has to load everything again.
const KEPT: Duration = Duration::from_hours(90 * 24);

/// What becomes of the events of webhooks that wait when the log begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingEvents {
    /// They are sent.
    Kept,
    /// They are not sent: each subscription begins with the next event.
    Dropped,
}

impl WaitingEvents {
    fn details(self) -> serde_json::Value {
        match self {
            Self::Kept => json!({}),
            Self::Dropped => json!({ "webhooks": "skipped" }),
        }
    }
}

/// A sender that still has a lease writes nothing more.
pub(in crate::store) const DROP_EVENTS: &str = "DELETE FROM webhook_events; \
    UPDATE subscriptions SET position = (SELECT last_seq FROM change_state), done_beyond = '[]', next_attempt_at = NULL, \
    leased_by = NULL, leased_until = NULL";

/// An expression: a new random epoch of the log.
pub(in crate::store) const NEW_EPOCH: [&str; 2] =
    ["replace(gen_random_uuid()::text, '-', '')", "lower(hex(randomblob(16)))"];

/// The same as a part of a statement.
pub(in crate::store) fn new_epoch() -> Sql {
    let [postgres, sqlite] = NEW_EPOCH.map(Sql::text);
    sql!("{pg: {+postgres} | lite: {+sqlite}}", postgres, sqlite)
}

/// How many requests of an account wait for changes at once, on each node. Others are answered at once.
///
/// Larger: they may take all the requests that the account may have in flight. Smaller: few programs can wait.
pub(in crate::store) const MAX_WAITING: usize = 8;

/// How often a page is read again that would begin with a submission that was written meanwhile.
///
/// Larger: a request may take longer while a submission is written all the time. Smaller: more pages are empty.
const MAX_TRIES: usize = 5;

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
    /// The end of the log when the reader read last.
    pub seen: LogMark,
}

impl ChangeCursor {
    /// The cursor after a change, for a reader that has everything up to it.
    pub(in crate::store) fn after(epoch: String, change: LogMark) -> Self {
        Self { epoch, position: change.seq, base: change.seq, began: change.seq, seen: change }
    }
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
    /// It is listed, in one of the forms that are read, and was not when the reader last was at the end of the log.
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
    /// It is of another database, the log has begun again or goes on otherwise since, or other forms are read now, because one
    /// was moved in the tree.
    Reset,
    /// The log has not got as far: an older state was restored.
    Ahead,
}

/// Removes the deletions and the stamps that are no longer kept, and notes how far they went.
pub(in crate::store) async fn forget_old(database: &Database) -> Result<(), StoreError> {
    if !database.limits().deletes_old_rows {
        return Ok(());
    }
    let until = Timestamp::now() - KEPT;
    let mut transaction = Settler::begin_for_a_command(database).await?;
    note_lost_deletions(&mut transaction, until).await?;
    let forgotten = sql!(
        "UPDATE change_state SET forgotten_seq = (
           SELECT max(seq) FROM (
             SELECT forgotten_seq AS seq FROM change_state
             UNION ALL
             SELECT seq FROM submission_changes WHERE deleted AND shown_in = submission_id AND changed_at < {until}
             UNION ALL
             SELECT seq FROM submission_moves WHERE changed_at < {until}) AS old)
         {scans: moves are few, and this is a task in the background}",
        until,
    );
    let deletions = sql!(
        "DELETE FROM submission_changes WHERE deleted AND shown_in = submission_id AND changed_at < {until}",
        until,
    );
    let moves = sql!(
        "DELETE FROM submission_moves WHERE changed_at < {until}
         {scans: moves are few, and this is a task in the background}",
        until,
    );
    for sql in [forgotten, deletions, moves] {
        transaction.execute(sql).await?;
    }
    stamps::forget(&mut transaction, until).await?;
    Ok(transaction.commit().await?)
}

impl Store {
    /// The changes after a cursor, at most `limit`; of some forms, sub-forms included, unless `forms` is empty. A cursor
    /// must have been returned for the same forms and the same reach.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if what was committed before can't be numbered in time; [`StoreError::Unavailable`],
    /// [`StoreError::Statement`].
    pub async fn changes(&self, from: &ChangesFrom, forms: &[i64], limit: u32) -> Result<ChangesRead, StoreError> {
        retry::run(|| async move {
            let (mut read, is_numbered) = self.read_changes(from, forms, limit).await?;
            if is_numbered {
                return Ok(read);
            }
            for _ in 0..MAX_TRIES {
                // Numbers can't be given while nothing can be written.
                if self.settle().await? == Settled::CannotWrite {
                    return Err(StoreError::Unsettled);
                }
                if !self.follows_all(forms) {
                    place_noted(&self.database).await?;
                }
                (read, _) = self.read_changes(from, forms, limit).await?;
                // Writes since then are not waited for.
                if !matches!(&read, ChangesRead::Page(page) if page.changes.is_empty() && page.has_more) {
                    break;
                }
            }
            Ok(read)
        })
        .await
    }

    /// A page, and whether everything that was committed before had a number.
    async fn read_changes(
        &self,
        from: &ChangesFrom,
        forms: &[i64],
        limit: u32,
    ) -> Result<(ChangesRead, bool), StoreError> {
        let mut reader = self.database.reader().await?;
        // The log and the submissions as of one instant.
        reader.begin_reading().await?;
        let state = LogState::read(&mut reader, from).await?;
        if let ChangesFrom::Cursor(cursor) = from
            && let Some(lost) = lost(cursor, &state)
        {
            return Ok((ChangesRead::Lost(lost), true));
        }
        if !self.follows_all(forms) && state.has_form_notes {
            let page = ChangePage { has_more: true, ..ChangePage::empty(start(from, &state)) };
            return Ok((ChangesRead::Page(page), false));
        }
        let followed = self.reach().narrowed_to(&mut reader, forms).await?;
        if let ChangesFrom::Cursor(cursor) = from
            && self.follows_others(&mut reader, (cursor, &state), forms, &followed).await?
        {
            return Ok((ChangesRead::Lost(LostCursor::Reset), true));
        }
        let mut cursor = start(from, &state);
        cursor.seen = state.last;
        let page = if *from == ChangesFrom::Now {
            ChangePage::empty(cursor)
        } else {
            read_page(&mut reader, cursor, &state, &followed, &self.caller, limit).await?
        };
        reader.end_transaction("COMMIT").await?;
        Ok((ChangesRead::Page(page), state.is_numbered))
    }

    /// Begins the log again: every cursor is lost.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn reset_changes(&self, waiting: WaitingEvents, by: &Actor) -> Result<(), StoreError> {
        if waiting == WaitingEvents::Dropped {
            // What was written before gets its number now, and is not sent.
            settle_all(&self.database).await?;
        }
        let mut transaction = Settler::begin_for_a_command(&self.database).await?;
        if waiting == WaitingEvents::Dropped {
            transaction.command(DROP_EVENTS).await?;
        }
        transaction.execute(sql!("UPDATE change_state SET epoch = {+epoch}", epoch = new_epoch())).await?;
        let entry =
            AuditEntry { action: "changes.reset", subject: "change log".to_owned(), details: waiting.details() };
        audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
        Ok(transaction.commit().await?)
    }

    /// A permit to wait for changes; None if as many wait as may.
    #[must_use]
    pub fn wait_for_changes(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.changes_waited_for).try_acquire_owned().ok()
    }

    /// Whether something was noted that has no number yet, or the log is longer than up to a cursor of some forms.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn has_changes_after(&self, cursor: &ChangeCursor, forms: &[i64]) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let state = LogState::read(&mut reader, &ChangesFrom::Cursor(cursor.clone())).await?;
        let has_notes = !state.is_numbered || (state.has_form_notes && !self.follows_all(forms));
        Ok(has_notes || lost(cursor, &state).is_some() || state.last.seq != cursor.position)
    }

    /// Whether a reader of these forms follows every form.
    pub(super) fn follows_all(&self, forms: &[i64]) -> bool {
        forms.is_empty() && self.reach().is_all()
    }
}

impl ChangePage {
    fn empty(cursor: ChangeCursor) -> Self {
        Self { changes: Vec::new(), submissions: Submissions::default(), cursor, has_more: false }
    }
}

/// Why a cursor leads nowhere, if it does not.
fn lost(cursor: &ChangeCursor, state: &LogState) -> Option<LostCursor> {
    let ChangeCursor { epoch, position, began, seen, .. } = cursor;
    if *epoch != state.epoch {
        Some(LostCursor::Reset)
    } else if seen.seq > state.last.seq {
        Some(LostCursor::Ahead)
    } else if seen.seq < state.unstamped {
        Some(LostCursor::Expired)
    } else if seen.seq > 0 && seen.stamp != state.stamp_of_seen {
        Some(LostCursor::Reset)
    } else {
        (state.forgotten > *position.max(began)).then_some(LostCursor::Expired)
    }
}

/// Where reading starts, if it is not lost.
fn start(from: &ChangesFrom, state: &LogState) -> ChangeCursor {
    let last = state.last.seq;
    let new =
        |position| ChangeCursor { epoch: state.epoch.clone(), position, base: position, began: last, seen: state.last };
    match from {
        ChangesFrom::Beginning => new(0),
        ChangesFrom::Now => new(last),
        ChangesFrom::Cursor(cursor) => cursor.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_lost_if_the_log_can_not_be_followed_from_it() {
        let state = |stamp_of_seen| LogState {
            epoch: "a".into(),
            last: LogMark { seq: 20, stamp: 7 },
            forgotten: 10,
            unstamped: 5,
            stamp_of_seen,
            has_placements: false,
            is_numbered: true,
            has_form_notes: false,
        };
        let lost_at = |epoch: &str, position, began, seen| {
            let seen = LogMark { seq: seen, stamp: 7 };
            let cursor = ChangeCursor { epoch: epoch.into(), position, base: 0, began, seen };
            lost(&cursor, &state(7))
        };
        assert_eq!(lost_at("a", 12, 0, 12), None);
        assert_eq!(lost_at("a", 20, 20, 20), None);
        assert_eq!(lost_at("b", 12, 0, 12), Some(LostCursor::Reset));
        assert_eq!(lost_at("a", 12, 0, 21), Some(LostCursor::Ahead), "it has seen a state that is gone");
        assert_eq!(lost_at("a", 9, 5, 12), Some(LostCursor::Expired));
        assert_eq!(lost_at("a", 4, 4, 4), Some(LostCursor::Expired), "its stamp is no longer kept");
        assert_eq!(lost_at("a", 3, 15, 15), None, "it began after those deletions");
        let cursor = ChangeCursor { seen: LogMark { seq: 12, stamp: 7 }, ..start(&ChangesFrom::Now, &state(7)) };
        assert_eq!(lost(&cursor, &state(8)), Some(LostCursor::Reset), "another settling gave that number");
        assert_eq!(lost(&cursor, &state(0)), Some(LostCursor::Reset), "none did");
    }
}
