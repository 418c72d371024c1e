//! A sliding window in this process: the instants of the requests that it still counts.
//!
//! A log and not a counter, since only a log is exact: counters of fixed or weighted windows admit up to twice the
//! limit in some span, or refuse what should pass. Sixty requests are a kilobyte. The clock is the caller's: every
//! method takes `now` and the window's `span`, in microseconds.

use std::collections::VecDeque;

use super::usage::{Share, Shares, Usage};

/// The admissions of one account, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window {
    admitted: VecDeque<Admission>,
    /// How many of them each token made, by token: report that costs what there are tokens, not what there are requests.
    /// An account that is asked for rarely has all of this out of the cache: a list is at most one place to fetch.
    by_token: Shares,
}

/// One admitted request.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at: u64,
    token: u32,
}

impl Window {
    /// Admits a request and returns how many more would be, or how long until one can be.
    pub(super) fn admit(&mut self, now: u64, span: u64, limit: u32, token: u32) -> Result<u32, u64> {
        self.forget(now, span);
        let (used, limit) = (self.admitted.len(), limit as usize);
        if used >= limit {
            // The request that must leave before there is room: not the oldest where the limit was lowered.
            return Err(self.admitted[used - limit].at + span + 1 - now);
        }
        self.push(Admission { at: now, token });
        Ok(u32::try_from(limit - used - 1).expect("no more than the limit"))
    }

    /// Counts a request that was admitted without being asked. Of more than the limit, only the newest decide about the
    /// next: the others are let go, so that a window that nobody limits does not grow.
    pub(super) fn note(&mut self, now: u64, span: u64, limit: u32, token: u32) {
        self.forget(now, span);
        self.push(Admission { at: now, token });
        while self.admitted.len() > limit as usize {
            self.pop();
        }
    }

    /// Who used the window.
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
        limit.saturating_sub(u32::try_from(self.admitted.len()).unwrap_or(u32::MAX))
    }

    /// Drops what is older than the span. An admission counts until its age is more than the span: instants are cut to
    /// whole microseconds, so that an age of exactly the span may in truth be less.
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

    /// The definition, in the plainest words: how many of these instants are at most a span old.
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
    fn a_lowered_limit_waits_until_enough_have_left() {
        let mut window = Window::default();
        for now in [0, 10, 20, 30] {
            window.note(now, 100, 4, 1);
        }
        assert_eq!(window.admit(40, 100, 2, 1), Err(20 + 100 + 1 - 40));
        assert_eq!(window.remaining(40, 100, 2), 0);
    }
}
