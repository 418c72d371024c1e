//! Which CAs are asked: those that CAA allows and that work, in the order of the configuration.
//!
//! Five faults of a CA within ten minutes open its breaker: it is skipped for ten minutes. Then it is asked again, and its
//! first response decides: a fault opens the breaker for another ten minutes, a usable response closes it. A fault of a host
//! never counts. Each node counts on its own, so a node that can't reach a CA does not keep the others from it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many faults switch to the next CA.
///
/// Larger: certificates are late by as many tries. Smaller: a short outage moves orders to another CA.
const FAULTS: usize = 5;

/// Within which time the faults count, and for how long the next CA is asked.
///
/// Larger: a CA that works again is asked later. Smaller: faults between which some requests succeed never switch.
const PERIOD: Duration = Duration::from_mins(10);

/// The breakers of the CAs.
#[derive(Debug)]
pub(super) struct Breakers(Vec<Mutex<Breaker>>);

/// The breaker of one CA.
#[derive(Debug, Default)]
struct Breaker {
    /// The faults since it last opened, or since the last usable response.
    faults: VecDeque<Instant>,
    /// When it opened, until a usable response closes it.
    opened_at: Option<Instant>,
}

impl Breakers {
    pub(super) fn new(authorities: usize) -> Self {
        Self((0..authorities).map(|_| Mutex::default()).collect())
    }

    /// The working ones of these CAs, or the first of all if none works.
    pub(super) fn working(&self, allowed: &[usize], now: Instant) -> Vec<usize> {
        let working: Vec<_> = allowed.iter().copied().filter(|at| !self.is_open(*at, now)).collect();
        if working.is_empty() { allowed.first().copied().into_iter().collect() } else { working }
    }

    /// Whether a CA is skipped.
    pub(super) fn is_open(&self, authority: usize, now: Instant) -> bool {
        self.open_for(authority, now).is_some()
    }

    /// For how long a CA is skipped, if it is.
    pub(super) fn open_for(&self, authority: usize, now: Instant) -> Option<Duration> {
        self.breaker(authority).open_for(now)
    }

    /// Counts a fault of a CA. Returns whether it is skipped from now on.
    pub(super) fn note_fault(&self, authority: usize, now: Instant) -> bool {
        let mut breaker = self.breaker(authority);
        if breaker.open_for(now).is_some() {
            // The request was sent before.
            return false;
        }
        breaker.faults.retain(|at| now.saturating_duration_since(*at) < PERIOD);
        breaker.faults.push_back(now);
        if breaker.opened_at.is_none() && breaker.faults.len() < FAULTS {
            return false;
        }
        *breaker = Breaker { faults: VecDeque::new(), opened_at: Some(now) };
        true
    }

    /// A CA responded as it should.
    pub(super) fn note_success(&self, authority: usize) {
        *self.breaker(authority) = Breaker::default();
    }

    fn breaker(&self, authority: usize) -> MutexGuard<'_, Breaker> {
        self.0[authority].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Breaker {
    fn open_for(&self, now: Instant) -> Option<Duration> {
        PERIOD.checked_sub(now.saturating_duration_since(self.opened_at?)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// Two CAs: the first has had five faults, a minute apart. Returns when the last one was.
    fn opened() -> (Breakers, Instant) {
        let (breakers, began) = (Breakers::new(2), Instant::now());
        for fault in 0..5 {
            let now = began + MINUTE * fault;
            assert_eq!(breakers.working(&[0, 1], now), [0, 1]);
            assert_eq!(breakers.note_fault(0, now), fault == 4);
        }
        (breakers, began + MINUTE * 4)
    }

    #[test]
    fn five_faults_switch_to_the_next_authority_for_ten_minutes_from_the_last_of_them() {
        let (breakers, opened) = opened();
        assert_eq!(breakers.working(&[0, 1], opened), [1]);
        assert_eq!(breakers.working(&[0], opened), [0], "CAA allows no other");
        assert!(breakers.working(&[], opened).is_empty());
        // Ten minutes after the first fault, and not yet ten after the last.
        assert!(breakers.is_open(0, opened + MINUTE * 6));
        assert!(!breakers.note_fault(0, opened + MINUTE * 9), "a late response opens it no further");
        assert_eq!(breakers.open_for(0, opened + MINUTE * 9), Some(MINUTE));
        assert_eq!(breakers.working(&[0, 1], opened + MINUTE * 10), [0, 1], "the way back");
    }

    #[test]
    fn the_first_answer_after_ten_minutes_decides() {
        let (breakers, opened) = opened();
        let again = opened + MINUTE * 11;
        assert!(breakers.note_fault(0, again), "one fault is enough");
        assert_eq!(breakers.open_for(0, again), Some(PERIOD));
        let back = again + MINUTE * 10;
        breakers.note_success(0);
        assert!(!breakers.note_fault(0, back), "it takes five faults again");
        assert_eq!(breakers.working(&[0, 1], back), [0, 1]);
    }

    #[test]
    fn faults_that_are_rare_never_switch() {
        let (breakers, began) = (Breakers::new(1), Instant::now());
        for fault in 0..50 {
            assert!(!breakers.note_fault(0, began + MINUTE * 3 * fault));
        }
    }
}
