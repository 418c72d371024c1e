//! Writes how far a sender has got with a subscription, in one transaction for all that ended since the last one.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::LeasedSubscription;
use super::attempts::{AttemptRecord, insert_attempts, prune_attempts};
use super::lease::LEASE;
use super::owner::state;
use crate::outbound::DeliveryReason;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, Row, Sql, TableSpec, sql};
use crate::store::{Store, StoreError};

/// How many events of a subscription may be set aside: they take up to 256 KiB each.
///
/// Larger: a database grows by more. Smaller: a receiver that refuses some events is paused as a whole earlier.
const MAX_SET_ASIDE: i64 = 100;

const EVENTS: TableSpec = TableSpec {
    name: "webhook_events",
    columns: &[
        ("subscription_id", "bigint"),
        ("seq", "bigint"),
        ("submission_id", "bigint"),
        ("event_id", "text"),
        ("body", "text"),
        ("attempts", "bigint"),
        ("failed_at", "timestamptz"),
        ("next_attempt_at", "timestamptz"),
        ("given_up", "boolean"),
    ],
    key: 2,
};

/// An event whose attempt failed. Its next attempt sends the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEvent {
    /// The number of the event.
    pub seq: i64,
    /// The submission.
    pub submission: i64,
    /// The event's id.
    pub event_id: String,
    /// What was sent.
    pub body: String,
    /// How many attempts failed.
    pub attempts: u32,
    /// When the first one did.
    pub failed_at: Timestamp,
    /// When it is sent again, whatever the position; none if in its turn, or if it is given up.
    pub next_attempt_at: Option<Timestamp>,
    /// Whether it is not sent again by itself.
    pub given_up: bool,
}

/// What becomes of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its holder goes on, and the lease is renewed.
    Delivering,
    /// Nothing is due; the lease ends.
    Resting,
    /// The receiver can't be reached; the lease ends.
    Failing {
        /// Why.
        reason: DeliveryReason,
        /// When it is tried again.
        again_in: Duration,
    },
    /// The receiver could not be reached for too long; the lease ends.
    Disabled {
        /// Why.
        reason: DeliveryReason,
    },
    /// The receiver does not exist any more; the lease ends.
    Gone {
        /// Why.
        reason: DeliveryReason,
    },
}

impl Standing {
    /// The state in the database, unless it stays as it was.
    fn state(&self) -> Option<(&'static str, DeliveryReason)> {
        match self {
            Self::Delivering | Self::Resting => None,
            Self::Failing { reason, .. } => Some(("failing", *reason)),
            Self::Disabled { reason } => Some(("disabled", *reason)),
            Self::Gone { reason } => Some(("gone", *reason)),
        }
    }
}

/// What came of writing progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The sender may go on.
    GoesOn,
    /// The subscription is in the state that the sender gave it.
    Ended,
    /// The subscription was paused, or its state changed otherwise.
    Stopped,
    /// The lease was not the sender's any more, or the log not the one that it has read: nothing was written.
    Lost,
}

/// What happened since a sender last wrote.
#[derive(Clone, Debug)]
pub struct Progress<'p> {
    /// Every event up to this number is done.
    pub position: i64,
    /// Events beyond the position that are done.
    pub done_beyond: &'p BTreeSet<i64>,
    /// The attempts.
    pub attempts: &'p [AttemptRecord],
    /// Submissions of which an event was accepted, with the event's number. An older event of one that was set aside is not
    /// sent any more: events of a submission are never sent out of order.
    pub accepted: &'p [(i64, i64)],
    /// The same of events that are not to be sent again any more.
    pub dropped: &'p [(i64, i64)],
    /// Events that failed.
    pub failed: &'p [FailedEvent],
    /// What becomes of the subscription.
    pub standing: &'p Standing,
    /// Whether attempts that are no longer kept are removed. Not each time: it costs as much as adding one.
    pub prunes: bool,
}

impl Progress<'_> {
    /// Whether nothing but attempts is added: no event failed, and none that was set aside may have to be removed.
    fn adds_only(&self, leased: &LeasedSubscription) -> bool {
        let finishes = leased.has_set_aside && !(self.accepted.is_empty() && self.dropped.is_empty());
        self.failed.is_empty() && !finishes && !self.prunes
    }

    /// What a state of the subscription means for the sender.
    fn written(&self, state: &str) -> Written {
        let has_ended = self.standing.state().is_some_and(|(ended, _)| ended == state);
        match state {
            _ if has_ended => Written::Ended,
            "active" | "failing" => Written::GoesOn,
            _ => Written::Stopped,
        }
    }
}

