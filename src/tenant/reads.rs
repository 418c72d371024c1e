//! Which submissions were sent to each token: noted in memory, and written behind ([`super::written_behind`]) to the ledger
//! of reads ([`crate::store`]).
//!
//! What is being written stays here until the commit is known, so whoever adds what is held to what is stored afterwards
//! misses nothing. Writing it twice changes nothing.
//!
//! A crash loses what is held, so the database knows which nodes may hold something: the first write *opens* this node's
//! row, and the last one closes it. Until it is open, reads are due at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rand::RngExt;

use super::last_used::minute_of;
use super::written_behind::Due;
use crate::reply::ReadSubmission;
use crate::store::{Day, NodeChange, ReadGap, ReadKey, ReadSet, UnwrittenReads};

/// After how many minutes without reads a node closes its row.
///
/// Larger: a stop writes to more databases, and a crash leaves a gap for more accounts that nobody called. Smaller: accounts
/// that are read now and then are written twice for each read.
const QUIET: i64 = 60;

/// How long after its end a day is over on every node: clocks differ, and what was held is written meanwhile.
///
/// Larger: changes of the last day stay possible for longer. Smaller: more days are sealed again.
const OVER_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// If nothing is read after a day, it is sealed by a write of its own within so many minutes, chosen at random.
///
/// Larger: changes of the last day stay possible for longer. Smaller: thousands of accounts of one time zone are written at once.
const SEAL_WITHIN: i64 = 180;

/// How many rows, and submissions in them, may wait to be written. Beyond that, all are dropped, which leaves a gap.
///
/// Larger: an account whose database can be read and not written takes more memory. Smaller: it has gaps sooner.
const MAX_ROWS: usize = 50_000;
const MAX_SUBMISSIONS: u64 = 10_000_000;

/// What the tokens of one tenant were sent.
#[derive(Debug, Default)]
pub struct Reads {
    held: Mutex<Held>,
    /// Whether a write is due after this request.
    is_due: AtomicBool,
}

type ReadSets = BTreeMap<ReadKey, ReadSet>;

#[derive(Debug, Default)]
struct Held {
    /// The account's, when something was last read. None: nothing ever was.
    zone: Option<TimeZone>,
    unwritten: ReadSets,
    /// How many submissions are in it.
    submissions: u64,
    /// When the oldest of them was read.
    since: Option<Timestamp>,
    /// When something was last read.
    newest: Timestamp,
    /// What was dropped.
    lost: Option<ReadGap>,
    /// What the last write took and has not confirmed.
    batch: Option<Batch>,
    /// The name of this node's row, once there was a write.
    node: Option<String>,
    is_open: bool,
    /// When a day that this node wrote is to be sealed, in minutes since 1970.
    seal_at: Option<i64>,
}

/// What is being written, or was, without an answer.
#[derive(Debug)]
struct Batch {
    reads: ReadSets,
    since: Option<Timestamp>,
    lost: Option<ReadGap>,
    closes: bool,
    over_before: Day,
    /// When it was taken, in minutes since 1970.
    minute: i64,
}

impl Reads {
    /// Notes that a response to a token contains submissions.
    pub fn note(&self, token: i64, read: &[ReadSubmission], zone: &TimeZone, now: Timestamp) {
        let day = Day::of(now, zone);
        let mut held = self.lock();
        if held.zone.as_ref() != Some(zone) {
            held.zone = Some(zone.clone());
        }
        for ReadSubmission { id, form } in read {
            let set = held.unwritten.entry(ReadKey::new(day, token, *id)).or_default();
            let is_new = set.insert(*id, *form);
            held.submissions += u64::from(is_new);
        }
        held.since.get_or_insert(now);
        held.newest = now;
        held.drop_if_too_many(now);
        if !held.is_open || held.age(minute_of(now)).is_some_and(|age| Due::AfterRequest.is_reached(age)) {
            self.is_due.store(true, Ordering::Release);
        }
    }

    /// The tokens that were sent a submission and the days, of what is not known to be written.
    #[must_use]
    pub fn of_submission(&self, submission: i64) -> Vec<(i64, Day)> {
        let held = self.lock();
        let has = |(key, set): &(&ReadKey, &ReadSet)| key.is_about(submission) && set.has(submission);
        held.all().filter(has).map(|(key, _)| (key.token, key.day)).collect()
    }

    /// What a token was sent, of what is not known to be written.
    #[must_use]
    pub fn of_token(&self, token: i64) -> Vec<(ReadKey, ReadSet)> {
        let held = self.lock();
        held.all().filter(|(key, _)| key.token == token).map(|(key, set)| (*key, set.clone())).collect()
    }

