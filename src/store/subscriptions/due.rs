//! Reads which events of subscriptions are due, from the change log and from what was set aside.
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

use super::lease::{LEASE, LONGEST_PAUSE};
use super::{Event, LeasedSubscription};
use crate::store::changes::{ChangeCursor, LogMark, write_is_in_log, write_stamp_of};
use crate::store::engine::PooledConnection;
use crate::store::search::write_with_sub_forms;
use crate::store::settle::{MAX_BURST, Settled, place_noted, write_is_settled, write_may_release};
use crate::store::statement::{Row, Sql};
use crate::store::submissions::{Submissions, read_submissions};
use crate::store::{Store, StoreError};

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
    /// Submissions and numbers of events that were to be sent again and whose submission is gone.
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

/// A subscription as a look sees it.
struct Watched {
    id: i64,
    event: Option<Event>,
    form: Option<i64>,
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
        self.event == Some(Event::SubmissionDeleted) && self.form.is_some()
    }
}

/// The subscriptions that are delivered.
struct SubscriptionsNow {
    watched: Vec<Watched>,
    /// Whether everything that was committed before has a number.
    is_numbered: bool,
    /// Whether forms may have been moved, and nobody has looked yet.
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
        if may_release(&mut reader).await? {
            drop(reader);
            if self.release_events().await? == Settled::CannotWrite {
                return Err(StoreError::Unsettled);
            }
            reader = self.database.reader().await?;
        }
        let mut sql = reader.sql();
        sql.push("SELECT max(created_event), (SELECT max(updated_event) FROM submission_changes), ");
        sql.push("(SELECT max(deleted_event) FROM submission_changes), ").push_now_plus(Duration::ZERO);
        sql.push(" FROM submission_changes");
        let row = reader.fetch_one(sql).await?;
        let (newest, now): ([Option<i64>; 3], Timestamp) = ([row.get(0)?, row.get(1)?, row.get(2)?], row.get(3)?);
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
            let of = Sought { event, form: subscription.form, subscription: subscription.id, busy: &HashSet::new() };
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
        let mut sql = reader.sql();
        sql.push("SELECT id, event, form_id, ").push_either("least(position, last_seq)", "min(position, last_seq)");
        sql.push(", next_attempt_at, leased_until, (SELECT min(e.next_attempt_at) FROM webhook_events e ");
        sql.push("WHERE e.subscription_id = s.id), ");
        write_is_settled(&mut sql);
        sql.push(", failing_since");
        sql.push_either(
            ", current_database()::text, current_schema()::text, current_setting('track_counts')::bool AND NOT EXISTS \
             (SELECT 1 FROM pg_db_role_setting WHERE 'track_counts=off' = ANY (setconfig))",
            ", NULL, NULL, FALSE",
        );
        sql.push(", EXISTS (SELECT 1 FROM form_notes)");
        // One row also without any subscription.
        sql.push(" FROM change_state LEFT JOIN subscriptions s ON state IN ('active', 'failing') ORDER BY id");
        let mut now = SubscriptionsNow { watched: Vec::new(), is_numbered: true, are_forms_noted: false };
        for row in reader.fetch_all(sql).await? {
            let (database, schema): (Option<String>, Option<String>) = (row.get(9)?, row.get(10)?);
            ahead.on_postgres = database.zip(schema).map(<[String; 2]>::from);
            ahead.are_writes_counted = row.get(11)?;
            (now.is_numbered, now.are_forms_noted) = (row.get(7)?, row.get(12)?);
            let Some(id) = row.get(0)? else { continue };
            now.watched.push(Watched {
                id,
                event: Event::parse(&row.get::<String>(1)?),
                form: row.get(2)?,
                position: row.get(3)?,
                resting_until: row.get(4)?,
                leased_until: row.get(5)?,
                set_aside_until: row.get(6)?,
                failing_since: row.get(8)?,
            });
        }
        Ok(now)
    }

    /// The events of a leased subscription that are due: at most `limit` that were set aside, and as many after the
    /// number `after`. `busy` are the submissions of which an event is being sent. Has events released first if there are no
    /// others. None: the database has lost what the lease's holder has read of the log.
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
        let of = Sought { event: leased.event, form: leased.form, subscription: leased.id, busy };
        let in_turn = read_due(&mut reader, &of, after, limit).await?;
        let is_unreleased = in_turn.is_unreleased;
        let mut again_in = in_turn.again_in;
        let mut read_to = in_turn.read_to;
        events.extend(in_turn.events.into_iter().filter(|event| !leased.done_beyond.contains(&event.seq)));
        let mut submissions = Submissions::default();
        if leased.event != Event::SubmissionDeleted {
            let unsent = events.iter().filter(|event| event.sent.is_none()).map(|event| event.submission);
            submissions = read_submissions(&mut reader, unsent.collect()).await?;
        }
        let mut sql = reader.sql();
        sql.push("SELECT epoch, last_seq, ");
        write_stamp_of(&mut sql, "last_seq");
        sql.push(", ");
        write_is_in_log(&mut sql, leased.log);
        sql.push(" FROM change_state");
        let row = reader.fetch_one(sql).await?;
        let (epoch, log) = (row.get(0)?, LogMark { seq: row.get(1)?, stamp: row.get(2)? });
        let is_same_log: bool = row.get(3)?;
        reader.end_transaction("COMMIT").await?;
        if !is_same_log {
            return Ok(None);
        }
        let mut vanished = Vec::new();
        if let Some(view) = submissions.read()?
            && leased.event != Event::SubmissionDeleted
        {
            let listed: HashSet<i64> = view.submissions.iter().map(|submission| submission.id).collect();
            let is_there = |event: &DueEvent| event.sent.is_some() || listed.contains(&event.submission);
            let gone = events.extract_if(.., |event| !event.is_in_turn && !is_there(event));
            vanished = gone.map(|event| (event.submission, event.seq)).collect();
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
    let mut sql = reader.sql();
    // After a TRUNCATE the log begins again without them.
    sql.push("SELECT e.seq, e.submission_id, coalesce(c.form_id, 0), coalesce(c.changed_at, e.next_attempt_at), ");
    sql.push("e.event_id, e.body, e.attempts, e.failed_at, ");
    write_stamp_of(&mut sql, "e.seq");
    sql.push(" FROM webhook_events e LEFT JOIN submission_changes c ON c.submission_id = e.submission_id ");
    sql.push("WHERE e.subscription_id = ").bind(leased.id).push(" AND e.next_attempt_at IS NOT NULL AND ");
    sql.push_has_passed("e.next_attempt_at", LONGEST_PAUSE).push(" ORDER BY e.seq LIMIT ").bind(i64::from(limit));
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| DueEvent::read(row, false)).collect::<Result<_, sqlx::Error>>()?)
}