impl Store {
    /// Writes the progress of a sender.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_progress(
        &self,
        leased: &LeasedSubscription,
        progress: &Progress<'_>,
    ) -> Result<Written, StoreError> {
        if progress.adds_only(leased) {
            let row = match self.database.dialect() {
                Dialect::Postgres => self.write_plain_progress(leased, progress).await?,
                Dialect::Sqlite => self.write_plain_progress_to_file(leased, progress).await?,
            };
            return row.map_or(Ok(Written::Lost), |row| Ok(progress.written(&row.get::<String>(0)?)));
        }
        let mut transaction = self.database.begin().await?;
        if transaction.dialect() == Dialect::Postgres {
            // What a crash of the server loses is delivered once more.
            transaction.command("SET LOCAL synchronous_commit = off").await?;
        }
        let Some(row) = transaction.fetch_all(update(leased, progress)).await?.pop() else {
            transaction.roll_back().await?;
            return Ok(Written::Lost);
        };
        write_events(&mut transaction, leased, progress).await?;
        if !progress.attempts.is_empty() {
            let always = Sql::text("TRUE");
            let insert = insert_attempts(transaction.dialect(), leased.id, progress.attempts, always);
            transaction.execute(insert).await?;
        }
        if progress.prunes {
            prune_attempts(&mut transaction, leased.id).await?;
        }
        transaction.commit().await?;
        Ok(progress.written(&row.get::<String>(0)?))
    }

    /// Writes progress on Postgres that only adds attempts, by one statement: a transaction takes five round trips. Returns
    /// the state; none if the lease is another sender's.
    async fn write_plain_progress(
        &self,
        leased: &LeasedSubscription,
        progress: &Progress<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let is_written = Sql::text("EXISTS (SELECT FROM written)");
        // What a crash of the server loses is delivered once more.
        let sql = sql!(
            "{pg: WITH written AS ({+update}), added AS ({+insert})
             SELECT state, set_config('synchronous_commit', 'off', true) FROM written}",
            update = update(leased, progress),
            insert = insert_attempts(Dialect::Postgres, leased.id, progress.attempts, is_written),
        );
        let mut writer = self.database.writer().await?;
        Ok(writer.fetch_optional(sql).await?)
    }

    /// The same on SQLite, by statements that are kept and reach its thread together.
    async fn write_plain_progress_to_file(
        &self,
        leased: &LeasedSubscription,
        progress: &Progress<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let is_held = sql!("EXISTS (SELECT 1 FROM subscriptions WHERE {+is_held})", is_held = leased.is_held());
        // The update is second, since it may end the lease.
        let sql = sql!(
            "{lite: {+insert}; {+update}}",
            insert = insert_attempts(Dialect::Sqlite, leased.id, progress.attempts, is_held),
            update = update(leased, progress),
        );
        let mut transaction = self.database.begin().await?;
        transaction.connection().keep_statements();
        Ok(transaction.fetch_and_commit(sql).await?.pop())
    }

    /// Whether another event of a subscription may be set aside.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn may_set_aside(&self, subscription: i64) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*) < {most} FROM webhook_events WHERE subscription_id = {subscription}",
            most = MAX_SET_ASIDE,
            subscription,
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }
}

/// Writes how far a subscription has got, unless the lease is another sender's, and returns the state.
fn update(leased: &LeasedSubscription, progress: &Progress<'_>) -> Sql {
    let lease = match progress.standing {
        Standing::Delivering => sql!("leased_until = {clock + lease}", lease = LEASE),
        _ => Sql::text("leased_by = NULL, leased_until = NULL"),
    };
    let has_accepted = !progress.accepted.is_empty();
    let success = has_accepted.then(|| sql!("last_success_at = {clock}"));
    let outcome = match progress.standing.state() {
        // It can't have failed since an instant that is still ahead: then the clock was set back.
        Some((state, reason)) => Some(sql!(
            "failures = failures + 1,
             failing_since = coalesce({pg: least | lite: min}(failing_since, {clock}), {clock}),
             next_attempt_at = {+next_attempt},
             reason = CASE WHEN state IN ('active', 'failing') THEN {reason} ELSE reason END,
             state = CASE WHEN state IN ('active', 'failing') THEN {state} ELSE state END",
            next_attempt = match progress.standing {
                Standing::Failing { again_in, .. } => sql!("{clock + again_in}", again_in = *again_in),
                _ => Sql::text("NULL"),
            },
            reason = reason.stored(),
            state,
        )),
        None if has_accepted => Some(Sql::text(
            "failures = 0, failing_since = NULL, next_attempt_at = NULL, \
             reason = CASE WHEN state = 'failing' THEN NULL ELSE reason END, \
             state = CASE WHEN state = 'failing' THEN 'active' ELSE state END",
        )),
        None => None,
    };
    sql!(
        "UPDATE subscriptions SET position = {position}, done_beyond = {done_beyond}, {+assignments}
         WHERE {+is_held}
         RETURNING {+state_now} AS state",
        position = progress.position,
        done_beyond = serde_json::to_string(progress.done_beyond).expect("numbers are JSON"),
        assignments = Sql::joined([Some(lease), success, outcome].into_iter().flatten(), ", "),
        is_held = leased.is_held(),
        state_now = state(Timestamp::now()),
    )
}

async fn write_events(
    transaction: &mut Transaction,
    leased: &LeasedSubscription,
    progress: &Progress<'_>,
) -> Result<(), StoreError> {
    let dialect = transaction.dialect();
    let finished: Vec<_> = progress.accepted.iter().chain(progress.dropped).collect();
    if leased.has_set_aside && !finished.is_empty() {
        let rows = serde_json::to_string(&finished).expect("numbers are JSON");
        let delete = sql!(
            "DELETE FROM webhook_events
             WHERE subscription_id = {subscription} AND EXISTS (
               SELECT 1 FROM {rows rows: submission bigint, event bigint} AS finished
               WHERE finished.submission = submission_id AND seq <= finished.event)",
            subscription = leased.id,
            rows,
        );
        transaction.execute(delete).await?;
    }
    if progress.failed.is_empty() {
        return Ok(());
    }
    let mut rows = JsonRows::new();
    for failed in progress.failed {
        rows.push(&(
            leased.id,
            failed.seq,
            failed.submission,
            &failed.event_id,
            &failed.body,
            failed.attempts,
            JsonTimestamp::new(failed.failed_at, dialect),
            failed.next_attempt_at.map(|at| JsonTimestamp::new(at, dialect)),
            failed.given_up,
        ));
    }
    EVENTS.upsert(transaction, &rows).await
}
