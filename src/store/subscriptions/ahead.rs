//! Finds out which subscriptions have something to deliver, and when others will.
//!
//! A look numbers and releases what was noted, takes no lease, and leaves out the subscriptions that rest or that a sender
//! has.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;

use super::Event;
use super::due::{DueEvent, EventsAbout, Sought, read_due};
use super::lease::{LEASE, LONGEST_PAUSE};
use super::owner::{FORMS, has_ended};
use super::pending::newest_events;
use crate::store::derived::settle::{Settled, is_settled, may_release, place_noted};
use crate::store::engine::PooledConnection;
use crate::store::statement::{Sql, sql};
use crate::store::{FormReach, Store, StoreError};

/// What senders have to do for a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsAhead {
    /// The subscriptions with something to deliver now, and whether a sender had it that did not end its lease.
    pub ready: Vec<(i64, bool)>,
    /// When there may be more, if that is known.
    pub again_in: Option<Duration>,
    /// Whether there is any subscription that is delivered.
    pub is_subscribed: bool,
    /// When the oldest event happened that is due and that no sender has.
    pub oldest_due: Option<Timestamp>,
    /// Since when a receiver fails, of those that fail for longest.
    pub failing_since: Option<Timestamp>,
    /// The database and the schema, if they are on Postgres: what its counters of writes are asked for.
    pub on_postgres: Option<[String; 2]>,
    /// Whether each write is counted, unless a session turns that off for itself, which takes a superuser.
    pub are_writes_counted: bool,
}

impl EventsAhead {
    fn look_again_in(&mut self, pause: Duration) {
        self.again_in = Some(self.again_in.map_or(pause, |before| before.min(pause)));
    }

    fn note_due(&mut self, event: &DueEvent) {
        self.oldest_due = Some(self.oldest_due.map_or(event.changed_at, |before| before.min(event.changed_at)));
    }
}

/// A subscription as a look sees it.
struct Watched {
    id: i64,
    event: Option<Event>,
    form: Option<i64>,
    /// What the token that made it reaches.
    reach: FormReach,
    position: Option<i64>,
    /// Until when nothing is sent, because the receiver failed.
    resting_until: Option<Timestamp>,
    leased_until: Option<Timestamp>,
    /// When an event that was set aside is sent again.
    set_aside_until: Option<Timestamp>,
    failing_since: Option<Timestamp>,
}

impl Watched {
    /// Whether it must be known below which forms a form was.
    fn needs_placements(&self) -> bool {
        self.event == Some(Event::SubmissionDeleted) && (self.form.is_some() || !self.reach.is_all())
    }
}

/// The subscriptions that are delivered.
struct SubscriptionsNow {
    watched: Vec<Watched>,
    /// Whether everything that was committed before has a number.
    is_numbered: bool,
    /// Whether there are notes of moved forms that are not settled yet.
    are_forms_noted: bool,
}

