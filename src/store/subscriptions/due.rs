//! Reads the events of a subscription that are due, from the change log and from what was set aside.
//!
//! An event is due once its submission has not changed for a while, so that a submission whose answers are written in
//! several transactions is one event. One that keeps changing is sent [`MAX_BURST`] settle
//! times after its first change, and then at most once in that time: the delivery log, which all nodes share, has the last
//! attempt. Events of a subscription are in the order of their numbers.
//!
//! A settler releases events that are due before a sender gets them, so that it never makes a later change part of an event that
//! was sent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use super::lease::LONGEST_PAUSE;
use super::owner::has_ended;
use super::{Event, LeasedSubscription};
use crate::store::derived::changes::{ChangeCursor, LogMark, stamp_of};
use crate::store::derived::search::with_sub_forms;
use crate::store::derived::settle::{MAX_BURST, Settled};
use crate::store::engine::PooledConnection;
use crate::store::reach::Caller;
use crate::store::statement::{Row, Sql, sql};
use crate::store::submissions::{Submissions, read_submissions};
use crate::store::{FormReach, Store, StoreError};

/// How many numbers of the log are looked through to find the events of one form.
///
/// Larger: one look takes longer. Smaller: a subscription of a rare form takes more looks to get past the others.
const MAX_READ: i64 = 5_000;

/// What was sent in the first attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBody {
    /// The event's id.
    pub event_id: String,
    /// The body.
    pub body: String,
}

/// An event that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueEvent {
    /// Its number.
    pub seq: i64,
    /// The submission.
    pub submission: i64,
    /// The submission's form.
    pub form: i64,
    /// When it changed.
    pub changed_at: Timestamp,
    /// Whether the position has to pass it; otherwise it was set aside, or is sent again.
    pub is_in_turn: bool,
    /// What was sent before.
    pub sent: Option<SentBody>,
    /// How many attempts failed.
    pub attempts: u32,
    /// When the first one did.
    pub failed_at: Option<Timestamp>,
    /// The stamp of its number.
    stamp: i64,
}

/// Events of one subscription.
#[derive(Debug, Default)]
pub struct DueEvents {
    /// Those that are due, the ones set aside first, then by number.
    pub events: Vec<DueEvent>,
    /// The submissions of those that have not been sent before and are no deletions.
    pub submissions: Submissions,
    /// Submissions and numbers of events that were to be sent again and whose submission is gone or out of reach.
    pub vanished: Vec<(i64, i64)>,
    /// Up to this number there are no others.
    pub read_to: i64,
    /// When another one will be due, if that is known.
    pub again_in: Option<Duration>,
    /// The epoch of the log, for cursors.
    pub epoch: String,
    /// Its end.
    pub log: LogMark,
}

impl DueEvent {
    /// Reads the columns from the first one on; the last one is the stamp.
    fn read(row: &Row, is_in_turn: bool) -> Result<Self, sqlx::Error> {
        let (event_id, body): (Option<String>, Option<String>) = (row.get(4)?, row.get(5)?);
        Ok(Self {
            seq: row.get(0)?,
            submission: row.get(1)?,
            form: row.get(2)?,
            changed_at: row.get(3)?,
            is_in_turn,
            sent: event_id.zip(body).map(|(event_id, body)| SentBody { event_id, body }),
            attempts: u32::try_from(row.get::<Option<i64>>(6)?.unwrap_or(0)).unwrap_or(u32::MAX),
            failed_at: row.get(7)?,
            stamp: row.get(8)?,
        })
    }
}

