//! Counts the events that subscriptions have yet to deliver: those in turn, and those that are sent again.
//!
//! A count is bounded by the numbers that it reads, not by those that it finds: a receiver that has been down for months
//! costs as little as one that missed some thousand events.

use std::collections::HashMap;

use super::due::write_within;
use super::{Event, Subscription};
use crate::store::engine::PooledConnection;
use crate::store::settle::write_is_numbered;
use crate::store::{Store, StoreError};

/// Where counting stops. With a form, this is how many events of every form are looked through.
///
/// Larger: showing the subscriptions of receivers that are down takes longer. Smaller: fewer counts are exact.
const MAX_PENDING: i64 = 10_000;

impl Store {
    /// Numbers what was noted, since events without a number are neither counted nor shown, and no sender looks for those of
    /// a subscription that is paused. If it can't be done now, what is read is that of before.
    pub(super) async fn number_before_reading(&self) -> Result<(), StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT ");
        write_is_numbered(&mut sql);
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
    let mut sql = reader.sql();
    sql.push("SELECT max(created_event), (SELECT max(updated_event) FROM submission_changes), ");
    sql.push("(SELECT max(deleted_event) FROM submission_changes) FROM submission_changes");
    let row = reader.fetch_one(sql).await?;
    let newest: [Option<i64>; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
    let ids: Vec<i64> = subscriptions.iter().map(|subscription| subscription.id).collect();
    let mut sql = reader.sql();
    sql.push(
        "SELECT subscription_id, count(*) FROM webhook_events WHERE next_attempt_at IS NOT NULL AND NOT given_up ",
    );
    sql.push("AND subscription_id").in_ids(&ids).push(" GROUP BY subscription_id");
    let mut set_aside: HashMap<i64, i64> = HashMap::new();
    for row in reader.fetch_all(sql).await? {
        set_aside.insert(row.get(0)?, row.get(1)?);
    }
    for subscription in subscriptions {
        let mut pending = set_aside.remove(&subscription.id).unwrap_or(0);
        if let (Some(event), Some(position)) = (Event::parse(&subscription.event), subscription.position)
            && newest[event as usize].is_some_and(|newest| newest > position)
        {
            pending += in_turn(reader, event, subscription.form, position, &subscription.done_beyond).await?;
        }
        subscription.pending = pending.clamp(0, MAX_PENDING).unsigned_abs();
    }
    Ok(())
}

async fn in_turn(
    reader: &mut PooledConnection,
    event: Event,
    form: Option<i64>,
    position: i64,
    done_beyond: &[i64],
) -> Result<i64, StoreError> {
    let column = event.column();
    let mut sql = reader.sql();
    // Without a form, the index has all that is read.
    sql.push("SELECT count(*) FROM (SELECT ").push(if form.is_some() { "form_id" } else { column });
    sql.push(" FROM submission_changes WHERE ").push(column).push(" > ").bind(position).push(" AND ").push(column);
    sql.not_in_ids(done_beyond).push(" ORDER BY ").push(column).push(" LIMIT ").bind(MAX_PENDING);
    sql.push(") AS c WHERE TRUE");
    write_within(&mut sql, form);
    Ok(reader.fetch_one(sql).await?.get(0)?)
}
