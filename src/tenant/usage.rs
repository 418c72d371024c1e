//! The number of requests of each token: counted in memory, written behind by the hour, and kept by the minute for an hour.
//!
//! The minutes are for the chart of the last hour, which nodes add up through Redis ([`minutes`]). The hours wait for the
//! next write of last-used times ([`super::written_behind`]) and go into the same transaction, so they need no connection of
//! their own. Hours that are being written stay here until the commit is known, so a page that adds up what is stored and
//! what is not misses none.
//!
//! A request costs a short lock. An account without requests in the last hour keeps nothing by the minute.

pub mod minutes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use smallvec::SmallVec;

use super::last_used::minute_of;
use crate::store::{CommitMark, RequestCounts, TokenHour};

/// Minutes that are kept, the current one included.
pub const MINUTES: i64 = 60;

const SECONDS_AN_HOUR: i64 = 3600;

/// How many tokens of an account are counted separately by the minute. The others are counted together, as [`OTHERS`].
///
/// Larger: an account whose callers use thousands of tokens takes more memory for a chart that names six. Smaller: the
/// six with the most requests in the hour may not be among those of each minute.
const MAX_TOKENS_A_MINUTE: usize = 64;

/// All tokens that are not counted separately. No token has this number.
pub const OTHERS: i64 = 0;

/// How many rows may wait to be written. Beyond that, the rows of the oldest hour are dropped.
///
/// Larger: an account whose database can't be written for days takes more memory. Smaller: it loses hours sooner.
const MAX_UNWRITTEN: usize = 50_000;

/// How long a page waits for a write to end.
///
/// Larger: a page takes longer while a write hangs. Smaller: after a slow write it may count an hour twice.
const TURN_WAIT: Duration = Duration::from_millis(500);

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateOutcome {
    /// It was within the rate limit.
    Admitted,
    /// Its response was 429.
    Refused,
}

/// The requests in a minute, by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinuteUsage {
    /// In whole minutes since 1970.
    pub minute: i64,
    /// By token, with [`OTHERS`].
    pub tokens: Vec<(i64, RequestCounts)>,
}

/// The requests of one tenant's tokens.
#[derive(Debug, Default)]
pub struct TokenUsage {
    counted: Mutex<Counted>,
    /// Held while hours are written, and while a page reads what is stored: otherwise it could count hours twice, or not
    /// at all.
    pub(super) writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Counted {
    /// The minute of `current`.
    minute: i64,
    /// By token, sorted. Inline, since most accounts have one, and are rarely in a CPU cache.
    current: SmallVec<[CurrentCounts; 1]>,
    /// The minutes before, oldest first.
    past: VecDeque<MinuteUsage>,
    unwritten: Hours,
    /// What the last write took and has not confirmed.
    batch: Option<Batch>,
    /// The minute of the oldest request that is not written.
    since: Option<i64>,
    /// Whether requests were counted since the minutes were last published.
    is_changed: bool,
    /// The newest minute that was published.
    published: i64,
}

/// By hour since 1970 and token.
type Hours = BTreeMap<(i64, i64), RequestCounts>;

/// The requests of a token in the current minute.
#[derive(Clone, Copy, Debug)]
struct CurrentCounts {
    token: i64,
    counts: RequestCounts,
    /// How many of them are in the hours already.
    settled: RequestCounts,
}

/// Hours that are being written, or were, without an answer.
#[derive(Clone, Debug)]
struct Batch {
    hours: Vec<TokenHour>,
    in_doubt: Option<CommitMark>,
}

impl TokenUsage {
    /// Counts a request. Returns whether it is the first one since the minutes were last published.
    pub fn count(&self, token: i64, outcome: RateOutcome, now: Timestamp) -> bool {
        let minute = minute_of(now);
        let mut counted = self.lock();
        // After a clock is set back a little, the same minute continues.
        if minute > counted.minute || minute < counted.minute - 1 {
            counted.begin(minute);
        }
        let minute = counted.minute;
        counted.since.get_or_insert(minute);
        let place = match counted.current.binary_search_by_key(&token, |current| current.token) {
            Ok(place) => place,
            Err(place) => {
                let none = RequestCounts::default();
                counted.current.insert(place, CurrentCounts { token, counts: none, settled: none });
                place
            }
        };
        let counts = &mut counted.current[place].counts;
        match outcome {
            RateOutcome::Admitted => counts.admitted += 1,
            RateOutcome::Refused => counts.refused += 1,
        }
        !std::mem::replace(&mut counted.is_changed, true)
    }

    /// The minutes of the last hour that had requests, oldest first.
    #[must_use]
    pub fn minutes(&self, now: Timestamp) -> Vec<MinuteUsage> {
        let first = minute_of(now) - MINUTES + 1;
        let counted = self.lock();
        let past = counted.past.iter().filter(|past| past.minute >= first).cloned();
        past.chain(counted.current().filter(|current| current.minute >= first)).collect()
    }

    /// What is not written, as far as is known.
    #[must_use]
    pub fn unwritten(&self) -> Vec<TokenHour> {
        let mut counted = self.lock();
        counted.settle();
        let batch = counted.batch.iter().flat_map(|batch| batch.hours.iter().copied());
        batch.chain(counted.unwritten.iter().map(token_hour)).collect()
    }