impl Store {
    /// The events of a leased subscription that are due: at most `limit` that were set aside, and as many after the
    /// number `after`. `busy` are the submissions of which an event is being sent. Has events released first if there are no
    /// others. None: the lease is over, or the database has lost what its holder has read of the log.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn due_events(
        &self,
        leased: &LeasedSubscription,
        after: i64,
        limit: u32,
        busy: &HashSet<i64>,
    ) -> Result<Option<DueEvents>, StoreError> {
        let Some((due, is_unreleased)) = self.released_events(leased, after, limit, busy).await? else {
            return Ok(None);
        };
        if !is_unreleased || !due.events.is_empty() {
            return Ok(Some(due));
        }
        match self.release_events().await {
            Ok(Settled::Yes) => Ok(self.released_events(leased, after, limit, busy).await?.map(|(due, _)| due)),
            Ok(Settled::CannotWrite) | Err(StoreError::Unsettled) => Ok(Some(due)),
            Err(error) => Err(error),
        }
    }

    /// The same of events that were released, and whether one that is due was not.
    async fn released_events(
        &self,
        leased: &LeasedSubscription,
        after: i64,
        limit: u32,
        busy: &HashSet<i64>,
    ) -> Result<Option<(DueEvents, bool)>, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.keep_statements();
        reader.begin_reading().await?;
        let mut events = set_aside(&mut reader, leased, limit).await?;
        let mut vanished = take_unreached(&mut reader, leased, &mut events).await?;
        let about = leased.about();
        let of = Sought { about, subscription: leased.id, busy };
        let in_turn = read_due(&mut reader, &of, after, limit).await?;
        let is_unreleased = in_turn.is_unreleased;
        let mut again_in = in_turn.again_in;
        let mut read_to = in_turn.read_to;
        events.extend(in_turn.events.into_iter().filter(|event| !leased.done_beyond.contains(&event.seq)));
        let mut submissions = Submissions::default();
        if leased.event != Event::SubmissionDeleted {
            let unsent = events.iter().filter(|event| event.sent.is_none()).map(|event| event.submission);
            submissions = read_submissions(&mut reader, unsent.collect(), &Caller::within(&leased.reach)).await?;
        }
        let sql = sql!(
            "SELECT epoch, last_seq, {+stamp},
               EXISTS (SELECT 1 FROM subscriptions WHERE {+is_held} AND NOT {+has_ended})
             FROM change_state",
            stamp = stamp_of(Sql::text("last_seq")),
            is_held = leased.is_held(),
            has_ended = has_ended(Timestamp::now()),
        );
        let row = reader.fetch_one(sql).await?;
        let (epoch, log) = (row.get(0)?, LogMark { seq: row.get(1)?, stamp: row.get(2)? });
        let is_held: bool = row.get(3)?;
        reader.end_transaction("COMMIT").await?;
        if !is_held {
            return Ok(None);
        }
        if let Some(view) = submissions.read()?
            && leased.event != Event::SubmissionDeleted
        {
            let listed: HashSet<i64> = view.submissions.iter().map(|submission| submission.id).collect();
            let is_there = |event: &DueEvent| event.sent.is_some() || listed.contains(&event.submission);
            let gone = events.extract_if(.., |event| !event.is_in_turn && !is_there(event));
            vanished.extend(gone.map(|event| (event.submission, event.seq)));
            // One that is not listed any more has no number for that yet, and may have another event once it has.
            if let Some(at) = events.iter().position(|event| !is_there(event)) {
                read_to = read_to.min(events[at].seq - 1);
                events.truncate(at);
                again_in = Some(reader.limits().settle);
            }
        }
        Ok(Some((DueEvents { events, submissions, vanished, read_to, again_in, epoch, log }, is_unreleased)))
    }
}

/// The events that were set aside, or are to be sent again, and are due.
async fn set_aside(
    reader: &mut PooledConnection,
    leased: &LeasedSubscription,
    limit: u32,
) -> Result<Vec<DueEvent>, StoreError> {
    // After a TRUNCATE the log begins again without them.
    let sql = sql!(
        "SELECT e.seq, e.submission_id, coalesce(c.form_id, 0), coalesce(c.changed_at, e.next_attempt_at),
           e.event_id, e.body, e.attempts, e.failed_at, {+stamp}
         FROM webhook_events e LEFT JOIN submission_changes c ON c.submission_id = e.submission_id
         WHERE e.subscription_id = {subscription} AND e.next_attempt_at IS NOT NULL
           AND {passed e.next_attempt_at, longest_pause}
         ORDER BY e.seq LIMIT {limit}",
        stamp = stamp_of(Sql::text("e.seq")),
        subscription = leased.id,
        longest_pause = LONGEST_PAUSE,
        limit,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| DueEvent::read(row, false)).collect::<Result<_, sqlx::Error>>()?)
}

