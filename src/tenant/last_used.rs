//! When tokens were last used, to the minute, for which route and from which network: recorded in memory, and written
//! together with the hours of [`super::usage`] and the log of requests ([`super::written_behind`]). While that log is on,
//! they are written with it within seconds; without it, at most once an hour for each account, and a crash loses the times
//! of the last hour or two.
//!
//! A write is a commit, so when a token's cached look-up next expires, the database is read again instead of
//! the files' stamp (`verify.rs`). The new stamp can't be recorded with the write: another program could commit
//! a revocation within the same step of the file's timestamp. That look-up uses an open connection too if there is one;
//! [`super::prompt`] bounds how often it opens a closed file.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::usage::TokenUsage;
use super::written_behind::Due;
use super::{Token, shown_network};
use crate::store::{TokenRecord, TokenUse};

const SECONDS_A_MINUTE: i64 = 60;

/// Minutes between two writes for a token in use.
///
/// Larger: lists show an older time for it. Smaller: databases are written more often.
pub(super) const PAUSE: i64 = 60;

/// The recorded uses of one tenant's tokens.
#[derive(Debug, Default)]
pub struct LastUsed {
    uses: Mutex<Uses>,
    /// Whether a use was recorded that is due to be written after this request.
    is_due: AtomicBool,
}

#[derive(Debug, Default)]
struct Uses {
    by_token: HashMap<i64, LastUse>,
    /// When a connection was last opened to write them.
    opened: Option<i64>,
}

/// The last recorded use of a token.
#[derive(Clone, Copy, Debug)]
struct LastUse {
    times: UseTimes,
    route: &'static str,
    caller: Option<IpAddr>,
}

impl LastUse {
    /// The use in its stored form.
    fn stored(&self, id: i64) -> TokenUse {
        let at = Timestamp::from_second(self.times.used * SECONDS_A_MINUTE).expect("a minute that a clock has shown");
        TokenUse { id, at, route: self.route, network: self.caller.map(shown_network) }
    }
}

/// Two times, in whole minutes since 1970.
#[derive(Clone, Copy, Debug)]
struct UseTimes {
    used: i64,
    written: i64,
}

impl UseTimes {
    const NEVER: Self = Self { used: i64::MIN, written: i64::MIN };

    fn is_due(self, due: Due, now: i64) -> bool {
        self.used > self.written && due.is_reached(now.saturating_sub(self.written))
    }
}

impl LastUsed {
    /// Records that a token was used, for a route and by a caller. Costs nothing except for the first use in each
    /// minute.
    pub fn note(&self, token: &Token, route: &'static str, caller: Option<IpAddr>, usage: &TokenUsage, now: Timestamp) {
        let minute = minute_of(now);
        if token.noted.swap(minute, Ordering::Relaxed) == minute {
            return;
        }
        if usage.age(minute).is_some_and(|age| Due::AfterRequest.is_reached(age)) {
            self.is_due.store(true, Ordering::Release);
        }
        let mut uses = self.lock();
        let last = uses.by_token.entry(token.id).or_insert(LastUse { times: UseTimes::NEVER, route, caller });
        if minute >= last.times.used {
            (last.route, last.caller) = (route, caller);
        }
        let noted = &mut last.times;
        noted.used = noted.used.max(minute);
        // By another node, or by this one before a restart.
        noted.written = noted.written.max(token.stored_use.unwrap_or(i64::MIN));
        if noted.is_due(Due::AfterRequest, minute) {
            self.is_due.store(true, Ordering::Release);
        }
    }

