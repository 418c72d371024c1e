//! What happens on a connection, and how long it may stay that way.
//!
//! Owns the clock of one connection, and the count of the bytes that serve no request. hyper's own header timeout also
//! runs while a connection waits between two requests, so it can't give a head ten seconds and a quiet connection sixty;
//! its HTTP/2 side knows no idle time at all, and neither side minds an answer that nobody takes.
//!
//! No timer is reset when something happens: [`Activity::outlook`] names the earliest instant at which anything could be
//! overdue, whatever happens until then, and is asked again at that instant.

mod abuse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) use self::abuse::Abuse;
use self::abuse::Bytes;
use super::parting::{Goaway, Parting};
use crate::config::ConnectionLimits;

/// The state of one connection, shared by its socket, its requests and the task that ends it.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    last_request: Notify,
    /// A [`Parting`], which is read with each write.
    parting: AtomicU8,
    limits: ConnectionLimits,
}

#[derive(Debug)]
struct State {
    began: Instant,
    /// Requests that came.
    requests: u64,
    /// Requests that a handler works on.
    handling: usize,
    /// When some of an answer was last sent, a handler finished, or the connection began. What else is written, as to
    /// a PING, does not count.
    quiet_since: Instant,
    /// How far the next HTTP/1.1 head is; HTTP/2 leaves this at [`Head::None`].
    head: Head,
    /// Whether the peer ever asked something, so that there may be an answer that it still takes.
    asked: bool,
    /// When the last call was: the peer may still ask something, but not for long.
    last_call: Option<Instant>,
    /// Since when the peer's side of the socket takes nothing of what we have for it.
    blocked_since: Option<Instant>,
    /// The HTTP/2 answers that are begun and not ended, and when each last had a byte sent.
    answers: HashMap<u32, Instant>,
    /// Whether the connection is too old, or had too many requests, for another one.
    worn: bool,
    /// When the peer was warned by a GOAWAY, after which it may still finish.
    warned_since: Option<Instant>,
    /// When the connection was told to end.
    leaving_since: Option<Instant>,
    /// How long the peer may take for its next bytes once our half is closed. None where it has no answer to lose: it was
    /// told to end while nothing was going on.
    linger: Option<Duration>,
    /// Whether our half of the connection is closed.
    closed: bool,
    goaway: Goaway,
    bytes: Bytes,
    abuse: Option<Abuse>,
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
    /// The peer was warned, and has had its time to finish: say goodbye.
    Warned,
    /// The connection had its time, or its requests: say goodbye.
    Worn,
    /// A head, an answer that is not taken, or the goodbye, takes too long: cut.
    Stalled,
}

impl State {
    /// How long it may stay as it is while nothing is handled and all answers are taken.
    fn silence_ends(&self, limits: &ConnectionLimits) -> (Instant, Outlook) {
        if let (Some(warned), None) = (self.warned_since, self.leaving_since) {
            // A request that the peer sent before it read the warning arrives within a round trip or two.
            return (warned.max(self.quiet_since) + limits.last_call, Outlook::Warned);
        }
        match (self.last_call, self.leaving_since, self.head) {
            // The rest of a head is not given the time here that callers on a bad link get elsewhere.
            (Some(called), _, Head::Begun { since }) => {
                ((called + limits.last_call).min(since.max(self.quiet_since) + limits.head), Outlook::Stalled)
            }
            (Some(_), None, Head::None | Head::Awaited { .. }) => (self.quiet_since + limits.last_call, Outlook::Idle),
            // Nothing is under way but the goodbye.
            (Some(_), Some(left), Head::None) if !self.asked => (left + limits.last_call, Outlook::Stalled),
            (_, _, Head::Awaited { since } | Head::Begun { since }) => {
                (since.max(self.quiet_since) + limits.head, Outlook::Stalled)
            }
            (_, Some(left), Head::None) => (left.max(self.quiet_since) + limits.farewell, Outlook::Stalled),
            (None, None, Head::None) => (self.quiet_since + limits.idle, Outlook::Idle),
        }
    }

    fn end_for(&mut self, abuse: Abuse) {
        self.abuse = Some(abuse);
        // What it still sends is not worth reading.
        self.linger = None;
    }
}

