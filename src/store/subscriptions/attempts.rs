//! The delivery log. Senders write it with their progress ([`super::progress`]).

use std::time::Duration;

use jiff::Timestamp;

use super::Event;
use super::pending::is_reached;
use crate::outbound::DeliveryReason;
use crate::store::engine::Transaction;
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, Page, PageRequest, Row, Sql, sql};
use crate::store::{FormReach, Store, StoreError};

/// How many attempts of a subscription the delivery log keeps.
///
/// Larger: the log takes more room, and each write prunes more. Smaller: integrators see less of what happened.
const ATTEMPTS_KEPT: i64 = 500;

/// For how long the delivery log keeps an attempt.
///
/// Larger: as for [`ATTEMPTS_KEPT`]. Smaller: an attempt before a long holiday can't be looked at.
const ATTEMPTS_KEPT_FOR: Duration = Duration::from_hours(30 * 24);

/// An attempt, for the delivery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The event's id.
    pub event_id: String,
    /// Its type.
    pub event: Event,
    /// The submission.
    pub submission: i64,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// Whether the receiver accepted the event.
    pub accepted: bool,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// Why there was none.
    pub error: Option<DeliveryReason>,
    /// The beginning of the answer's body.
    pub response: Option<String>,
}

impl AttemptRecord {
    fn read(row: &Row) -> Result<Option<Self>, sqlx::Error> {
        // That of a newer program.
        let Some(event) = Event::parse(&row.get::<String>(1)?) else { return Ok(None) };
        let took: i64 = row.get(5)?;
        Ok(Some(Self {
            event_id: row.get(0)?,
            event,
            submission: row.get(2)?,
            attempt: u32::try_from(row.get::<i64>(3)?).unwrap_or(u32::MAX),
            at: row.get(4)?,
            took: Duration::from_millis(took.max(0).unsigned_abs()),
            accepted: row.get(6)?,
            status: row.get::<Option<i64>>(7)?.and_then(|status| u16::try_from(status).ok()),
            error: row.get::<Option<String>>(8)?.as_deref().map(DeliveryReason::read),
            response: row.get(9)?,
        }))
    }
}

impl Store {
    /// One page of the attempts of a subscription, the newest first; all, or only those that were `accepted` or not. A caller
    /// who is limited to forms sees those of submissions that are in reach, or were when they were deleted.
    /// None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_attempts(
        &self,
        subscription: i64,
        accepted: Option<bool>,
        page: PageRequest,
    ) -> Result<Option<Page<AttemptRecord>>, StoreError> {
        let mut reader = self.database.reader().await?;
        let count = sql!(
            "SELECT (SELECT count(*) FROM webhook_attempts WHERE {+are_listed}) FROM subscriptions WHERE id = {id}{+own}",
            are_listed = are_listed(subscription, accepted, self.reach()),
            id = subscription,
            own = self.own(),
        );
        let Some(row) = reader.fetch_optional(count).await? else { return Ok(None) };
        let total: i64 = row.get(0)?;
        let list = sql!(
            "SELECT event_id, event, submission_id, attempt, at, duration_ms, accepted, status, error, response
             FROM webhook_attempts
             WHERE {+are_listed}
             ORDER BY at DESC, id DESC LIMIT {size} OFFSET {offset}",
            are_listed = are_listed(subscription, accepted, self.reach()),
            size = page.size,
            offset = page.offset(),
        );
        let rows = reader.fetch_all(list).await?;
        let items = rows.iter().filter_map(|row| AttemptRecord::read(row).transpose()).collect::<Result<_, _>>()?;
        Ok(Some(Page { items, total: u64::try_from(total).expect("a count is not negative") }))
    }
}

fn are_listed(subscription: i64, accepted: Option<bool>, reach: &FormReach) -> Sql {
    let of_outcome = Sql::text(match accepted {
        None => "",
        Some(true) => " AND accepted",
        Some(false) => " AND NOT accepted",
    });
    let are_of_subscription = sql!("subscription_id = {subscription}{+of_outcome}", subscription, of_outcome);
    if reach.is_all() {
        return are_of_subscription;
    }
    sql!(
        "{+are_of_subscription} AND {+is_reached}",
        are_of_subscription,
        is_reached = is_reached("webhook_attempts.submission_id", reach),
    )
}

/// Adds attempts to the delivery log, if a condition holds.
pub(super) fn insert_attempts(dialect: Dialect, subscription: i64, attempts: &[AttemptRecord], condition: Sql) -> Sql {
    let mut rows = JsonRows::new();
    for attempt in attempts {
        rows.push(&(
            subscription,
            &attempt.event_id,
            attempt.event.as_str(),
            attempt.submission,
            attempt.attempt,
            JsonTimestamp::new(attempt.at, dialect),
            u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
            attempt.accepted,
            attempt.status,
            attempt.error.map(|error| error.stored()),
            &attempt.response,
        ));
    }
    sql!(
        "INSERT INTO webhook_attempts (subscription_id, event_id, event, submission_id, attempt, at, duration_ms,
           accepted, status, error, response)
         SELECT * FROM {rows rows: subscription_id bigint, event_id text, event text, submission_id bigint, \
           attempt bigint, at timestamptz, duration_ms bigint, \
           accepted boolean, status bigint, error text, response text} AS batch
         WHERE {+condition}",
        rows = rows.text(),
        condition,
    )
}

/// Removes the attempts of a subscription that are no longer kept.
pub(super) async fn prune_attempts(transaction: &mut Transaction, subscription: i64) -> Result<(), StoreError> {
    let prune = sql!(
        "DELETE FROM webhook_attempts
         WHERE subscription_id = {subscription}
           AND (at < {oldest} OR id <= (
             SELECT id FROM webhook_attempts
             WHERE subscription_id = {subscription}
             ORDER BY id DESC LIMIT 1 OFFSET {kept}))",
        subscription,
        oldest = Timestamp::now() - ATTEMPTS_KEPT_FOR,
        kept = ATTEMPTS_KEPT,
    );
    transaction.execute(prune).await?;
    Ok(())
}
