//! Counts the events that subscriptions have yet to deliver: those in turn, and those that are sent again.
//!
//! A count is bounded by the numbers that it reads, not by those that it finds: a receiver that has been down for months
//! costs as little as one that missed some thousand events.

use std::collections::HashMap;

use jiff::Timestamp;

use super::due::{EventsAbout, is_about};
use super::{Event, Subscription};
use crate::store::derived::settle::is_settled;
use crate::store::engine::PooledConnection;
use crate::store::statement::{Sql, sql};
use crate::store::{FormReach, Store, StoreError};

/// Where counting stops. With a form, this is how many events of every form are looked through.
///
/// Larger: showing the subscriptions of receivers that are down takes longer. Smaller: fewer counts are exact.
const MAX_PENDING: i64 = 10_000;

/// Events that are not delivered yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingEvents {
    /// How many there are.
    pub count: i64,
    /// Whether there may be more.
    pub is_more: bool,
    /// When the first of them happened.
    pub since: Option<Timestamp>,
}

impl Store {
    /// Numbers what was noted, since events without a number are neither counted nor shown, and no sender looks for those of
    /// a subscription that is paused. If it can't be done now, what is read is that of before.
    pub(super) async fn number_before_reading(&self) -> Result<(), StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT {+is_settled}", is_settled = is_settled());
        let is_numbered: bool = reader.fetch_one(sql).await?.get(0)?;
        drop(reader);
        if !is_numbered && let Err(error) = self.settle().await {
            tracing::debug!(error = %error, "events that have no number are left out");
        }
        Ok(())
    }
}

/// Fills in [`Subscription::pending`].
pub(super) async fn count_pending(
    reader: &mut PooledConnection,
    subscriptions: &mut [Subscription],
) -> Result<(), StoreError> {
    if subscriptions.is_empty() {
        return Ok(());
    }
    let (newest, _) = newest_events(reader).await?;
    let all = subscriptions.iter().filter(|subscription| subscription.reach.is_all());
    let mut set_aside = count_set_aside(reader, &all.map(|subscription| subscription.id).collect::<Vec<_>>()).await?;
    for subscription in subscriptions {
        let mut pending = if subscription.reach.is_all() {
            set_aside.remove(&subscription.id).unwrap_or(0)
        } else {
            count_set_aside_within(reader, subscription.id, &subscription.reach).await?
        };
        if let (Some(event), Some(position)) = (Event::parse(&subscription.event), subscription.position)
            && newest[event as usize].is_some_and(|newest| newest > position)
        {
            let about = EventsAbout { event, form: subscription.form, reach: &subscription.reach };
            let range = EventRange { about, position };
            pending += count_in_turn(reader, range, &subscription.done_beyond, Details::Count).await?.count;
        }
        subscription.pending = pending.clamp(0, MAX_PENDING).unsigned_abs();
    }
    Ok(())
}

/// The number of the newest event of each kind in the log, and the instant by the clock of the database.
pub(super) async fn newest_events(reader: &mut PooledConnection) -> Result<([Option<i64>; 3], Timestamp), StoreError> {
    let sql = sql!(
        "SELECT max(created_event), (SELECT max(updated_event) FROM submission_changes),
           (SELECT max(deleted_event) FROM submission_changes), {clock}
         FROM submission_changes"
    );
    let row = reader.fetch_one(sql).await?;
    Ok(([row.get(0)?, row.get(1)?, row.get(2)?], row.get(3)?))
}

/// Events that are sent again, by subscription.
pub(super) async fn count_set_aside(
    reader: &mut PooledConnection,
    subscriptions: &[i64],
) -> Result<HashMap<i64, i64>, StoreError> {
    let sql = sql!(
        "SELECT subscription_id, count(*)
         FROM webhook_events
         WHERE next_attempt_at IS NOT NULL AND subscription_id {in subscriptions}
         GROUP BY subscription_id",
        subscriptions,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
}

/// The same of one subscription, as far as the submissions are in reach. Others are not sent any more.
pub(super) async fn count_set_aside_within(
    reader: &mut PooledConnection,
    subscription: i64,
    reach: &FormReach,
) -> Result<i64, StoreError> {
    let sql = sql!(
        "SELECT count(*) FROM webhook_events e
         WHERE e.next_attempt_at IS NOT NULL AND e.subscription_id = {subscription} AND {+is_reached}",
        subscription,
        is_reached = is_reached("e.submission_id", reach),
    );
    Ok(reader.fetch_one(sql).await?.get(0)?)
}

/// The condition that the submission in a column is in reach, or was when it was deleted.
pub(super) fn is_reached(submission: &'static str, reach: &FormReach) -> Sql {
    sql!(
        "EXISTS (SELECT 1 FROM submission_changes c WHERE c.submission_id = {+submission}{+in_reach})",
        submission = Sql::text(submission),
        in_reach = reach.of_past_row("c.form_id"),
    )
}

/// The events of one kind behind a position.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventRange<'s> {
    pub(super) about: EventsAbout<'s>,
    pub(super) position: i64,
}

/// What to find out about events in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Details {
    /// How many there are. Without a form, an index has all that is read.
    Count,
    /// Also when the first of them happened.
    Since,
}

/// Counts the events in turn, without those that are delivered already.
pub(super) async fn count_in_turn(
    reader: &mut PooledConnection,
    range: EventRange<'_>,
    done_beyond: &[i64],
    details: Details,
) -> Result<PendingEvents, StoreError> {
    let EventRange { about, position } = range;
    let others = match (about.form.is_some() || !about.reach.is_all(), details) {
        (false, Details::Count) => "",
        (true, Details::Count) => ", form_id",
        (false, Details::Since) => ", changed_at",
        (true, Details::Since) => ", form_id, changed_at",
    };
    let first = match details {
        Details::Count => Sql::default(),
        Details::Since => {
            sql!(", min(CASE WHEN {+is_about} THEN c.changed_at END)", is_about = is_about(&about))
        }
    };
    let sql = sql!(
        "SELECT count(*), count(CASE WHEN {+is_about} THEN 1 END){+first}
         FROM (
           SELECT {+column}{+others} FROM submission_changes
           WHERE {+column} > {position} AND {+column} {not in done_beyond}
           ORDER BY {+column} LIMIT {most}) AS c",
        is_about = is_about(&about),
        first,
        column = about.event.column(),
        others = Sql::text(others),
        position,
        done_beyond,
        most = MAX_PENDING + 1,
    );
    let row = reader.fetch_one(sql).await?;
    let (looked_through, count): (i64, i64) = (row.get(0)?, row.get(1)?);
    let since = if details == Details::Since { row.get(2)? } else { None };
    Ok(PendingEvents { count: count.min(MAX_PENDING), is_more: looked_through > MAX_PENDING, since })
}