/// Takes those events out that were set aside and whose submissions are out of reach now: they are not sent any more.
async fn take_unreached(
    reader: &mut PooledConnection,
    leased: &LeasedSubscription,
    events: &mut Vec<DueEvent>,
) -> Result<Vec<(i64, i64)>, StoreError> {
    if leased.reach.is_all() || events.is_empty() {
        return Ok(Vec::new());
    }
    let submissions: Vec<i64> = events.iter().map(|event| event.submission).collect();
    let sql = sql!(
        "SELECT c.submission_id FROM submission_changes c WHERE c.submission_id {in submissions} AND {+is_reached}",
        submissions,
        is_reached = is_about(&EventsAbout { form: None, ..leased.about() }),
    );
    let rows = reader.fetch_all(sql).await?;
    let reached: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let unreached = events.extract_if(.., |event| !reached.contains(&event.submission));
    Ok(unreached.map(|event| (event.submission, event.seq)).collect())
}

/// Events after a number.
pub(super) struct InTurn {
    pub(super) events: Vec<DueEvent>,
    read_to: i64,
    /// Whether there may be more events, also if there are none here.
    pub(super) is_cut: bool,
    pub(super) again_in: Option<Duration>,
    /// Whether the next one is due, and was not released.
    is_unreleased: bool,
}

/// The events of a subscription.
pub(super) struct Sought<'s> {
    pub(super) about: EventsAbout<'s>,
    pub(super) subscription: i64,
    /// The submissions of which an event is being sent.
    pub(super) busy: &'s HashSet<i64>,
}

pub(super) async fn read_due(
    reader: &mut PooledConnection,
    of: &Sought<'_>,
    after: i64,
    limit: u32,
) -> Result<InTurn, StoreError> {
    let settle = reader.limits().settle;
    let sql = sql!(
        "SELECT c.seq, c.submission_id, c.form_id, c.changed_at, e.event_id, e.body, e.attempts, e.failed_at, {+stamp},
           c.burst_at, {clock}, (SELECT released_seq FROM change_state)
         FROM (
           SELECT submission_id, form_id, changed_at, burst_at, {+column} AS seq FROM submission_changes
           WHERE {+column} > {after}
           ORDER BY {+column} LIMIT {most}) AS c
         LEFT JOIN webhook_events e ON e.subscription_id = {subscription} AND e.seq = c.seq
         WHERE {+is_about}
         ORDER BY c.seq LIMIT {limit}",
        stamp = stamp_of(Sql::text("c.seq")),
        column = of.about.event.column(),
        after,
        most = MAX_READ,
        subscription = of.subscription,
        is_about = is_about(&of.about),
        limit,
    );
    let rows = reader.fetch_all(sql).await?;
    let (mut read_to, mut is_cut) = (after, true);
    if rows.len() < limit as usize {
        let sql = sql!(
            "SELECT coalesce(max(seq), 0), count(*)
             FROM (
               SELECT {+column} AS seq FROM submission_changes
               WHERE {+column} > {after}
               ORDER BY {+column} LIMIT {most}) AS next",
            column = of.about.event.column(),
            after,
            most = MAX_READ,
        );
        let row = reader.fetch_one(sql).await?;
        (read_to, is_cut) = (row.get::<i64>(0)?.max(after), row.get::<i64>(1)? == MAX_READ);
    }
    let (mut events, mut again_in, mut is_unreleased) = (Vec::with_capacity(rows.len()), None, false);
    let mut sent_at = None;
    for row in &rows {
        let due = DueEvent::read(row, true)?;
        let (changed_at, burst_at, now): (Timestamp, Timestamp, Timestamp) = (row.get(3)?, row.get(9)?, row.get(10)?);
        // It may have been noted before the clock was set back, however far.
        let was_set_back = changed_at > now + settle;
        let mut due_at = (changed_at + settle).min(burst_at + settle * MAX_BURST);
        // It still changes, and would be sent after every change. What was sent before keeps to its own schedule.
        if due_at <= now && now < changed_at + settle && due.sent.is_none() {
            let sent_at = match &mut sent_at {
                Some(sent_at) => sent_at,
                none => none.insert(last_sent(reader, of.subscription, now).await?),
            };
            let last =
                if of.busy.contains(&due.submission) { Some(now) } else { sent_at.get(&due.submission).copied() };
            due_at = last.map_or(due_at, |last| (last + settle * MAX_BURST).min(changed_at + settle));
        }
        if due_at > now && !was_set_back {
            again_in = Some(due_at.duration_since(now).unsigned_abs().min(settle));
            read_to = due.seq - 1;
            break;
        }
        is_unreleased = due.seq > row.get::<i64>(11)?;
        if is_unreleased {
            // Perhaps one with a lower number is not due.
            again_in = Some(settle);
            read_to = due.seq - 1;
            break;
        }
        events.push(due);
    }
    if rows.len() == limit as usize && again_in.is_none() {
        read_to = events.last().map_or(read_to, |last: &DueEvent| last.seq);
    }
    Ok(InTurn { events, read_to, is_cut, again_in, is_unreleased })
}

