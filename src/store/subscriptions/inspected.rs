//! Reads subscriptions for operators: how many there are by state, and of one that does not arrive its state, what is
//! pending, and submissions to try its receiver with. Takes no lease, and writes nothing but numbers of changes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Event;
use super::due::{EventsAbout, is_about};
use super::lease::{LEASE, valid_secrets};
use super::owner::{FORMS, has_ended, state};
use super::pending::{Details, EventRange, PendingEvents, count_in_turn, count_set_aside, count_set_aside_within};
use crate::outbound::DeliveryReason;
use crate::store::derived::changes::{ChangeCursor, LogMark, stamp_of};
use crate::store::derived::settle::is_settled;
use crate::store::statement::{Sql, sql};
use crate::store::submissions::{Submissions, read_submissions};
use crate::store::{FormReach, Store, StoreError};

/// How many subscriptions and events a database has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Subscriptions by state.
    pub by_state: BTreeMap<String, i64>,
    /// Events that receivers refused and that are sent again.
    pub set_aside: i64,
}

impl SubscriptionCounts {
    /// Whether there is any subscription.
    #[must_use]
    pub fn are_any(&self) -> bool {
        !self.by_state.is_empty()
    }
}

/// Whether a database has subscriptions, of whatever state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasSubscriptions {
    /// It has none.
    No,
    /// There is nothing to do for them until something is committed.
    AtRest,
    /// There may be something to do for them.
    Yes,
}

/// A subscription and how far it has got.
#[derive(Clone, Debug)]
pub struct InspectedSubscription {
    /// The bare id.
    pub id: i64,
    /// Where to deliver.
    pub target_url: String,
    /// What to deliver; none if only a newer version knows the event.
    pub event: Option<Event>,
    /// Of which form, sub-forms included; none for every form.
    pub form: Option<i64>,
    /// The secrets that sign, as in [`super::LeasedSubscription::secrets`].
    pub secrets: Vec<String>,
    /// `active`, `paused`, `failing`, `disabled` or `gone`.
    pub state: String,
    /// Why, unless it is active.
    pub reason: Option<DeliveryReason>,
    /// Since when its receiver fails.
    pub failing_since: Option<Timestamp>,
    /// When its receiver is tried again.
    pub next_attempt_at: Option<Timestamp>,
    /// When its receiver last accepted an event.
    pub last_success_at: Option<Timestamp>,
    /// Whether a sender has it now.
    pub is_leased: bool,
    /// The events in the log that are not delivered yet.
    pub pending: PendingEvents,
    /// How many events its receiver refused that are sent again.
    pub set_aside: i64,
    /// The token that made it, if that is known.
    pub token: Option<i64>,
    /// What it may be sent: what the token that made it reaches.
    pub reach: FormReach,
}

/// A submission to try a receiver with.
#[derive(Debug)]
pub struct SampleSubmission {
    /// The bare id.
    pub id: i64,
    /// Its form.
    pub form: i64,
    /// When it changed.
    pub changed_at: Timestamp,
    /// Where the feed goes on after it.
    pub cursor: ChangeCursor,
    /// What it shows; nothing if it was deleted.
    pub submissions: Submissions,
}