    /// Whether a read became due to be written. True once for each.
    pub(super) fn becomes_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::AcqRel)
    }

    /// Whether something is held of which the database does not know yet that it may be.
    pub(super) fn is_first(&self) -> bool {
        let held = self.lock();
        !held.is_open && held.since.is_some()
    }

    /// What was taken is not written, since no connection was idle. If this node has no row, the next request tries again.
    pub(super) fn stay_due(&self) {
        let held = self.lock();
        if !held.is_open && held.age(0).is_some() {
            self.is_due.store(true, Ordering::Release);
        }
    }

    /// Whether there is something to write.
    pub(super) fn is_due(&self, due: Due, now: i64) -> bool {
        let held = self.lock();
        match (held.age(now), due) {
            (Some(age), Due::AfterRequest) => !held.is_open || due.is_reached(age),
            // Later ones are, while anything is ([`super::prompt`]).
            (_, Due::Promptly) => false,
            (Some(age), Due::Afterwards) => (!held.is_open && age > 0) || due.is_reached(age),
            (Some(_), Due::All) => true,
            (None, Due::AfterRequest) => false,
            (None, Due::Afterwards) => (held.is_open && held.is_quiet(now)) || held.is_to_seal(now),
            (None, Due::All) => held.is_open,
        }
    }

    /// Takes what is to be written. It stays here until it is known to be.
    pub fn take(&self, due: Due, now: Timestamp) -> Option<UnwrittenReads> {
        let mut held = self.lock();
        let zone = held.zone.clone()?;
        held.take_back();
        let is_idle = held.unwritten.is_empty() && held.lost.is_none();
        let minute = minute_of(now);
        let closes = due == Due::All || is_idle;
        if is_idle && !held.is_to_seal(minute) && !(held.is_open && (due == Due::All || held.is_quiet(minute))) {
            return None;
        }
        let change = match (closes, held.is_open) {
            (true, _) => NodeChange::Close,
            (false, true) => NodeChange::Touch,
            (false, false) => NodeChange::Open,
        };
        let node = held.node.get_or_insert_with(|| format!("{:032x}", rand::random::<u128>())).clone();
        let over_before = Day::of(now - OVER_AFTER, &zone);
        let reads = std::mem::take(&mut held.unwritten);
        let unwritten = UnwrittenReads {
            reads: reads.iter().map(|(key, set)| (*key, set.clone())).collect(),
            node,
            change,
            lost: held.lost,
            today: Day::of(now, &zone),
            over_before,
        };
        held.submissions = 0;
        let (since, lost) = (held.since.take(), held.lost.take());
        held.batch = Some(Batch { reads, since, lost, closes, over_before, minute });
        Some(unwritten)
    }

    /// What was taken is written.
    pub(super) fn confirm(&self) {
        let mut held = self.lock();
        let Some(Batch { reads, closes, over_before, minute, .. }) = held.batch.take() else { return };
        held.is_open = !closes;
        let newest = reads.last_key_value().map(|(key, _)| key.day);
        if let (Some(day), Some(zone)) = (newest, &held.zone) {
            let end = minute_of(day.end(zone) + OVER_AFTER) + 1;
            held.seal_at = (day >= over_before).then(|| end + rand::rng().random_range(0..SEAL_WITHIN));
        } else if held.is_to_seal(minute) {
            held.seal_at = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Each set is consistent between any two statements.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// What is not known to be written.
    fn all(&self) -> impl Iterator<Item = (&ReadKey, &ReadSet)> {
        self.batch.iter().flat_map(|batch| &batch.reads).chain(&self.unwritten)
    }

    /// For how many minutes the oldest read has waited to be written; `None` if none waits.
    fn age(&self, now: i64) -> Option<i64> {
        let of_batch = self.batch.as_ref().and_then(|batch| batch.since);
        let since = of_batch.or(self.since).or(self.lost.map(|lost| lost.from))?;
        Some(now.saturating_sub(minute_of(since)))
    }

    fn is_quiet(&self, now: i64) -> bool {
        now.saturating_sub(minute_of(self.newest)) >= QUIET
    }

    fn is_to_seal(&self, now: i64) -> bool {
        self.seal_at.is_some_and(|at| now >= at)
    }

    /// Takes back what a write took and did not confirm.
    fn take_back(&mut self) {
        let Some(failed) = self.batch.take() else { return };
        for (key, set) in failed.reads {
            self.unwritten.entry(key).or_default().add(&set);
        }
        self.submissions = self.unwritten.values().map(ReadSet::len).sum();
        self.since = failed.since.or(self.since);
        self.lost = united(failed.lost, self.lost);
    }

    fn drop_if_too_many(&mut self, now: Timestamp) {
        if self.unwritten.len() <= MAX_ROWS && self.submissions <= MAX_SUBMISSIONS {
            return;
        }
        tracing::warn!(
            rows = self.unwritten.len(),
            "too many reads wait to be written; they are dropped, which leaves a gap"
        );
        let dropped = ReadGap { from: self.since.take().unwrap_or(now), until: now };
        self.lost = united(self.lost, Some(dropped));
        self.unwritten.clear();
        self.submissions = 0;
    }
}

/// A gap from the beginning of the first one to the end of the last.
fn united(first: Option<ReadGap>, last: Option<ReadGap>) -> Option<ReadGap> {
    match (first, last) {
        (Some(first), Some(last)) => {
            Some(ReadGap { from: first.from.min(last.from), until: first.until.max(last.until) })
        }
        (first, last) => first.or(last),
    }
}

#[cfg(test)]
mod tests;