/// When each submission was last sent, for those sent within the last [`MAX_BURST`] settle times. Reads the delivery log.
async fn last_sent(
    reader: &mut PooledConnection,
    subscription: i64,
    now: Timestamp,
) -> Result<HashMap<i64, Timestamp>, StoreError> {
    let settle = reader.limits().settle;
    // Those after now are of a clock that was set back since.
    let sql = sql!(
        "SELECT submission_id, max(at)
         FROM webhook_attempts
         WHERE subscription_id = {subscription} AND at > {oldest} AND at <= {newest}
         GROUP BY submission_id",
        subscription,
        oldest = now - settle * MAX_BURST,
        newest = now + settle,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
}

/// What a subscription is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventsAbout<'s> {
    pub(super) event: Event,
    /// Of which form, sub-forms included; none for every form.
    pub(super) form: Option<i64>,
    /// What the token that made it reaches.
    pub(super) reach: &'s FormReach,
}

/// The condition that the form of a row `c` of the log is one that events are about, or below it. A deletion counts for the
/// forms that it was below since placements are kept, because receivers know the submission from there: its form may have been
/// deleted or moved with it. To be in reach, it has to be in reach now, or have been when it was deleted.
pub(super) fn is_about(about: &EventsAbout<'_>) -> Sql {
    let of_form = match (about.event, about.form) {
        (_, None) => Sql::text("TRUE"),
        (Event::SubmissionCreated | Event::SubmissionUpdated, Some(form)) => {
            sql!("c.form_id IN {+forms}", forms = with_sub_forms(&[form]))
        }
        (Event::SubmissionDeleted, Some(form)) => sql!(
            "c.form_id IN (
               WITH RECURSIVE known (id) AS (
                 SELECT id FROM forms WHERE id = {form}
                 UNION SELECT p.form_id FROM known JOIN (
                   SELECT id AS form_id, parent_id FROM forms
                   UNION ALL SELECT form_id, parent_id FROM form_placements WHERE NOT deleted
                 ) AS p ON p.parent_id = known.id)
               SELECT id FROM known)",
            form,
        ),
    };
    match (about.event, about.reach) {
        (_, FormReach::All) => of_form,
        (Event::SubmissionCreated | Event::SubmissionUpdated, FormReach::Forms(forms)) => {
            sql!("{+of_form} AND c.form_id IN {+forms}", of_form, forms = with_sub_forms(forms))
        }
        (Event::SubmissionDeleted, reach) => {
            sql!("{+of_form}{+in_reach}", of_form, in_reach = reach.of_past_row("c.form_id"))
        }
    }
}

impl DueEvents {
    /// The cursor of the feed after an event.
    #[must_use]
    pub fn cursor_after(&self, event: &DueEvent) -> ChangeCursor {
        ChangeCursor::after(self.epoch.clone(), LogMark { seq: event.seq, stamp: event.stamp })
    }
}
