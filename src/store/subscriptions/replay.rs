//! Has events of a subscription sent again: single ones, those that failed, or all since an instant.
//!
//! Single events are set aside to be sent at once; `since` moves the position back. Both take effect whatever a sender
//! does meanwhile: the row of the subscription is locked, and moving the position ends the lease, so that its holder
//! writes no position any more. Nothing is ever skipped: the position only moves back.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Event;
use super::due::write_within;
use super::managing::audit_entry;
use crate::store::audit::{self, Actor};
use crate::store::changes::{ChangeCursor, write_is_in_log};
use crate::store::engine::{Retry, Transaction};
use crate::store::statement::Sql;
use crate::store::{Store, StoreError};

/// What to send again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// An event that was sent before, by its id.
    Event(String),
    /// The newest event of each of these submissions.
    Submissions(Vec<i64>),
    /// Every event since an instant; perhaps some that are older.
    Since(Timestamp),
    /// Every event after a cursor.
    After(ChangeCursor),
    /// Every event whose attempts failed, also those that were given up.
    Failed,
}

impl Replay {
    /// As the audit log describes it.
    fn described(&self) -> Value {
        match self {
            Self::Event(event) => json!({ "event": event }),
            Self::Submissions(submissions) => json!({ "submissions": submissions }),
            Self::Since(instant) => json!({ "since": instant.to_string() }),
            Self::After(cursor) => json!({ "after": cursor.position }),
            Self::Failed => json!("failed"),
        }
    }
}

/// The outcome of asking for a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// The events are due now. Those of a subscription that is not delivered are due once it is resumed.
    Due,
    /// There is no such subscription.
    UnknownSubscription,
    /// The subscription was not sent this event, or its submission has no event of this kind any more.
    UnknownEvent,
    /// These submissions have no event for this subscription.
    UnknownSubmissions(BTreeSet<i64>),
    /// The cursor is of another log, or ahead of this one.
    LostCursor,
}

/// A subscription whose row is locked until the end of the transaction.
struct LockedSubscription {
    id: i64,
    event: Event,
    form: Option<i64>,
    position: i64,
    done_beyond: Vec<i64>,
    epoch: String,
    last: i64,
}

impl Store {
    /// Has events of a subscription sent again. A receiver that failed is tried at once. `by` is an administrator or a
    /// command, which the audit log then names.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn replay(&self, subscription: i64, replay: &Replay, by: Option<&Actor>) -> Result<Replayed, StoreError> {
        let before = match replay {
            Replay::Since(instant) => self.last_number_before(*instant).await?,
            _ => 0,
        };
        let mut retry = Retry::default();
        loop {
            match self.try_to_replay(subscription, replay, before, by).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_replay(
        &self,
        id: i64,
        replay: &Replay,
        before: i64,
        by: Option<&Actor>,
    ) -> Result<Replayed, StoreError> {
        let mut transaction = self.database.begin().await?;
        let Some(locked) = LockedSubscription::lock(&mut transaction, id).await? else {
            return Ok(Replayed::UnknownSubscription);
        };
        let outcome = match replay {
            Replay::Event(event) => locked.send_event(&mut transaction, event).await?,
            Replay::Submissions(submissions) => locked.send_submissions(&mut transaction, submissions).await?,
            Replay::Since(_) => locked.move_back(&mut transaction, before).await?,
            Replay::After(cursor) => locked.move_back_to(&mut transaction, cursor).await?,
            Replay::Failed => locked.send_failed(&mut transaction).await?,
        };
        if outcome != Replayed::Due {
            transaction.roll_back().await?;
            return Ok(outcome);
        }
        let mut sql = transaction.sql();
        sql.push("UPDATE subscriptions SET next_attempt_at = NULL WHERE id = ").bind(id).push(" RETURNING target_url");
        let subscription = transaction.connection().fetch_one(sql).await?;
        if let Some(by) = by {
            let mut entry = audit_entry("webhook.replay", id, &subscription.get::<String>(0)?);
            entry.details["events"] = replay.described();
            audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
        }
        transaction.commit().await?;
        Ok(outcome)
    }

    /// A number before every event since an instant. Numbers are in the order in which changes were noticed, so one that
    /// was committed late has a later number than its instant suggests: none of either kind may be left out.
    async fn last_number_before(&self, instant: Timestamp) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT coalesce(max(CASE WHEN changed_at < ").bind(instant).push(" THEN seq END), 0), ");
        sql.push("min(CASE WHEN changed_at >= ").bind(instant).push(" THEN seq END) FROM submission_changes ");
        sql.push("WHERE seq IS NOT NULL");
        let row = reader.fetch_one(sql).await?;
        let (before, since): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        Ok(since.map_or(before, |since| before.min(since - 1)))
    }
}