    /// Reads what is stored, and returns it with what is not: together they are complete.
    pub async fn with_unwritten<T>(&self, reading: impl Future<Output = T>) -> (T, Vec<TokenHour>) {
        let _turn = tokio::time::timeout(TURN_WAIT, self.writing.lock()).await;
        (reading.await, self.unwritten())
    }

    /// For how many minutes the oldest request has waited to be written; `None` if none waits.
    pub(super) fn age(&self, minute: i64) -> Option<i64> {
        self.lock().since.map(|since| minute.saturating_sub(since))
    }

    /// The write to ask about before the next one.
    pub(super) fn in_doubt(&self) -> Option<CommitMark> {
        self.lock().batch.as_ref()?.in_doubt
    }

    /// Takes what is to be written. It stays here until [`Self::confirm`].
    pub(super) fn take(&self, now: Timestamp) -> Vec<TokenHour> {
        let mut counted = self.lock();
        // Nothing else ends the last minute of an account that became quiet.
        if minute_of(now) > counted.minute {
            counted.begin(minute_of(now));
        }
        counted.settle();
        let mut hours = std::mem::take(&mut counted.unwritten);
        for failed in counted.batch.take().into_iter().flat_map(|batch| batch.hours) {
            let hour = failed.hour.as_second().div_euclid(SECONDS_AN_HOUR);
            hours.entry((hour, failed.token)).or_default().add(failed.counts);
        }
        drop_oldest(&mut hours);
        // Sorted on every node, so that writes of several nodes don't wait for each other in a circle.
        let hours: Vec<TokenHour> = hours.iter().map(token_hour).collect();
        counted.batch = Some(Batch { hours: hours.clone(), in_doubt: None });
        hours
    }

    /// What was taken is written.
    pub(super) fn confirm(&self) {
        let mut counted = self.lock();
        counted.batch = None;
        let is_settled = counted.current.iter().all(|current| current.counts == current.settled);
        counted.since = (!is_settled || !counted.unwritten.is_empty()).then_some(counted.minute);
    }

    /// What was taken may be written or not.
    pub(super) fn doubt(&self, mark: Option<CommitMark>) {
        if let Some(batch) = &mut self.lock().batch {
            batch.in_doubt = mark;
        }
    }

    /// The minutes that changed since the last call, to be published.
    fn take_unpublished(&self) -> Vec<MinuteUsage> {
        let mut counted = self.lock();
        counted.is_changed = false;
        let published = counted.published;
        counted.published = counted.minute;
        let past = counted.past.iter().filter(|past| past.minute >= published).cloned();
        past.chain(counted.current()).collect()
    }

    /// Has these minutes published again. Returns whether no request was counted since they were taken.
    fn put_back(&self, minutes: &[MinuteUsage]) -> bool {
        let mut counted = self.lock();
        counted.published = counted.published.min(minutes.first().map_or(i64::MAX, |first| first.minute));
        !std::mem::replace(&mut counted.is_changed, true)
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        // Numbers are consistent between any two statements.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// The current minute, if it had requests.
    fn current(&self) -> Option<MinuteUsage> {
        let tokens = few_tokens(self.current.iter().map(|current| (current.token, current.counts)).collect());
        (!tokens.is_empty()).then_some(MinuteUsage { minute: self.minute, tokens })
    }

    /// Ends the current minute and begins another.
    fn begin(&mut self, minute: i64) {
        self.settle();
        self.past.extend(self.current());
        self.current.clear();
        self.minute = minute;
        // After a clock was set back, what is newer is wrong as well.
        self.past.retain(|past| past.minute > minute - MINUTES && past.minute < minute);
    }

    /// Adds the requests of the current minute to the hours.
    fn settle(&mut self) {
        let hour = (self.minute * 60).div_euclid(SECONDS_AN_HOUR);
        for CurrentCounts { token, counts, settled } in &mut self.current {
            let new = RequestCounts {
                admitted: counts.admitted - settled.admitted,
                refused: counts.refused - settled.refused,
            };
            if new.total() > 0 {
                self.unwritten.entry((hour, *token)).or_default().add(new);
                *settled = *counts;
            }
        }
        drop_oldest(&mut self.unwritten);
    }
}

fn drop_oldest(hours: &mut Hours) {
    while hours.len() > MAX_UNWRITTEN {
        let Some(((oldest, _), _)) = hours.first_key_value() else { return };
        let after = (oldest + 1, i64::MIN);
        let kept = hours.split_off(&after);
        tracing::warn!(rows = hours.len(), "too many hours of token usage wait to be written; the oldest is dropped");
        *hours = kept;
    }
}

/// Counts those with the fewest requests together if there are many.
fn few_tokens(mut tokens: Vec<(i64, RequestCounts)>) -> Vec<(i64, RequestCounts)> {
    if tokens.len() > MAX_TOKENS_A_MINUTE {
        tokens.sort_unstable_by_key(|(_, counts)| std::cmp::Reverse(counts.total()));
        let mut others = RequestCounts::default();
        tokens.drain(MAX_TOKENS_A_MINUTE..).for_each(|(_, counts)| others.add(counts));
        tokens.push((OTHERS, others));
    }
    tokens
}

fn token_hour((&(hour, token), &counts): (&(i64, i64), &RequestCounts)) -> TokenHour {
    let hour = Timestamp::from_second(hour * SECONDS_AN_HOUR).expect("an hour that a clock has shown");
    TokenHour { hour, token, counts }
}

#[cfg(test)]
mod tests;