impl Store {
    /// Whether there is any subscription, and whether there may be something to do for one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn has_subscriptions(&self) -> Result<HasSubscriptions, StoreError> {
        let mut reader = self.database.reader().await?;
        // At rest is one that `events_ahead` would neither return nor look at again, and for which it would write nothing.
        let sql = sql!(
            "SELECT EXISTS (SELECT 1 FROM subscriptions),
               EXISTS (
                 SELECT 1 FROM subscriptions s, change_state
                 WHERE state IN ('active', 'failing') AND NOT {+has_ended} AND NOT coalesce(
                   {+is_settled} AND released_seq >= last_seq AND position <= last_seq
                     AND position >= CASE event
                       WHEN 'submission.created' THEN (SELECT coalesce(max(created_event), 0) FROM submission_changes)
                       WHEN 'submission.updated' THEN (SELECT coalesce(max(updated_event), 0) FROM submission_changes)
                       WHEN 'submission.deleted' THEN (SELECT coalesce(max(deleted_event), 0) FROM submission_changes)
                     END
                     AND state = 'active' AND leased_until IS NULL AND next_attempt_at IS NULL
                     AND (event <> 'submission.deleted' OR form_id IS NULL AND {+forms_of_token} IS NULL
                       OR NOT EXISTS (SELECT 1 FROM form_notes))
                     AND NOT EXISTS (SELECT 1 FROM webhook_events e WHERE e.subscription_id = s.id),
                   FALSE))",
            has_ended = has_ended(Timestamp::now()),
            is_settled = is_settled(),
            forms_of_token = Sql::text(FORMS),
        );
        let row = reader.fetch_one(sql).await?;
        Ok(match (row.get(0)?, row.get(1)?) {
            (false, _) => HasSubscriptions::No,
            (true, false) => HasSubscriptions::AtRest,
            (true, true) => HasSubscriptions::Yes,
        })
    }

    /// Counts subscriptions by state, and the events that are set aside.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_subscriptions(&self) -> Result<SubscriptionCounts, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+state_now}, count(*), (SELECT count(*) FROM webhook_events WHERE next_attempt_at IS NOT NULL)
             FROM subscriptions
             GROUP BY 1
             {scans: only events that receivers refused are in webhook_events}",
            state_now = state(Timestamp::now()),
        );
        let mut counts = SubscriptionCounts::default();
        for row in reader.fetch_all(sql).await? {
            counts.by_state.insert(row.get(0)?, row.get(1)?);
            counts.set_aside = row.get(2)?;
        }
        Ok(counts)
    }

    /// Counts the subscriptions with a secret that begins with `sealed`, but with none of these texts.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_secrets_without(&self, sealed: &str, known: &[String]) -> Result<i64, StoreError> {
        let mut reader = self.database.reader().await?;
        let others = known.iter().map(|known| {
            let length = i64::try_from(known.len()).unwrap_or(i64::MAX);
            sql!(" AND substr(secret, 1, {length}{pg: ::int}) <> {known}", length, known)
        });
        let sql = sql!(
            "SELECT count(*) FROM subscriptions WHERE secret LIKE {sealed}{+others}",
            sealed = format!("{sealed}%"),
            others = Sql::joined(others, ""),
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// Reads a subscription with everything that explains whether it is delivered.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn inspect_subscription(&self, id: i64) -> Result<Option<InspectedSubscription>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT target_url, event, form_id, secret, previous_secret, previous_secret_until, state, reason,
               failing_since, next_attempt_at, last_success_at, NOT {passed leased_until, lease}, position, done_beyond,
               {+forms_of_token}, {+state_now}, token_id
             FROM subscriptions
             WHERE id = {id}{+own}",
            lease = LEASE,
            forms_of_token = Sql::text(FORMS),
            state_now = state(Timestamp::now()),
            id,
            own = self.own(),
        );
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let event = Event::parse(&row.get::<String>(1)?);
        let (form, position): (Option<i64>, Option<i64>) = (row.get(2)?, row.get(12)?);
        let done_beyond: Vec<i64> = serde_json::from_str(&row.get::<String>(13)?).unwrap_or_default();
        let forms: Option<String> = row.get(14)?;
        let reach = FormReach::read(forms.as_deref())?;
        let pending = match event.zip(position) {
            Some((event, position)) => {
                let range = EventRange { about: EventsAbout { event, form, reach: &reach }, position };
                count_in_turn(&mut reader, range, &done_beyond, Details::Since).await?
            }
            None => PendingEvents::default(),
        };
        let set_aside = if reach.is_all() {
            count_set_aside(&mut reader, &[id]).await?.remove(&id).unwrap_or(0)
        } else {
            count_set_aside_within(&mut reader, id, &reach).await?
        };
        let (stored, state): (String, String) = (row.get(6)?, row.get(15)?);
        let reason = row.get::<Option<String>>(7)?.as_deref().map(DeliveryReason::read);
        Ok(Some(InspectedSubscription {
            id,
            target_url: row.get(0)?,
            event,
            form,
            secrets: valid_secrets(row.get(3)?, row.get(4)?, row.get(5)?),
            reason: if stored == state { reason } else { Some(DeliveryReason::TokenEnded) },
            state,
            failing_since: row.get(8)?,
            next_attempt_at: row.get(9)?,
            last_success_at: row.get(10)?,
            is_leased: row.get(11)?,
            pending,
            set_aside,
            token: row.get(16)?,
            reach,
        }))
    }

    /// The newest submissions of a form and its sub-forms, or of every form, that an event can be about, at most `limit`; those
    /// in reach of the caller.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn sample_submissions(
        &self,
        event: Event,
        form: Option<i64>,
        limit: u32,
    ) -> Result<Vec<SampleSubmission>, StoreError> {
        // The newest submission may have been written a moment ago.
        self.number_before_reading().await?;
        let is_deletion = event == Event::SubmissionDeleted;
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let forms = self.reach().narrowed_to(&mut reader, form.as_slice()).await?;
        if !is_deletion && forms.forms().is_some_and(<[i64]>::is_empty) {
            reader.end_transaction("COMMIT").await?;
            return Ok(Vec::new());
        }
        let sql = sql!(
            "SELECT c.submission_id, c.form_id, c.changed_at, c.seq, (SELECT epoch FROM change_state), {+stamp}
             FROM submission_changes c
             WHERE c.seq IS NOT NULL AND {+is_kind} AND {+is_about}
             ORDER BY c.seq DESC LIMIT {limit}",
            stamp = stamp_of(Sql::text("c.seq")),
            is_kind = Sql::text(if is_deletion { "c.deleted" } else { "NOT c.deleted" }),
            is_about = is_about(&EventsAbout { event, form, reach: self.reach() }),
            limit,
        );
        let mut samples = Vec::new();
        for row in reader.fetch_all(sql).await? {
            let id: i64 = row.get(0)?;
            let shown = if is_deletion { Vec::new() } else { vec![id] };
            samples.push(SampleSubmission {
                id,
                form: row.get(1)?,
                changed_at: row.get(2)?,
                cursor: ChangeCursor::after(row.get(4)?, LogMark { seq: row.get(3)?, stamp: row.get(5)? }),
                submissions: read_submissions(&mut reader, shown, &self.caller).await?,
            });
        }
        reader.end_transaction("COMMIT").await?;
        Ok(samples)
    }
}