impl Store {
    /// Numbers what was noted, and looks which subscriptions have something to deliver.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if what was noted can't be numbered in time; [`StoreError::Unavailable`],
    /// [`StoreError::Statement`].
    pub async fn events_ahead(&self) -> Result<EventsAhead, StoreError> {
        let mut ahead = EventsAhead::default();
        let SubscriptionsNow { watched, is_numbered, are_forms_noted } = self.watched_subscriptions(&mut ahead).await?;
        if watched.is_empty() {
            return Ok(ahead);
        }
        ahead.is_subscribed = true;
        if !is_numbered && self.settle().await? == Settled::CannotWrite {
            return Err(StoreError::Unsettled);
        }
        if are_forms_noted && watched.iter().any(Watched::needs_placements) {
            place_noted(&self.database).await?;
        }
        let mut reader = self.database.reader().await?;
        if has_unreleased(&mut reader).await? {
            drop(reader);
            if self.release_events().await? == Settled::CannotWrite {
                return Err(StoreError::Unsettled);
            }
            reader = self.database.reader().await?;
        }
        let (newest, now) = newest_events(&mut reader).await?;
        ahead.failing_since = watched.iter().filter_map(|subscription| subscription.failing_since).min();
        for subscription in watched {
            let Some(event) = subscription.event else { continue };
            let ready = (subscription.id, subscription.leased_until.is_some());
            let resting_until = subscription.resting_until.filter(|until| *until <= now + LONGEST_PAUSE);
            let leased_until = subscription.leased_until.filter(|until| *until <= now + LEASE);
            if let Some(until) = resting_until.max(leased_until).filter(|until| *until > now) {
                ahead.look_again_in(until.duration_since(now).unsigned_abs());
                continue;
            }
            if let Some(until) = subscription.set_aside_until {
                if until <= now || until > now + LONGEST_PAUSE {
                    ahead.ready.push(ready);
                    continue;
                }
                ahead.look_again_in(until.duration_since(now).unsigned_abs());
            }
            let Some(position) = subscription.position else {
                ahead.ready.push(ready);
                continue;
            };
            if newest[event as usize].is_none_or(|newest| newest <= position) {
                continue;
            }
            let about = EventsAbout { event, form: subscription.form, reach: &subscription.reach };
            let of = Sought { about, subscription: subscription.id, busy: &HashSet::new() };
            let due = read_due(&mut reader, &of, position, 1).await?;
            if !due.events.is_empty() || (due.again_in.is_none() && due.is_cut) {
                ahead.ready.push(ready);
            }
            due.again_in.into_iter().for_each(|pause| ahead.look_again_in(pause));
            due.events.iter().filter(|_| subscription.failing_since.is_none()).for_each(|event| ahead.note_due(event));
        }
        Ok(ahead)
    }

    async fn watched_subscriptions(&self, ahead: &mut EventsAhead) -> Result<SubscriptionsNow, StoreError> {
        let mut reader = self.database.reader().await?;
        // One row also without any subscription.
        let sql = sql!(
            "SELECT id, event, form_id, {pg: least | lite: min}(position, last_seq), next_attempt_at, leased_until,
               (SELECT min(e.next_attempt_at) FROM webhook_events e WHERE e.subscription_id = s.id),
               {+is_settled}, failing_since,
               {pg: current_database()::text, current_schema()::text,
                 current_setting('track_counts')::bool AND NOT EXISTS (
                   SELECT 1 FROM pg_db_role_setting WHERE 'track_counts=off' = ANY (setconfig))
               | lite: NULL, NULL, FALSE},
               EXISTS (SELECT 1 FROM form_notes), {+forms_of_token}
             FROM change_state LEFT JOIN subscriptions s ON state IN ('active', 'failing') AND NOT {+has_ended}
             ORDER BY id",
            is_settled = is_settled(),
            forms_of_token = Sql::text(FORMS),
            has_ended = has_ended(Timestamp::now()),
        );
        let mut now = SubscriptionsNow { watched: Vec::new(), is_numbered: true, are_forms_noted: false };
        for row in reader.fetch_all(sql).await? {
            let (database, schema): (Option<String>, Option<String>) = (row.get(9)?, row.get(10)?);
            ahead.on_postgres = database.zip(schema).map(<[String; 2]>::from);
            ahead.are_writes_counted = row.get(11)?;
            (now.is_numbered, now.are_forms_noted) = (row.get(7)?, row.get(12)?);
            let Some(id) = row.get(0)? else { continue };
            let forms: Option<String> = row.get(13)?;
            now.watched.push(Watched {
                id,
                event: Event::parse(&row.get::<String>(1)?),
                form: row.get(2)?,
                reach: FormReach::read(forms.as_deref())?,
                position: row.get(3)?,
                resting_until: row.get(4)?,
                leased_until: row.get(5)?,
                set_aside_until: row.get(6)?,
                failing_since: row.get(8)?,
            });
        }
        Ok(now)
    }
}

/// Whether a settler would release an event.
async fn has_unreleased(reader: &mut PooledConnection) -> Result<bool, StoreError> {
    let sql = sql!("SELECT {+may_release}", may_release = may_release(reader.limits().settle));
    Ok(reader.fetch_one(sql).await?.get(0)?)
}
