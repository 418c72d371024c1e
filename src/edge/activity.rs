//! What happens on a connection, and how long it may stay that way.
//!
//! Owns the clock of one connection. hyper's own header timeout also runs while a connection waits between two requests,
//! so it can't give a head ten seconds and a quiet connection sixty; and its HTTP/2 side knows no idle time at all.
//!
//! No timer is reset when something happens: [`Activity::outlook`] names the earliest instant at which anything could be
//! overdue, whatever happens until then, and is asked again at that instant.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::limits::Limits;

/// The state of one connection, shared by its socket, its requests and the task that ends it.
#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Requests that a handler works on.
    handling: usize,
    /// When the last handler finished, or the connection began.
    quiet_since: Instant,
    /// How far the next HTTP/1.1 head is; HTTP/2 leaves this at [`Head::None`].
    head: Head,
    /// When the peer last took a byte.
    wrote: Instant,
    /// Whether the peer ever asked something, so that there may be an answer that it still takes.
    asked: bool,
    /// When the last call was: the peer may still ask something, but not for long.
    last_call: Option<Instant>,
    /// When the connection was told to end.
    leaving_since: Option<Instant>,
    /// Whether the peer may have an answer to lose: not if it was told to end while nothing was going on.
    lingers: bool,
}

#[derive(Clone, Copy, Debug)]
enum Head {
    /// Between two requests, or handling one.
    None,
    /// The connection's first head, of which no byte has come.
    Awaited { since: Instant },
    /// Some of its bytes have come.
    Begun { since: Instant },
}

/// What the clock says about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Nothing is overdue; ask again then.
    Until(Instant),
    /// There was no request for too long: say goodbye.
    Idle,
    /// A head, or the goodbye, takes too long: cut.
    Stalled,
}

impl Activity {
    /// A connection that begins now.
    pub(super) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            handling: 0,
            quiet_since: now,
            head: Head::None,
            wrote: now,
            asked: false,
            last_call: None,
            leaving_since: None,
            lingers: true,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the first head of an HTTP/1.1 connection its time: a peer that never asks anything is no idle caller.
    pub(super) fn await_head(&self) {
        self.state().head = Head::Awaited { since: Instant::now() };
    }

    /// Notes the first byte of an HTTP/1.1 head; later bytes of it change nothing, and those of a body are no head.
    pub(super) fn head_began(&self) {
        let mut state = self.state();
        state.head = match state.head {
            Head::None if state.handling == 0 => Head::Begun { since: Instant::now() },
            Head::Awaited { since } => Head::Begun { since },
            head @ (Head::None | Head::Begun { .. }) => head,
        };
    }

    /// Notes that the peer took bytes.
    pub(super) fn wrote(&self) {
        self.state().wrote = Instant::now();
    }

    /// Notes that a request is handled until the guard is dropped.
    pub(super) fn handle(self: &Arc<Self>) -> Handling {
        let mut state = self.state();
        state.handling += 1;
        state.head = Head::None;
        (state.lingers, state.asked) = (true, true);
        Handling(Arc::clone(self))
    }

    /// Notes that the edge drains: what is not asked soon is not asked any more.
    pub(super) fn call_last(&self) {
        self.state().last_call = Some(Instant::now());
    }

    /// Notes that the connection was told to end.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.lingers = state.handling > 0 || matches!(state.head, Head::Begun { .. });
        state.leaving_since = Some(Instant::now());
    }

    /// Whether the peer may still be sending when the connection closes.
    pub(super) fn lingers(&self) -> bool {
        self.state().lingers
    }

    /// What is due, or when to ask again.
    pub(super) fn outlook(&self, limits: &Limits, now: Instant) -> Outlook {
        let state = self.state();
        // Nothing that begins after `now` is overdue before this.
        let shortest = match (state.last_call, state.leaving_since) {
            (Some(_), _) => limits.last_call.min(limits.farewell),
            (None, Some(_)) => limits.farewell,
            (None, None) => limits.head.min(limits.idle),
        };
        let earliest = now + shortest;
        if state.handling > 0 {
            return Outlook::Until(earliest);
        }
        let (due, overdue) = match (state.last_call, state.leaving_since, state.head) {
            // The rest of a head is not given the time here that callers on a bad link get elsewhere.
            (Some(called), _, Head::Begun { since }) => {
                ((called + limits.last_call).min(since + limits.head), Outlook::Stalled)
            }
            (Some(_), None, Head::None | Head::Awaited { .. }) => (state.quiet_since + limits.last_call, Outlook::Idle),
            // Nothing is under way but the goodbye.
            (Some(_), Some(left), Head::None) if !state.asked => (left + limits.last_call, Outlook::Stalled),
            (_, _, Head::Awaited { since } | Head::Begun { since }) => (since + limits.head, Outlook::Stalled),
            (_, Some(left), Head::None) => {
                (left.max(state.quiet_since).max(state.wrote) + limits.farewell, Outlook::Stalled)
            }
            (None, None, Head::None) => (state.quiet_since + limits.idle, Outlook::Idle),
        };
        if due <= now { overdue } else { Outlook::Until(due.min(earliest)) }
    }
}

