//! Leases: which sender delivers the events of a subscription now.
//!
//! A lease ends by itself, so another node takes over from one that died. Every write of a sender names its lease: a
//! node that was paused for longer than its lease finds that another sender has it, and writes nothing. No connection
//! is held while a lease lasts.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::Event;
use super::due::EventsAbout;
use super::owner::{FORMS, has_ended};
use crate::store::derived::changes::{LogMark, is_in_log, stamp_of};
use crate::store::statement::{Row, Sql, sql};
use crate::store::{FormReach, Store, StoreError};

/// How long a lease lasts unless it is renewed.
///
/// Larger: after a crash, events wait longer for another node. Smaller: a node that stalls for a moment loses its leases,
/// and its events are sent twice.
pub(super) const LEASE: Duration = Duration::from_secs(15);

/// The longest time until a next attempt: a day, which is the most that a receiver may ask for, and an hour by which the
/// clocks of the nodes may differ. A later attempt is from before the clock was set back, and is made at once.
///
/// Larger: after a step of the clock, receivers that failed wait for longer. Smaller: a receiver that asks for a day is
/// called earlier.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_hours(25);

/// A subscription whose events its holder delivers.
#[derive(Clone, Debug)]
pub struct LeasedSubscription {
    /// The bare id.
    pub id: i64,
    /// Where to deliver.
    pub target_url: String,
    /// What to deliver.
    pub event: Event,
    /// Of which form, sub-forms included; none for every form.
    pub form: Option<i64>,
    /// The secrets that sign: the current one, then the previous one while it is valid.
    pub secrets: Vec<String>,
    /// Every event up to this number is done.
    pub position: i64,
    /// Events beyond the position that are done.
    pub done_beyond: BTreeSet<i64>,
    /// How many attempts failed since the last success.
    pub failures: u32,
    /// Since when.
    pub failing_since: Option<Timestamp>,
    /// Whether events were set aside, or are sent again.
    pub has_set_aside: bool,
    /// The end of the log when its holder last read it. If the database loses it, the holder's numbers are those of lost
    /// changes, and the lease is over.
    pub log: LogMark,
    /// The token that made it, if that is known.
    pub token: Option<i64>,
    /// What it may be sent: what the token that made it reaches. The lease ends if that changes.
    pub reach: FormReach,
    /// Identifies the lease: no two have the same.
    pub(super) holder: String,
}

impl LeasedSubscription {
    /// How often a holder has to renew its lease.
    pub const RENEWAL: Duration = Duration::from_secs(5);

    fn read(row: &Row, holder: String) -> Result<Option<Self>, sqlx::Error> {
        // That of a newer program.
        let Some(event) = Event::parse(&row.get::<String>(2)?) else { return Ok(None) };
        let forms: Option<String> = row.get(14)?;
        Ok(Some(Self {
            id: row.get(0)?,
            target_url: row.get(1)?,
            event,
            form: row.get(3)?,
            secrets: valid_secrets(row.get(4)?, row.get(9)?, row.get(10)?),
            position: row.get(5)?,
            done_beyond: serde_json::from_str(&row.get::<String>(6)?).unwrap_or_default(),
            failures: u32::try_from(row.get::<i64>(7)?).unwrap_or(u32::MAX),
            failing_since: row.get(8)?,
            has_set_aside: row.get(11)?,
            log: LogMark { seq: row.get(12)?, stamp: row.get(13)? },
            token: row.get(15)?,
            reach: FormReach::read(forms.as_deref())?,
            holder,
        }))
    }

    /// What its events are about.
    pub(super) fn about(&self) -> EventsAbout<'_> {
        EventsAbout { event: self.event, form: self.form, reach: &self.reach }
    }

    /// The condition that the lease is still the holder's, and the log the one that it has read.
    pub(super) fn is_held(&self) -> Sql {
        sql!(
            "id = {id} AND leased_by = {holder} AND {+is_in_log}",
            id = self.id,
            holder = &self.holder,
            is_in_log = is_in_log(self.log),
        )
    }
}

/// The secrets that sign now: the current one, then the previous one while it is valid.
pub(super) fn valid_secrets(current: String, previous: Option<String>, until: Option<Timestamp>) -> Vec<String> {
    let is_valid = until.is_some_and(|until| until > Timestamp::now());
    [current].into_iter().chain(previous.filter(|_| is_valid)).collect()
}

impl Store {
    /// Leases a subscription. None if it is not to be delivered now, or another sender has it. `holder` must be new.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_subscription(&self, id: i64, holder: String) -> Result<Option<LeasedSubscription>, StoreError> {
        let mut transaction = self.database.begin().await?;
        // A database that was restored without its log may have a lower number.
        let lease = sql!(
            "UPDATE subscriptions SET leased_by = {holder}, leased_until = {clock + lease},
               position = {pg: least(position, last_seq) | lite: coalesce(min(position, last_seq), last_seq)}
             FROM change_state
             WHERE id = {id} AND state IN ('active', 'failing') AND NOT {+has_ended}
               AND {passed leased_until, lease} AND {passed next_attempt_at, longest_pause}
             RETURNING id, target_url, event, form_id, secret, position, done_beyond, failures, failing_since,
               previous_secret, previous_secret_until,
               EXISTS (SELECT 1 FROM webhook_events e WHERE e.subscription_id = subscriptions.id),
               (SELECT last_seq FROM change_state), {+stamp}, {+forms_of_token}, token_id",
            holder = &holder,
            lease = LEASE,
            id,
            has_ended = has_ended(Timestamp::now()),
            longest_pause = LONGEST_PAUSE,
            stamp = stamp_of(Sql::text("(SELECT last_seq FROM change_state)")),
            forms_of_token = Sql::text(FORMS),
        );
        let row = transaction.fetch_all(lease).await?.pop();
        transaction.commit().await?;
        Ok(row.map(|row| LeasedSubscription::read(&row, holder)).transpose()?.flatten())
    }

    /// Renews a lease. Returns whether it still was the holder's, with the same log.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn renew_lease(&self, leased: &LeasedSubscription) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE subscriptions SET leased_until = {clock + lease} WHERE {+is_held}",
            lease = LEASE,
            is_held = leased.is_held(),
        );
        Ok(self.database.execute(sql).await? > 0)
    }
}