impl Activity {
    /// A connection that begins now.
    pub(super) fn new(now: Instant, limits: ConnectionLimits) -> Arc<Self> {
        let state = Mutex::new(State {
            began: now,
            requests: 0,
            handling: 0,
            quiet_since: now,
            head: Head::None,
            asked: false,
            last_call: None,
            blocked_since: None,
            answers: HashMap::new(),
            worn: false,
            warned_since: None,
            leaving_since: None,
            linger: Some(limits.linger),
            closed: false,
            goaway: Goaway::Unknown,
            bytes: Bytes::default(),
            abuse: None,
        });
        Arc::new(Self { state, last_request: Notify::new(), parting: AtomicU8::new(Parting::None as u8), limits })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the first head of an HTTP/1.1 connection its time: a peer that never asks anything is no idle caller.
    pub(super) fn await_head(&self) {
        self.state().head = Head::Awaited { since: Instant::now() };
    }

    /// Notes that some of an HTTP/1.1 head has come.
    pub(super) fn head_began(&self) {
        let mut state = self.state();
        state.head = match state.head {
            Head::None => Head::Begun { since: Instant::now() },
            Head::Awaited { since } | Head::Begun { since } => Head::Begun { since },
        };
    }

    /// Notes that a head is whole.
    pub(super) fn head_ended(&self) {
        self.state().head = Head::None;
    }

    /// Notes bytes of a request's head or body.
    pub(super) fn asked(&self, bytes: usize) {
        self.state().bytes.asked += bytes as u64;
    }

    /// The same where a head is whole with them.
    pub(super) fn asked_with_head(&self, bytes: usize) {
        let mut state = self.state();
        state.head = Head::None;
        state.bytes.asked += bytes as u64;
    }

    /// Notes bytes of an answer.
    pub(super) fn answered(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes.answered += bytes as u64;
        state.quiet_since = Instant::now();
    }

    /// Notes bytes as they come from the socket, whatever they are.
    ///
    /// # Errors
    /// [`Abuse::Flood`] when too many of them belonged to no request.
    pub(super) fn received(&self, bytes: usize) -> Result<(), Abuse> {
        let mut state = self.state();
        state.bytes.received += bytes as u64;
        if state.bytes.are_too_many(&self.limits) {
            state.end_for(Abuse::Flood);
            return Err(Abuse::Flood);
        }
        Ok(())
    }

    /// Notes what the peer does; the caller cuts the connection.
    pub(super) fn abused(&self, abuse: Abuse) {
        self.state().end_for(abuse);
    }

    /// What the peer did to have its connection cut.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.state().abuse
    }

    /// Notes that the peer took bytes.
    pub(super) fn wrote(&self) {
        self.state().blocked_since = None;
    }

    /// Notes that the peer takes none of the bytes that there are.
    pub(super) fn blocked(&self) {
        self.state().blocked_since.get_or_insert_with(Instant::now);
    }

    /// Notes that some of an HTTP/2 answer was sent and more is to come.
    pub(super) fn answering(&self, stream: u32) {
        self.state().answers.insert(stream, Instant::now());
    }

    /// Notes that an HTTP/2 answer ended, or that nobody waits for it.
    pub(super) fn answer_ended(&self, stream: u32) {
        let mut state = self.state();
        if state.answers.remove(&stream).is_some() {
            state.quiet_since = Instant::now();
        }
    }

    /// Notes that a request is handled until the guard is dropped.
    pub(super) fn handle(self: &Arc<Self>) -> Handling {
        let mut state = self.state();
        state.handling += 1;
        (state.linger, state.asked) = (Some(self.limits.linger), true);
        state.requests += 1;
        let has_had_its_share = state.requests >= self.limits.requests || state.began.elapsed() >= self.limits.age;
        // In a drain, the first HTTP/2 request is the last. HTTP/1.1 has `Connection: close` for that.
        if has_had_its_share || (state.last_call.is_some() && state.goaway != Goaway::Unknown) {
            state.worn = true;
            self.part_with_response(&state);
            self.last_request.notify_one();
        }
        Handling { activity: Arc::clone(self), is_last: state.worn }
    }

    /// Whether the connection ended with the response to its last request.
    pub(super) fn ended_worn(&self) -> bool {
        let state = self.state();
        state.worn && state.warned_since.or(state.leaving_since).is_none()
    }

    /// Ready once a request came that is to be the last; then the outlook is another.
    pub(super) async fn last_request(&self) {
        self.last_request.notified().await;
    }