/// A request is being handled; dropping this, also when the peer gave the request up, ends that.
#[derive(Debug)]
pub(super) struct Handling(Arc<Activity>);

impl Drop for Handling {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.handling -= 1;
        state.quiet_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_state_of_a_connection_has_its_own_time() {
        let limits = Limits::default();
        let activity = Activity::new(Instant::now());
        let assert_overdue_after = |limit: Duration, expected: Outlook| {
            let due = Instant::now() + limit;
            let before = activity.outlook(&limits, due - Duration::from_secs(1));
            assert!(matches!(before, Outlook::Until(then) if then <= due), "{before:?}");
            assert_eq!(activity.outlook(&limits, due), expected);
        };
        activity.await_head();
        assert_overdue_after(limits.head, Outlook::Stalled);
        activity.head_began();
        assert_overdue_after(limits.head, Outlook::Stalled);
        let (first, second) = (activity.handle(), activity.handle());
        drop(first);
        let long = Instant::now() + 100 * limits.idle;
        assert!(matches!(activity.outlook(&limits, long), Outlook::Until(then) if then > long));
        drop(second);
        assert_overdue_after(limits.idle, Outlook::Idle);
        activity.leave();
        assert!(!activity.lingers(), "nothing was going on");
        assert_overdue_after(limits.farewell, Outlook::Stalled);
    }

    #[test]
    fn a_stop_waits_for_what_was_asked_and_shortly_for_what_may_be() {
        let limits = Limits::default();
        let (second, now) = (Duration::from_secs(1), Instant::now());
        assert_eq!(limits.last_call, second);
        let later = |seconds: u32| Instant::now() + seconds * second;
        let called = |since: Instant| {
            let activity = Activity::new(since);
            activity.await_head();
            activity.call_last();
            activity
        };
        assert_eq!(called(now - second).outlook(&limits, Instant::now()), Outlook::Idle, "quiet for long enough");
        let young = called(now);
        assert!(matches!(young.outlook(&limits, Instant::now()), Outlook::Until(_)));
        assert_eq!(young.outlook(&limits, later(1)), Outlook::Idle);

        young.head_began();
        assert_eq!(young.outlook(&limits, later(1)), Outlook::Stalled, "a head that is dripped in");
        let handling = young.handle();
        assert!(matches!(young.outlook(&limits, later(1000)), Outlook::Until(_)));
        drop(handling);
        assert_eq!(young.outlook(&limits, later(1)), Outlook::Idle);

        let http_2 = Activity::new(now);
        http_2.call_last();
        http_2.leave();
        assert_eq!(http_2.outlook(&limits, later(1)), Outlook::Stalled, "it never asked and takes no goodbye");
        drop(http_2.handle());
        assert!(matches!(http_2.outlook(&limits, later(1)), Outlook::Until(_)), "it may have an answer to take");
        assert_eq!(http_2.outlook(&limits, later(5)), Outlook::Stalled);
    }

    #[test]
    fn it_is_asked_again_before_anything_that_may_begin_is_overdue() {
        let limits = Limits::default();
        let now = Instant::now();
        let activity = Activity::new(now);
        assert_eq!(activity.outlook(&limits, now), Outlook::Until(now + limits.head.min(limits.idle)));
    }
}
