//! The request log of one tenant as far as this node has not written it: noted at the end of each request, and written
//! behind it ([`super::written_behind`]).
//!
//! A request costs a short lock. What is being written stays here until the commit is known: so a list that adds what is
//! not written to what is stored misses nothing, and a failed write is repeated. Rows are identified by their instant and
//! a number, so writing one twice changes nothing.
//!
//! Refusals that anybody can cause, for which nobody has a budget, are counted: a row for each token, or what was sent as
//! one, reason and minute. So a flood writes a bounded number of rows, however long it lasts.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use rand::RngExt;

use super::last_used::minute_of;
use super::shown_network;
use super::token::SentToken;
use crate::store::{KEPT_ROWS, LoggedRequest, ROWS_BETWEEN_DELETIONS, RequestKey, UnwrittenRequests};

/// How many rows of an account may wait to be written. Beyond that, the oldest is dropped: it would be deleted soon after it
/// was written.
///
/// Larger: an account whose database can't be written takes more memory. Smaller: the log of a very busy one has gaps.
const MAX_HELD: usize = KEPT_ROWS as usize;

/// How many rows of all accounts may wait.
///
/// Larger: more memory, some 250 bytes a row. Smaller: with very many accounts the logs have gaps.
const MAX_HELD_OF_ALL: usize = 100_000;

/// How many rows of counted refusals an account gets in a minute.
///
/// Larger: a flood of invented tokens writes more. Smaller: a flood hides which other tokens were refused.
const MAX_COUNTED_A_MINUTE: usize = 100;

/// From how many such rows on refusals are counted by their reason only.
///
/// Larger: fewer rows are left for other reasons. Smaller: as above.
const MAX_COUNTED_APART: usize = 80;

/// How many rows of counted refusals may wait. Beyond that, none is added.
///
/// Larger: an account whose database can't be written takes more memory. Smaller: it loses counts sooner.
const MAX_COUNTED_HELD: usize = 10 * MAX_COUNTED_A_MINUTE;

/// How long old rows are kept at most beyond their time, in minutes, in an account with requests.
///
/// Larger: they are kept for longer. Smaller: deleting costs quiet accounts more.
const MINUTES_BETWEEN_DELETIONS: i64 = 6 * 60;

/// The rows that wait, of all accounts.
static HELD_OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest<'r> {
    /// When it arrived.
    pub at: Timestamp,
    /// Its id.
    pub id: &'r str,
    /// What it was sent with.
    pub token: RequestToken,
    /// Its method.
    pub method: &'static str,
    /// The path of its endpoint.
    pub route: Option<&'static str>,
    /// The status of the response.
    pub status: u16,
    /// How long it took, in milliseconds.
    pub duration_ms: u32,
    /// How many rows the response had.
    pub rows: Option<u32>,
    /// The address of the client.
    pub caller: Option<IpAddr>,
    /// The `User-Agent`, shortened.
    pub agent: Option<&'r str>,
    /// Why it was refused.
    pub reason: Option<&'static str>,
    /// Whether it is one of the refusals that are counted.
    pub is_counted: bool,
}

/// The token of a request, or what was sent as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestToken {
    /// Nothing that is known to be a token.
    None,
    /// A token of the account.
    Known(i64),
    /// What has, or almost has, the form of a token.
    Refused(SentToken),
}

/// What became of a request in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotedAs {
    /// A row.
    Row,
    /// One more refusal in a row of several.
    Counted,
    /// Nothing, or an older row was dropped for it.
    Dropped,
}

/// The rows of one tenant that are not written.
#[derive(Debug)]
pub struct RequestLog {
    /// The first part of each row's number.
    node: i64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    rows: VecDeque<HeldRequest>,
    /// How many of the first rows are being written.
    taken: usize,
    counted: BTreeMap<CountKey, CountedRefusals>,
    /// The minute of the newest count, and how many rows it has.
    minute: (i64, usize),
    next_number: i64,
    /// How many rows were written since old ones were deleted, and in which minute that was; 0 if it is not known.
    written: usize,
    deleted: i64,
}

/// Which refusals are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CountKey {
    minute: i64,
    reason: Option<&'static str>,
    token: RequestToken,
}

#[derive(Debug)]
struct CountedRefusals {
    first: HeldRequest,
    count: u32,
    /// How many the last write took, and how many are stored.
    taken: u32,
    stored: u32,
}

#[derive(Clone, Debug)]
struct HeldRequest {
    key: RequestKey,
    id: Box<str>,
    token: RequestToken,
    method: &'static str,
    route: Option<&'static str>,
    reason: Option<&'static str>,
    agent: Option<Arc<str>>,
    caller: Option<IpAddr>,
    rows: Option<u32>,
    duration_ms: u32,
    status: u16,
}

impl HeldRequest {
    fn row(&self, counted: Option<u32>) -> LoggedRequest {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        let (token, refused) = match self.token {
            RequestToken::None => (None, None),
            RequestToken::Known(id) => (Some(id), None),
            RequestToken::Refused(sent) => (None, Some(sent)),
        };
        LoggedRequest {
            key: self.key,
            id: self.id.as_ref().to_owned(),
            token,
            token_name: None,
            prefix: refused.as_ref().map(|sent| sent.shown().to_owned()),
            digest: refused.and_then(|sent| sent.digest().copied()),
            method: self.method.to_owned(),
            route: owned(self.route),
            status: self.status,
            duration_ms: self.duration_ms,
            rows: self.rows,
            network: self.caller.map(shown_network),
            agent: owned(self.agent.as_deref()),
            reason: owned(self.reason),
            counted,
        }
    }
}

