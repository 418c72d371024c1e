//! A sliding window in this process: the instants of the requests that still count.
//!
//! It is a log rather than a counter, since only a log is exact: counters of fixed or weighted windows admit up to
//! twice the limit in some span, or refuse requests that should pass. Sixty requests take one kilobyte. The caller
//! owns the clock: every method takes `now` and the window's `span`, in microseconds.

use std::collections::VecDeque;

use super::usage::{Share, Shares, Usage};

/// The admissions of one account, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window {
    admitted: VecDeque<Admission>,
    /// Admissions by token, so that a report costs time per token instead of per request. An account is rarely in the
    /// CPU cache when a request needs it; an inline list costs at most one cache miss.
    by_token: Shares,
}

/// One admitted request.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at: u64,
    token: u32,
}

impl Window {
    /// Admits a request and returns how many more would be admitted, or the time until one can be.
    pub(super) fn admit(&mut self, now: u64, span: u64, limit: u32, token: u32) -> Result<u32, u64> {
        if let Some(wait) = self.wait(now, span, limit) {
            return Err(wait);
        }
        self.push(Admission { at: now, token });
        Ok(self.places(limit))
    }

    /// The time until a request can be admitted; `None` if one can be now.
    pub(super) fn wait(&mut self, now: u64, span: u64, limit: u32) -> Option<u64> {
        self.forget(now, span);
        // The request that must leave before there is room. If the limit was lowered, this is not the oldest.
        let last = self.admitted.len().checked_sub(limit as usize)?;
        Some(self.admitted[last].at + span + 1 - now)
    }

    /// Records a request that was admitted elsewhere. Only the newest `limit` requests decide about the next one;
    /// older ones are dropped, so the window can't grow without bound.
    pub(super) fn note(&mut self, now: u64, span: u64, limit: u32, token: u32) {
        self.forget(now, span);
        self.push(Admission { at: now, token });
        while self.admitted.len() > limit as usize {
            self.pop();
        }
    }

    /// The time until this number of requests can be admitted together; `None` if they can be now.
    pub(super) fn wait_for(&mut self, now: u64, span: u64, limit: u32, places: u32) -> Option<u64> {
        // The same as waiting for one place in a window that is smaller by the other places.
        self.wait(now, span, (limit + 1).saturating_sub(places).max(1))
    }

    /// Takes back the oldest request of a token, so that no span counts fewer than were admitted in it.
    pub(super) fn take_back(&mut self, token: u32) {
        let Some(at) = self.admitted.iter().position(|admission| admission.token == token) else { return };
        self.admitted.remove(at);
        self.uncount(token);
    }

    /// Which tokens used the window.
    pub(super) fn usage(&mut self, now: u64, span: u64) -> Usage {
        self.forget(now, span);
        Usage::counted(self.by_token.clone())
    }

    /// Whether no request counts any more.
    pub(super) fn is_empty(&mut self, now: u64, span: u64) -> bool {
        self.forget(now, span);
        self.admitted.is_empty()
    }

    /// How many requests would be admitted now.
    pub(super) fn remaining(&mut self, now: u64, span: u64, limit: u32) -> u32 {
        self.forget(now, span);
        self.places(limit)
    }

    fn places(&self, limit: u32) -> u32 {
        limit.saturating_sub(u32::try_from(self.admitted.len()).unwrap_or(u32::MAX))
    }

    /// Drops requests older than the span. A request counts until its age exceeds the span: instants are truncated to
    /// whole microseconds, so an age of exactly the span may really be less.
    fn forget(&mut self, now: u64, span: u64) {
        while self.admitted.front().is_some_and(|oldest| now.saturating_sub(oldest.at) > span) {
            self.pop();
        }
    }

    fn push(&mut self, admission: Admission) {
        self.admitted.push_back(admission);
        match self.place_of(admission.token) {
            Ok(place) => self.by_token[place].requests += 1,
            Err(place) => self.by_token.insert(place, Share { token: admission.token, requests: 1 }),
        }
    }

    fn pop(&mut self) {
        let Some(Admission { token, .. }) = self.admitted.pop_front() else { return };
        self.uncount(token);
    }

    fn uncount(&mut self, token: u32) {
        let place = self.place_of(token).expect("what is admitted is counted");
        self.by_token[place].requests -= 1;
        if self.by_token[place].requests == 0 {
            self.by_token.remove(place);
        }
    }

    fn place_of(&self, token: u32) -> Result<usize, usize> {
        self.by_token.binary_search_by_key(&token, |share| share.token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: how many of these instants are at most one span old.
    fn counted(admitted: &[u64], now: u64, span: u64) -> usize {
        admitted.iter().filter(|&&at| now - at <= span).count()
    }

    proptest! {
        #[test]
        fn a_window_admits_exactly_what_the_definition_does(
            span in 1u64..200,
            limit in 1u32..8,
            steps in prop::collection::vec(0u64..60, 1..300),
        ) {
            let (mut window, mut admitted, mut now) = (Window::default(), Vec::new(), 0);
            for step in steps {
                now += step;
                let used = counted(&admitted, now, span);
                let remaining = window.remaining(now, span, limit);
                prop_assert_eq!(remaining as usize, limit as usize - used);
                let live = admitted.iter().filter(|&&at| now - at <= span).map(|at| u32::from(at % 2 == 0));
                prop_assert_eq!(window.usage(now, span), Usage::of(live));
                match window.admit(now, span, limit, u32::from(now % 2 == 0)) {
                    Ok(left) => {
                        admitted.push(now);
                        prop_assert_eq!(left + 1, remaining);
                    }
                    Err(wait) => {
                        prop_assert_eq!(used, limit as usize);
                        prop_assert_eq!(counted(&admitted, now + wait - 1, span), limit as usize, "a moment before, it is full");
                        prop_assert!(counted(&admitted, now + wait, span) < limit as usize, "after the wait, there is room");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_noted_beyond_the_limit_makes_room_for_the_newest() {
        let mut window = Window::default();
        for now in 0..100 {
            window.note(now, 1000, 4, u32::from(now >= 98));
        }
        assert_eq!(window.admitted.len(), 4);
        assert_eq!(window.usage(99, 1000), Usage::of([0, 0, 1, 1]));
        assert_eq!(window.admit(99, 1000, 4, 1), Err(96 + 1000 + 1 - 99));
    }

    #[test]
    fn several_places_are_waited_for_together_and_one_is_given_back() {
        let mut window = Window::default();
        for now in [0, 10, 20, 30] {
            window.note(now, 100, 6, u32::from(now >= 20));
        }
        assert_eq!(window.wait_for(40, 100, 6, 2), None);
        assert_eq!(window.wait_for(40, 100, 6, 3), Some(100 + 1 - 40), "until the first one has left");
        assert_eq!(window.wait_for(40, 100, 6, 6), Some(30 + 100 + 1 - 40), "until all have");
        window.take_back(1);
        assert_eq!(window.usage(40, 100), Usage::of([0, 0, 1]));
        assert_eq!(window.wait_for(40, 100, 6, 3), None);
        window.take_back(7);
        assert_eq!(window.remaining(40, 100, 6), 3);
    }

    #[test]
    fn a_lowered_limit_waits_until_enough_have_left() {
        let mut window = Window::default();
        for now in [0, 10, 20, 30] {
            window.note(now, 100, 4, 1);
        }
        assert_eq!(window.admit(40, 100, 2, 1), Err(20 + 100 + 1 - 40));
        assert_eq!(window.remaining(40, 100, 2), 0);
    }
}
