//! Which authority is asked: the first that CAA allows and that works.
//!
//! Five faults of an authority within ten minutes switch to the next, for ten minutes; a fault of a host never does. Each
//! node counts on its own, so a node that can't reach an authority does not keep the others from it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many faults switch to the next authority.
///
/// Larger: certificates are late by as many tries. Smaller: a fault that passes moves orders to another authority.
const FAULTS: usize = 5;

/// Within which time, and for which time the next one is asked.
///
/// Larger: an authority that is back is asked later. Smaller: faults that are rare in between never switch.
const PERIOD: Duration = Duration::from_mins(10);

/// The faults of each authority.
#[derive(Debug)]
pub(super) struct Breakers(Vec<Mutex<VecDeque<Instant>>>);

impl Breakers {
    pub(super) fn new(authorities: usize) -> Self {
        Self((0..authorities).map(|_| Mutex::default()).collect())
    }

    /// The first of these authorities that works, or the first of all if none does.
    pub(super) fn choose(&self, allowed: &[usize]) -> Option<usize> {
        let now = Instant::now();
        allowed.iter().copied().find(|at| !self.is_open(*at, now)).or_else(|| allowed.first().copied())
    }

    /// Whether an authority is passed over.
    pub(super) fn is_open(&self, authority: usize, now: Instant) -> bool {
        let mut faults = self.0[authority].lock().unwrap_or_else(PoisonError::into_inner);
        while faults.front().is_some_and(|at| now.duration_since(*at) >= PERIOD) {
            faults.pop_front();
        }
        faults.len() >= FAULTS
    }

    /// Counts a fault of an authority. Returns whether it is passed over from now on.
    pub(super) fn note_fault(&self, authority: usize) -> bool {
        let now = Instant::now();
        let was_open = self.is_open(authority, now);
        let mut faults = self.0[authority].lock().unwrap_or_else(PoisonError::into_inner);
        faults.push_back(now);
        faults.truncate(FAULTS);
        drop(faults);
        !was_open && self.is_open(authority, now)
    }

    /// An authority answered as it should.
    pub(super) fn note_success(&self, authority: usize) {
        self.0[authority].lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_faults_switch_to_the_next_authority_until_the_first_answers() {
        let breakers = Breakers::new(2);
        for fault in 1..=FAULTS {
            assert_eq!(breakers.choose(&[0, 1]), Some(0));
            assert_eq!(breakers.note_fault(0), fault == FAULTS);
        }
        assert_eq!(breakers.choose(&[0, 1]), Some(1));
        assert_eq!(breakers.choose(&[0]), Some(0), "CAA allows no other");
        assert_eq!(breakers.choose(&[]), None);
        assert!(!breakers.is_open(0, Instant::now() + PERIOD), "it is asked again");
        breakers.note_success(0);
        assert_eq!(breakers.choose(&[0, 1]), Some(0));
    }
}
