//! How many requests a session may make on this node.
//!
//! A script that was left running with a cookie must not keep the account's database busy. Sessions are counted by
//! their cookies' digests, and only once the database confirmed one, so invented cookies take no memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Refusal;

/// How many requests a session may make in a window. Larger: a script with a cookie costs more. Smaller: an
/// administrator who opens many pages is stopped.
const MAX_REQUESTS: u32 = 120;

/// The window: a minute.
const WINDOW: Duration = Duration::from_secs(60);

/// How many sessions are counted. Larger: about 100 bytes each. Smaller: some of very many sessions are not limited.
const MAX_SESSIONS: usize = 20_000;

/// The requests of every session in its window.
#[derive(Debug, Default)]
pub(super) struct SessionRates(Mutex<HashMap<[u8; 32], SessionWindow>>);

#[derive(Debug)]
struct SessionWindow {
    began: Instant,
    requests: u32,
}

impl SessionRates {
    /// Refuses a session that used up its window. Counts nothing.
    pub(super) fn check(&self, session: &[u8; 32], now: Instant) -> Result<(), Refusal> {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(window) = windows.get(session) else { return Ok(()) };
        let left = WINDOW.saturating_sub(now.saturating_duration_since(window.began));
        let is_full = window.requests >= MAX_REQUESTS && !left.is_zero();
        if is_full { Err(Refusal::TooManyPages { wait: left }) } else { Ok(()) }
    }

    /// Counts a request of a session that exists.
    pub(super) fn count(&self, session: [u8; 32], now: Instant) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |window: &SessionWindow| now.saturating_duration_since(window.began) >= WINDOW;
        if windows.len() >= MAX_SESSIONS {
            windows.retain(|_, window| !is_over(window));
        }
        let has_room = windows.len() < MAX_SESSIONS;
        match windows.get_mut(&session) {
            Some(window) if is_over(window) => *window = SessionWindow { began: now, requests: 1 },
            Some(window) => window.requests += 1,
            None if has_room => drop(windows.insert(session, SessionWindow { began: now, requests: 1 })),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_a_number_of_requests_a_minute_and_others_have_theirs() {
        let (rates, now) = (SessionRates::default(), Instant::now());
        let take = |session: u8, after: u64| {
            let now = now + Duration::from_secs(after);
            rates.check(&[session; 32], now).map(|()| rates.count([session; 32], now)).is_ok()
        };
        assert!((0..MAX_REQUESTS).all(|_| take(1, 0)) && !take(1, 59) && take(2, 59));
        assert!((0..MAX_REQUESTS).all(|_| take(1, 60)) && !take(1, 60));
        let refused = rates.check(&[1; 32], now + Duration::from_secs(90)).unwrap_err();
        assert!(matches!(refused, Refusal::TooManyPages { wait } if wait == Duration::from_secs(30)), "{refused}");
    }
}