    /// Notes that the edge drains: what is not asked soon is not asked any more.
    pub(super) fn call_last(&self) {
        let mut state = self.state();
        state.last_call = Some(Instant::now());
        self.part_with_response(&state);
    }

    /// Before the response is written, so that the GOAWAY reaches the peer together with it.
    fn part_with_response(&self, state: &State) {
        if state.goaway == Goaway::Last && state.leaving_since.is_none() {
            self.parting.store(Parting::WithResponse as u8, Ordering::Release);
        }
    }

    /// Begins to end the connection, with a warning first if the peer can use one.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        if state.goaway == Goaway::Warning && state.warned_since.is_none() {
            state.warned_since = Some(Instant::now());
            self.parting.store(Parting::Warning as u8, Ordering::Release);
            return;
        }
        let is_idle = state.handling == 0 && state.answers.is_empty() && !matches!(state.head, Head::Begun { .. });
        // Some peers learn of their end only when they send the next request, which must not meet a closed socket.
        let is_unaware = state.goaway == Goaway::Last && state.asked;
        state.linger = match (is_idle, is_unaware, state.last_call) {
            (false, ..) => Some(self.limits.linger),
            (true, true, None) => Some(self.limits.linger_total),
            (true, true, Some(_)) => Some(self.limits.last_call),
            (true, false, _) => None,
        };
        state.leaving_since = Some(Instant::now());
        self.parting.store(Parting::Now as u8, Ordering::Release);
    }

    /// Notes what the peer makes of a GOAWAY.
    pub(super) fn takes_goaway(&self, goaway: Goaway) {
        self.state().goaway = goaway;
    }

    /// What the peer makes of a GOAWAY.
    pub(super) fn goaway(&self) -> Goaway {
        self.state().goaway
    }

    /// Which GOAWAY the connection is due.
    pub(super) fn parting(&self) -> Parting {
        Parting::of(self.parting.load(Ordering::Acquire))
    }

    /// Whether an HTTP/2 answer was begun and did not end.
    pub(super) fn is_answering(&self) -> bool {
        !self.state().answers.is_empty()
    }

    /// Notes that our half of the connection is closed; how long the peer's next bytes are waited for, if at all.
    pub(super) fn closed(&self) -> Option<Duration> {
        let mut state = self.state();
        state.closed = true;
        state.linger
    }

    /// What is due, or when to ask again.
    pub(super) fn outlook(&self, now: Instant) -> Outlook {
        let (state, limits) = (self.state(), &self.limits);
        if state.closed && state.last_call.is_none() {
            // The socket limits how long it lingers.
            return Outlook::Until(now + limits.linger);
        }
        let told = state.leaving_since.or(state.warned_since);
        // The response to its last request ends a connection whose GOAWAY comes with it.
        if state.worn && told.is_none() && state.goaway != Goaway::Last {
            return Outlook::Worn;
        }
        if let (Some(warned), None) = (state.warned_since, state.leaving_since)
            && now >= warned + limits.farewell
        {
            return Outlook::Warned;
        }
        // An answer of which the peer takes nothing, whether or not a handler works on another.
        let (patience, since) = match told.or(state.last_call) {
            Some(told) => (limits.farewell.min(limits.write), told),
            None => (limits.write, state.began),
        };
        let untaken = state.blocked_since.iter().chain(state.answers.values()).min();
        let untaken = untaken.map(|&taken| (taken.max(since) + patience, Outlook::Stalled));
        // Nothing that begins after `now` is overdue before this.
        let shortest = match (state.last_call.or(state.warned_since), state.leaving_since) {
            (Some(_), _) => limits.last_call,
            (None, Some(_)) => limits.farewell,
            (None, None) => limits.head.min(limits.idle),
        };
        let earliest = now + shortest.min(patience);
        let due = untaken.or_else(|| (state.handling == 0).then(|| state.silence_ends(limits)));
        match due {
            Some((due, overdue)) if due <= now => overdue,
            Some((due, _)) => Outlook::Until(due.min(earliest)),
            None => Outlook::Until(earliest),
        }
    }
}

/// A request is being handled; dropping this, also when the peer gave the request up, ends that.
#[derive(Debug)]
pub(super) struct Handling {
    activity: Arc<Activity>,
    is_last: bool,
}

impl Handling {
    /// Whether the connection should take no request after this one.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.handling -= 1;
        state.quiet_since = Instant::now();
    }
}