/// Events after a number.
struct InTurn {
    events: Vec<DueEvent>,
    read_to: i64,
    /// Whether there may be more events, also if there are none here.
    is_cut: bool,
    again_in: Option<Duration>,
    /// Whether the next one is due, and was not released.
    is_unreleased: bool,
}

/// The events of a subscription.
struct Sought<'s> {
    event: Event,
    form: Option<i64>,
    subscription: i64,
    /// The submissions of which an event is being sent.
    busy: &'s HashSet<i64>,
}

async fn read_due(
    reader: &mut PooledConnection,
    of: &Sought<'_>,
    after: i64,
    limit: u32,
) -> Result<InTurn, StoreError> {
    let (column, settle) = (of.event.column(), reader.limits().settle);
    let mut sql = reader.sql();
    sql.push("SELECT c.seq, c.submission_id, c.form_id, c.changed_at, e.event_id, e.body, e.attempts, e.failed_at, ");
    write_stamp_of(&mut sql, "c.seq");
    sql.push(", c.burst_at, ").push_now_plus(Duration::ZERO).push(", (SELECT released_seq FROM change_state) ");
    sql.push("FROM (SELECT submission_id, form_id, changed_at, ");
    sql.push("burst_at, ").push(column).push(" AS seq FROM submission_changes WHERE ").push(column).push(" > ");
    sql.bind(after).push(" ORDER BY ").push(column).push(" LIMIT ").bind(MAX_READ);
    sql.push(") AS c LEFT JOIN webhook_events e ON e.subscription_id = ").bind(of.subscription);
    sql.push(" AND e.seq = c.seq WHERE TRUE");
    write_within(&mut sql, of.event, of.form);
    sql.push(" ORDER BY c.seq LIMIT ").bind(i64::from(limit));
    let rows = reader.fetch_all(sql).await?;
    let (mut read_to, mut is_cut) = (after, true);
    if rows.len() < limit as usize {
        let mut sql = reader.sql();
        sql.push("SELECT coalesce(max(seq), 0), count(*) FROM (SELECT ").push(column);
        sql.push(" AS seq FROM submission_changes WHERE ").push(column).push(" > ").bind(after);
        sql.push(" ORDER BY ").push(column).push(" LIMIT ").bind(MAX_READ).push(") AS next");
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

/// Whether a settler would release an event.
async fn may_release(reader: &mut PooledConnection) -> Result<bool, StoreError> {
    let settle = reader.limits().settle;
    let mut sql = reader.sql();
    sql.push("SELECT ");
    write_may_release(&mut sql, settle);
    Ok(reader.fetch_one(sql).await?.get(0)?)
}

/// When each submission was last sent, for those sent within the last [`MAX_BURST`] settle times. Reads the delivery log.
async fn last_sent(
    reader: &mut PooledConnection,
    subscription: i64,
    now: Timestamp,
) -> Result<HashMap<i64, Timestamp>, StoreError> {
    let settle = reader.limits().settle;
    let mut sql = reader.sql();
    sql.push("SELECT submission_id, max(at) FROM webhook_attempts WHERE subscription_id = ").bind(subscription);
    // Those after now are of a clock that was set back since.
    sql.push(" AND at > ").bind(now - settle * MAX_BURST).push(" AND at <= ").bind(now + settle);
    sql.push(" GROUP BY submission_id");
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
}

/// Adds a condition: the form of a row `c` of the log is `form` or below it. A deletion counts for the forms that it was below
/// since placements are kept, because receivers know the submission from there: its form may have been deleted or moved with it.
pub(super) fn write_within(sql: &mut Sql, event: Event, form: Option<i64>) {
    let Some(form) = form else { return };
    sql.push(" AND c.form_id IN ");
    if event != Event::SubmissionDeleted {
        return write_with_sub_forms(sql, &[form]);
    }
    sql.push("(WITH RECURSIVE known (id) AS (SELECT id FROM forms WHERE id = ").bind(form);
    sql.push(" UNION SELECT p.form_id FROM known JOIN (SELECT id AS form_id, parent_id FROM forms UNION ALL ");
    sql.push("SELECT form_id, parent_id FROM form_placements WHERE NOT deleted) AS p ON p.parent_id = known.id) ");
    sql.push("SELECT id FROM known)");
}

impl DueEvents {
    /// The cursor of the feed after an event.
    #[must_use]
    pub fn cursor_after(&self, event: &DueEvent) -> ChangeCursor {
        ChangeCursor::after(self.epoch.clone(), LogMark { seq: event.seq, stamp: event.stamp })
    }
}