impl Default for RequestLog {
    fn default() -> Self {
        // Below the sign, with room for the counter.
        Self { node: i64::from(rand::rng().random::<u32>()) << NUMBER_BITS, held: Mutex::default() }
    }
}

/// The bits of a row's number that are the counter.
const NUMBER_BITS: u32 = 30;

impl RequestLog {
    /// Notes a request that ended.
    pub fn note(&self, request: &EndedRequest<'_>) -> NotedAs {
        let mut held = self.lock();
        if request.is_counted { self.count(&mut held, request) } else { self.add(&mut held, request) }
    }

    fn add(&self, held: &mut Held, request: &EndedRequest<'_>) -> NotedAs {
        let mut noted = NotedAs::Row;
        if HELD_OF_ALL.load(Ordering::Relaxed) >= MAX_HELD_OF_ALL || held.rows.len() >= MAX_HELD {
            noted = NotedAs::Dropped;
            if held.rows.is_empty() {
                return noted;
            }
            held.drop_first(1);
        }
        let last = held.rows.back().and_then(|last| last.agent.as_ref());
        let agent = request.agent.map(|agent| match last {
            Some(last) if **last == *agent => Arc::clone(last),
            _ => agent.into(),
        });
        let row = self.hold(held, request, agent);
        held.rows.push_back(row);
        HELD_OF_ALL.fetch_add(1, Ordering::Relaxed);
        noted
    }

    fn count(&self, held: &mut Held, request: &EndedRequest<'_>) -> NotedAs {
        let minute = minute_of(request.at);
        // A slow request, and after a clock was set back a little, the same minute continues.
        if minute > held.minute.0 || minute < held.minute.0 - 1 {
            held.minute = (minute, 0);
        }
        let minute = held.minute.0;
        let mut key = CountKey { minute, reason: request.reason, token: request.token };
        if held.minute.1 >= MAX_COUNTED_APART && !held.counted.contains_key(&key) {
            key.token = RequestToken::None;
        }
        if let Some(counted) = held.counted.get_mut(&key) {
            counted.count = counted.count.saturating_add(1);
            return NotedAs::Counted;
        }
        if held.minute.1 >= MAX_COUNTED_A_MINUTE || held.counted.len() >= MAX_COUNTED_HELD {
            return NotedAs::Dropped;
        }
        held.minute.1 += 1;
        let request = EndedRequest { token: key.token, ..*request };
        let first = self.hold(held, &request, request.agent.map(Into::into));
        held.counted.insert(key, CountedRefusals { first, count: 1, taken: 0, stored: 0 });
        NotedAs::Row
    }

    fn hold(&self, held: &mut Held, request: &EndedRequest<'_>, agent: Option<Arc<str>>) -> HeldRequest {
        let EndedRequest { at, id, token, method, route, status, duration_ms, rows, caller, agent: _, reason, .. } =
            *request;
        held.next_number = (held.next_number + 1) % (1 << NUMBER_BITS);
        let key = RequestKey { at: at.as_microsecond(), number: self.node | held.next_number };
        HeldRequest { key, id: id.into(), token, method, route, reason, agent, caller, rows, duration_ms, status }
    }

    /// What is not known to be written, for a list that the caller reads afterwards.
    #[must_use]
    pub fn unwritten(&self) -> Vec<LoggedRequest> {
        let held = self.lock();
        let counted = held.counted.values().filter(|counted| counted.count > counted.stored);
        let counted = counted.map(|counted| counted.first.row(Some(counted.count)));
        held.rows.iter().map(|row| row.row(None)).chain(counted).collect()
    }

    /// Takes what is to be written. It stays here until [`Self::confirm`].
    pub(super) fn take(&self, now: Timestamp) -> UnwrittenRequests {
        let mut held = self.lock();
        let Held { rows, taken, counted, written, deleted, .. } = &mut *held;
        *taken = rows.len();
        let mut unwritten: Vec<_> = rows.iter().map(|row| row.row(None)).collect();
        for counted in counted.values_mut() {
            counted.taken = counted.count;
            if counted.count > counted.stored {
                unwritten.push(counted.first.row(Some(counted.count)));
            }
        }
        let is_long_ago = minute_of(now) - *deleted >= MINUTES_BETWEEN_DELETIONS;
        let deletes_old = is_long_ago || *written + unwritten.len() >= ROWS_BETWEEN_DELETIONS;
        UnwrittenRequests { rows: unwritten, deletes_old }
    }

    /// What was taken is written.
    pub(super) fn confirm(&self, written: &UnwrittenRequests, now: Timestamp) {
        let mut held = self.lock();
        let taken = held.taken;
        held.drop_first(taken);
        if held.rows.is_empty() {
            held.rows = VecDeque::new();
        }
        let minute = minute_of(now);
        held.counted.retain(|key, counted| {
            counted.stored = counted.taken;
            key.minute == minute || counted.count > counted.stored
        });
        held.written += written.rows.len();
        if written.deletes_old {
            (held.written, held.deleted) = (0, minute);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Rows are consistent between any two statements.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Drops the oldest rows.
    fn drop_first(&mut self, count: usize) {
        let count = count.min(self.rows.len());
        self.rows.drain(..count);
        self.taken = self.taken.saturating_sub(count);
        HELD_OF_ALL.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.drop_first(usize::MAX);
    }
}

#[cfg(test)]
mod tests;