impl LockedSubscription {
    async fn lock(transaction: &mut Transaction, id: i64) -> Result<Option<Self>, StoreError> {
        let mut sql = transaction.sql();
        sql.push("SELECT event, form_id, ");
        sql.push_either("least(position, last_seq)", "coalesce(min(position, last_seq), last_seq)");
        sql.push(", done_beyond, epoch, last_seq FROM subscriptions CROSS JOIN change_state WHERE id = ").bind(id);
        sql.push_either(" FOR UPDATE OF subscriptions", "");
        let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(None) };
        // That of a newer program.
        let Some(event) = Event::parse(&row.get::<String>(0)?) else { return Ok(None) };
        Ok(Some(Self {
            id,
            event,
            form: row.get(1)?,
            position: row.get(2)?,
            done_beyond: serde_json::from_str(&row.get::<String>(3)?).unwrap_or_default(),
            epoch: row.get(4)?,
            last: row.get(5)?,
        }))
    }

    /// Adds a condition on `seq`: the event is not sent in its turn any more.
    fn write_is_past(&self, sql: &mut Sql) {
        sql.push(" AND (seq <= ").bind(self.position).push(" OR seq").in_ids(&self.done_beyond).push(")");
    }

    /// Begins the update of events that were set aside.
    fn update_events(&self, transaction: &Transaction) -> Sql {
        let mut sql = transaction.sql();
        sql.push("UPDATE webhook_events SET given_up = FALSE, failed_at = NULL, next_attempt_at = ");
        sql.push_now_plus(Duration::ZERO).push(" WHERE subscription_id = ").bind(self.id);
        sql
    }

    async fn send_failed(&self, transaction: &mut Transaction) -> Result<Replayed, StoreError> {
        let mut sql = self.update_events(transaction);
        sql.push(" AND attempts > 0");
        self.write_is_past(&mut sql);
        transaction.execute(sql).await?;
        Ok(Replayed::Due)
    }

    async fn send_event(&self, transaction: &mut Transaction, event: &str) -> Result<Replayed, StoreError> {
        let mut sql = transaction.sql();
        sql.push("SELECT 1 FROM webhook_events WHERE subscription_id = ").bind(self.id);
        sql.push(" AND event_id = ").bind(event);
        if !transaction.fetch_all(sql).await?.is_empty() {
            let mut sql = self.update_events(transaction);
            sql.push(" AND event_id = ").bind(event);
            self.write_is_past(&mut sql);
            transaction.execute(sql).await?;
            return Ok(Replayed::Due);
        }
        let mut sql = transaction.sql();
        sql.push("SELECT submission_id FROM webhook_attempts WHERE subscription_id = ").bind(self.id);
        sql.push(" AND event_id = ").bind(event).push(" LIMIT 1");
        let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(Replayed::UnknownEvent) };
        match self.send_submissions(transaction, &[row.get(0)?]).await? {
            Replayed::UnknownSubmissions(_) => Ok(Replayed::UnknownEvent),
            outcome => Ok(outcome),
        }
    }

    async fn send_submissions(
        &self,
        transaction: &mut Transaction,
        submissions: &[i64],
    ) -> Result<Replayed, StoreError> {
        let column = self.event.column();
        let mut sql = transaction.sql();
        sql.push("SELECT c.submission_id FROM submission_changes c WHERE c.submission_id").in_ids(submissions);
        sql.push(" AND c.").push(column).push(" IS NOT NULL");
        write_within(&mut sql, self.event, self.form);
        let mut unknown: BTreeSet<i64> = submissions.iter().copied().collect();
        for row in transaction.fetch_all(sql).await? {
            unknown.remove(&row.get(0)?);
        }
        if !unknown.is_empty() {
            return Ok(Replayed::UnknownSubmissions(unknown));
        }
        let mut sql = transaction.sql();
        sql.push("INSERT INTO webhook_events (subscription_id, seq, submission_id, next_attempt_at) ");
        sql.push("SELECT ").bind(self.id).push_either("::bigint", "").push(", seq, submission_id, ");
        sql.push_now_plus(Duration::ZERO).push(" FROM (SELECT submission_id, ").push(column);
        sql.push(" AS seq FROM submission_changes) AS c WHERE submission_id").in_ids(submissions);
        self.write_is_past(&mut sql);
        sql.push(" ON CONFLICT (subscription_id, seq) DO UPDATE SET next_attempt_at = excluded.next_attempt_at, ");
        sql.push("given_up = FALSE, failed_at = NULL");
        transaction.execute(sql).await?;
        Ok(Replayed::Due)
    }

    async fn move_back_to(&self, transaction: &mut Transaction, cursor: &ChangeCursor) -> Result<Replayed, StoreError> {
        let mut sql = transaction.sql();
        sql.push("SELECT ");
        write_is_in_log(&mut sql, cursor.seen);
        let is_in_log: bool = transaction.connection().fetch_one(sql).await?.get(0)?;
        if cursor.epoch != self.epoch || cursor.position > self.last || !is_in_log {
            return Ok(Replayed::LostCursor);
        }
        self.move_back(transaction, cursor.position).await
    }

    async fn move_back(&self, transaction: &mut Transaction, number: i64) -> Result<Replayed, StoreError> {
        let position = number.min(self.position);
        let mut sql = transaction.sql();
        sql.push("UPDATE subscriptions SET done_beyond = '[]', leased_by = NULL, leased_until = NULL, position = ");
        sql.bind(position).push(" WHERE id = ").bind(self.id);
        transaction.execute(sql).await?;
        // What was set aside has its turn again, unless the submission has had a newer event since.
        let column = self.event.column();
        let mut sql = transaction.sql();
        sql.push("UPDATE webhook_events SET next_attempt_at = NULL, given_up = FALSE, failed_at = NULL ");
        sql.push("WHERE subscription_id = ").bind(self.id).push(" AND seq > ").bind(position);
        sql.push(
            " AND EXISTS (SELECT 1 FROM submission_changes c WHERE c.submission_id = webhook_events.submission_id ",
        );
        sql.push("AND c.").push(column).push(" = webhook_events.seq)");
        transaction.execute(sql).await?;
        Ok(Replayed::Due)
    }
}