    /// Whether a recorded use became due. True once for each.
    pub(super) fn becomes_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::AcqRel)
    }

    /// The uses that are not written, by token.
    pub(super) fn unwritten(&self) -> Vec<TokenUse> {
        let uses = self.lock();
        let unwritten = uses.by_token.iter().filter(|(_, last)| last.times.used > last.times.written);
        unwritten.map(|(id, last)| last.stored(*id)).collect()
    }

    /// Whether any use is due to be written.
    pub(super) fn is_due(&self, due: Due, now: i64) -> bool {
        self.lock().by_token.values().any(|last| last.times.is_due(due, now))
    }

    /// The last use of a token that this node has seen.
    #[must_use]
    pub fn latest(&self, token: i64) -> Option<TokenUse> {
        let uses = self.lock();
        let last = uses.by_token.get(&token)?;
        Some(last.stored(token))
    }

    /// Adds the last use that this node has seen to a stored token, if it was not written yet.
    pub fn complete(&self, token: &mut TokenRecord) {
        if let Some(latest) = self.latest(token.id)
            && token.last_used_at.is_none_or(|stored| stored < latest.at)
        {
            token.last_used_at = Some(latest.at);
            (token.last_used_route, token.last_used_network) = (Some(latest.route.to_owned()), latest.network);
        }
    }

    /// Whether a connection may be opened for a write. Once an hour.
    pub(super) fn may_open(&self, now: i64) -> bool {
        let opened = &mut self.lock().opened;
        let may_open = opened.is_none_or(|opened| now - opened >= PAUSE);
        if may_open {
            *opened = Some(now);
        }
        may_open
    }

    pub(super) fn mark_written(&self, used: &[TokenUse]) {
        let mut uses = self.lock();
        for used in used {
            if let Some(LastUse { times, .. }) = uses.by_token.get_mut(&used.id) {
                times.written = times.written.max(minute_of(used.at));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The whole minutes from 1970 to an instant.
pub(super) fn minute_of(instant: Timestamp) -> i64 {
    instant.as_second().div_euclid(SECONDS_A_MINUTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::TokenLimits;
    use crate::tenant::usage::RateOutcome;

    #[test]
    fn a_token_in_use_is_written_at_first_and_then_every_pause_and_in_a_stop() {
        for (used, written, now, after_request, afterwards, all) in [
            (1000, i64::MIN, 1000, true, true, true),
            (1000, 1000, 1000, false, false, false),
            (1000, 1000, 1000 + 9 * PAUSE, false, false, false),
            (1000 + PAUSE - 1, 1000, 1000 + PAUSE - 1, false, false, true),
            (1000 + PAUSE, 1000, 1000 + PAUSE, true, false, true),
            (1001, 1000, 1000 + 2 * PAUSE - 1, true, false, true),
            (1001, 1000, 1000 + 2 * PAUSE, true, true, true),
        ] {
            let noted = UseTimes { used, written };
            let due = [Due::AfterRequest, Due::Afterwards, Due::All].map(|due| noted.is_due(due, now));
            assert_eq!(due, [after_request, afterwards, all], "{noted:?} at {now}");
        }
        assert!(!UseTimes::NEVER.is_due(Due::All, 1000));
    }

    #[test]
    fn a_use_that_is_stored_already_is_due_an_hour_later_and_due_once() {
        let usage = TokenUsage::default();
        let (last_used, at) = (LastUsed::default(), |minute| Timestamp::from_second(minute * 60 + 7).unwrap());
        let token = |stored_use| Token {
            id: 1,
            name: "one".into(),
            limits: TokenLimits::default(),
            expires_at: None,
            stored_use,
            noted: i64::MIN.into(),
        };
        let stored = token(Some(1000));
        for (minute, is_due) in [(1000, false), (1000 + PAUSE - 1, false), (1000 + PAUSE, true), (1000 + PAUSE, false)]
        {
            last_used.note(&stored, "me", None, &usage, at(minute));
            assert_eq!(last_used.becomes_due(), is_due, "{minute}");
        }
        // Another node wrote it.
        last_used.note(&token(Some(1000 + PAUSE)), "me", None, &usage, at(1001 + PAUSE));
        assert!(!last_used.becomes_due());
    }

    #[test]
    fn requests_that_have_waited_for_an_hour_are_written_after_the_next_one() {
        let (last_used, usage) = (LastUsed::default(), TokenUsage::default());
        let token = Token {
            id: 1,
            name: "one".into(),
            limits: TokenLimits::default(),
            expires_at: None,
            stored_use: Some(5000),
            noted: 0.into(),
        };
        let is_due = |minute| {
            let at = Timestamp::from_second(minute * 60).unwrap();
            usage.count(1, RateOutcome::Admitted, at);
            last_used.note(&token, "me", None, &usage, at);
            last_used.becomes_due()
        };
        let due: Vec<i64> = (1000..1000 + 2 * PAUSE).filter(|minute| is_due(*minute)).collect();
        assert_eq!(due.first(), Some(&(1000 + PAUSE)));
        assert!((1000 + PAUSE..1000 + 2 * PAUSE).eq(due), "until it is written");
    }

    #[test]
    fn a_connection_is_opened_once_an_hour() {
        let last_used = LastUsed::default();
        let may_open = [0, 1, PAUSE - 1, PAUSE, PAUSE + 1, 2 * PAUSE].map(|minute| last_used.may_open(1000 + minute));
        assert_eq!(may_open, [true, false, false, true, false, true]);
    }
}
