//! Has events of a subscription sent again: single ones, those that failed, or all since an instant.
//!
//! Single events are set aside to be sent at once; `since` moves the position back. Both take effect whatever a sender
//! does meanwhile: the row of the subscription is locked, and moving the position ends the lease, so that its holder
//! writes no position any more. Nothing is ever skipped: the position only moves back.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Event;
use super::due::{EventsAbout, is_about};
use super::managing::audit_entry;
use super::owner::FORMS;
use super::pending::is_reached;
use crate::store::audit::{self, Actor};
use crate::store::derived::changes::{ChangeCursor, is_in_log};
use crate::store::engine::{Transaction, retry};
use crate::store::statement::{Sql, sql};
use crate::store::{FormReach, Store, StoreError};

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
    /// What the token that made it reaches.
    reach: FormReach,
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
    pub async fn replay(&self, id: i64, replay: &Replay, by: Option<&Actor>) -> Result<Replayed, StoreError> {
        let before = match replay {
            Replay::Since(instant) => self.last_number_before(*instant).await?,
            _ => 0,
        };
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let Some(locked) = LockedSubscription::lock(&mut transaction, id, self.own()).await? else {
                return Ok(Replayed::UnknownSubscription);
            };
            let outcome = match replay {
                Replay::Event(event) => locked.send_event(&mut transaction, event).await?,
                Replay::Submissions(submissions) => locked.send_submissions(&mut transaction, submissions).await?,
                Replay::Since(_) => locked.move_back(&mut transaction, before).await?,
                Replay::After(cursor) => locked.move_back_to(&mut transaction, cursor).await?,
                Replay::Failed => {
                    transaction.execute(locked.send_again(Sql::text("attempts > 0"))).await?;
                    Replayed::Due
                }
            };
            if outcome != Replayed::Due {
                transaction.roll_back().await?;
                return Ok(outcome);
            }
            let sql = sql!("UPDATE subscriptions SET next_attempt_at = NULL WHERE id = {id} RETURNING target_url", id);
            let subscription = transaction.connection().fetch_one(sql).await?;
            if let Some(by) = by {
                let mut entry = audit_entry("webhook.replay", id, &subscription.get::<String>(0)?);
                entry.details["events"] = replay.described();
                audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
            }
            transaction.commit().await?;
            Ok(outcome)
        })
        .await
    }

    /// A number before every event since an instant. Numbers are in the order in which changes were noticed, so one that
    /// was committed late has a later number than its instant suggests: none of either kind may be left out.
    async fn last_number_before(&self, instant: Timestamp) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT coalesce(max(CASE WHEN changed_at < {instant} THEN seq END), 0),
               min(CASE WHEN changed_at >= {instant} THEN seq END)
             FROM submission_changes
             WHERE seq IS NOT NULL
             {scans: numbers are not in the order of instants, and a replay since one is rare}",
            instant,
        );
        let row = reader.fetch_one(sql).await?;
        let (before, since): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        Ok(since.map_or(before, |since| before.min(since - 1)))
    }
}

impl LockedSubscription {
    async fn lock(transaction: &mut Transaction, id: i64, own: Sql) -> Result<Option<Self>, StoreError> {
        let lock = sql!(
            "SELECT event, form_id,
               {pg: least(position, last_seq) | lite: coalesce(min(position, last_seq), last_seq)},
               done_beyond, epoch, last_seq, {+forms_of_token}
             FROM subscriptions CROSS JOIN change_state
             WHERE id = {id}{+own}
             {pg: FOR UPDATE OF subscriptions}",
            forms_of_token = Sql::text(FORMS),
            id,
            own,
        );
        let Some(row) = transaction.fetch_all(lock).await?.pop() else { return Ok(None) };
        // That of a newer program.
        let Some(event) = Event::parse(&row.get::<String>(0)?) else { return Ok(None) };
        let forms: Option<String> = row.get(6)?;
        Ok(Some(Self {
            id,
            event,
            form: row.get(1)?,
            reach: FormReach::read(forms.as_deref())?,
            position: row.get(2)?,
            done_beyond: serde_json::from_str(&row.get::<String>(3)?).unwrap_or_default(),
            epoch: row.get(4)?,
            last: row.get(5)?,
        }))
    }

    /// The condition on `seq` that the event is not sent in its turn any more.
    fn is_past(&self) -> Sql {
        sql!("(seq <= {position} OR seq {in done_beyond})", position = self.position, done_beyond = &self.done_beyond,)
    }

    /// Has those events that were set aside and fulfil a condition sent at once.
    fn send_again(&self, condition: Sql) -> Sql {
        sql!(
            "UPDATE webhook_events SET given_up = FALSE, failed_at = NULL, next_attempt_at = {clock}
             WHERE subscription_id = {subscription} AND {+condition} AND {+is_past}",
            subscription = self.id,
            condition,
            is_past = self.is_past(),
        )
    }

    /// The condition that the submission of an event `e` that was set aside is in reach.
    fn is_reached(&self) -> Sql {
        if self.reach.is_all() { Sql::text("TRUE") } else { is_reached("e.submission_id", &self.reach) }
    }

    async fn send_event(&self, transaction: &mut Transaction, event: &str) -> Result<Replayed, StoreError> {
        let find = sql!(
            "SELECT 1 FROM webhook_events e
             WHERE e.subscription_id = {subscription} AND e.event_id = {event} AND {+is_reached}",
            subscription = self.id,
            event,
            is_reached = self.is_reached(),
        );
        if !transaction.fetch_all(find).await?.is_empty() {
            transaction.execute(self.send_again(sql!("event_id = {event}", event))).await?;
            return Ok(Replayed::Due);
        }
        let find = sql!(
            "SELECT submission_id FROM webhook_attempts
             WHERE subscription_id = {subscription} AND event_id = {event}
             LIMIT 1",
            subscription = self.id,
            event,
        );
        let Some(row) = transaction.fetch_all(find).await?.pop() else { return Ok(Replayed::UnknownEvent) };
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
        let find = sql!(
            "SELECT c.submission_id FROM submission_changes c
             WHERE c.submission_id {in submissions} AND c.{+column} IS NOT NULL AND {+is_about}",
            submissions,
            column = self.event.column(),
            is_about = is_about(&EventsAbout { event: self.event, form: self.form, reach: &self.reach }),
        );
        let mut unknown: BTreeSet<i64> = submissions.iter().copied().collect();
        for row in transaction.fetch_all(find).await? {
            unknown.remove(&row.get(0)?);
        }
        if !unknown.is_empty() {
            return Ok(Replayed::UnknownSubmissions(unknown));
        }
        let insert = sql!(
            "INSERT INTO webhook_events (subscription_id, seq, submission_id, next_attempt_at)
             SELECT {subscription}{pg: ::bigint}, seq, submission_id, {clock}
             FROM (SELECT submission_id, {+column} AS seq FROM submission_changes) AS c
             WHERE submission_id {in submissions} AND {+is_past}
             ON CONFLICT (subscription_id, seq) DO UPDATE SET
               next_attempt_at = excluded.next_attempt_at, given_up = FALSE, failed_at = NULL",
            subscription = self.id,
            column = self.event.column(),
            submissions,
            is_past = self.is_past(),
        );
        transaction.execute(insert).await?;
        Ok(Replayed::Due)
    }

    async fn move_back_to(&self, transaction: &mut Transaction, cursor: &ChangeCursor) -> Result<Replayed, StoreError> {
        let sql = sql!("SELECT {+is_in_log}", is_in_log = is_in_log(cursor.seen));
        let is_in_log: bool = transaction.connection().fetch_one(sql).await?.get(0)?;
        if cursor.epoch != self.epoch || cursor.position > self.last || !is_in_log {
            return Ok(Replayed::LostCursor);
        }
        self.move_back(transaction, cursor.position).await
    }

    async fn move_back(&self, transaction: &mut Transaction, number: i64) -> Result<Replayed, StoreError> {
        let position = number.min(self.position);
        let update = sql!(
            "UPDATE subscriptions
             SET done_beyond = '[]', leased_by = NULL, leased_until = NULL, position = {position}
             WHERE id = {subscription}",
            position,
            subscription = self.id,
        );
        transaction.execute(update).await?;
        // What was set aside has its turn again, unless the submission has had a newer event since.
        let update = sql!(
            "UPDATE webhook_events SET next_attempt_at = NULL, given_up = FALSE, failed_at = NULL
             WHERE subscription_id = {subscription} AND seq > {position} AND EXISTS (
               SELECT 1 FROM submission_changes c
               WHERE c.submission_id = webhook_events.submission_id AND c.{+column} = webhook_events.seq)",
            subscription = self.id,
            position,
            column = self.event.column(),
        );
        transaction.execute(update).await?;
        Ok(Replayed::Due)
    }
}
