//! The state of a connection, and how long it may stay in it.
//!
//! Owns the clock of one connection and the count of bytes that belong to no request. hyper's header timeout also
//! runs between two requests, so it can't allow ten seconds for a head and sixty for an idle connection. hyper has
//! no idle timeout for HTTP/2, and for neither version a timeout for responses that the peer does not read.
//!
//! No timer is reset when something happens. Instead, [`Activity::outlook`] returns the earliest instant at which
//! anything could be overdue, whatever happens until then, and is called again at that instant.

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
use super::goaway::{Goaway, Parting};
use crate::config::ConnectionLimits;

/// The state of one connection, shared by its socket, its requests and the task that ends it.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    last_request: Notify,
    /// A [`Parting`]. Atomic, because every write reads it.
    parting: AtomicU8,
    limits: ConnectionLimits,
}

#[derive(Debug)]
struct State {
    began: Instant,
    /// The number of requests so far.
    requests: u64,
    /// The number of requests that a handler is working on.
    handling: usize,
    /// When part of a response was last sent, a handler finished, or the connection began. Other writes, such as
    /// PING acknowledgements, do not count.
    quiet_since: Instant,
    /// The progress of the next HTTP/1.1 head; always [`Head::None`] in HTTP/2.
    head: Head,
    /// Whether the peer has sent a request, so that it may still be reading a response.
    asked: bool,
    /// When the edge began to drain. The peer may still send a request for a short time.
    last_call: Option<Instant>,
    /// Since when the socket has accepted no bytes because the peer reads none.
    blocked_since: Option<Instant>,
    /// The HTTP/2 responses in progress, by stream, and when a byte of each was last sent.
    answers: HashMap<u32, Instant>,
    /// Whether the connection has reached its maximum age or number of requests.
    worn: bool,
    /// When a GOAWAY warned the peer, which may still finish after that.
    warned_since: Option<Instant>,
    /// When the shutdown of the connection began.
    leaving_since: Option<Instant>,
    /// How long to wait for the peer's next bytes once our half is closed. None if the peer has no response to
    /// lose: the connection was idle when its shutdown began.
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
    /// Waiting for the first byte of the connection's first head.
    Awaited { since: Instant },
    /// Part of the head has arrived.
    Begun { since: Instant },
}

/// What is due on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Nothing is overdue; ask again at this instant.
    Until(Instant),
    /// No request for too long: shut down gracefully.
    Idle,
    /// The peer was warned, and its time to finish is over: shut down gracefully.
    Warned,
    /// The connection has reached its maximum age or number of requests: shut down gracefully.
    Worn,
    /// A head, a response that the peer does not read, or the shutdown takes too long: cut.
    Stalled,
}

impl State {
    /// When the current state times out if no request is being handled and the peer has read all responses.
    fn silence_ends(&self, limits: &ConnectionLimits) -> (Instant, Outlook) {
        if let (Some(warned), None) = (self.warned_since, self.leaving_since) {
            // A request that the peer sent before it read the warning arrives within a round trip or two.
            return (warned.max(self.quiet_since) + limits.last_call, Outlook::Warned);
        }
        match (self.last_call, self.leaving_since, self.head) {
            // In a drain, a client on a bad link gets no extra time for the rest of a head.
            (Some(called), _, Head::Begun { since }) => {
                ((called + limits.last_call).min(since.max(self.quiet_since) + limits.head), Outlook::Stalled)
            }
            (Some(_), None, Head::None | Head::Awaited { .. }) => (self.quiet_since + limits.last_call, Outlook::Idle),
            // Nothing is in progress but the shutdown.
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
        // What the peer still sends is not worth reading.
        self.linger = None;
    }
}

impl Activity {
    /// The state of a connection that begins at `now`.
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

    /// Starts the timeout of an HTTP/1.1 connection's first head: a peer that never sends a request is not an idle
    /// client.
    pub(super) fn await_head(&self) {
        self.state().head = Head::Awaited { since: Instant::now() };
    }

    /// Records that part of an HTTP/1.1 head has arrived.
    pub(super) fn head_began(&self) {
        let mut state = self.state();
        state.head = match state.head {
            Head::None => Head::Begun { since: Instant::now() },
            Head::Awaited { since } | Head::Begun { since } => Head::Begun { since },
        };
    }

    /// Records that a head is complete.
    pub(super) fn head_ended(&self) {
        self.state().head = Head::None;
    }

    /// Counts bytes of a request's head or body.
    pub(super) fn asked(&self, bytes: usize) {
        self.state().bytes.asked += bytes as u64;
    }

    /// Like `asked`, for bytes that complete a head.
    pub(super) fn asked_with_head(&self, bytes: usize) {
        let mut state = self.state();
        state.head = Head::None;
        state.bytes.asked += bytes as u64;
    }

    /// Counts bytes of a response.
    pub(super) fn answered(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes.answered += bytes as u64;
        state.quiet_since = Instant::now();
    }

    /// Counts bytes as they arrive from the socket, whatever they are.
    ///
    /// # Errors
    /// [`Abuse::Flood`] if too many of them belonged to no request.
    pub(super) fn received(&self, bytes: usize) -> Result<(), Abuse> {
        let mut state = self.state();
        state.bytes.received += bytes as u64;
        if state.bytes.are_too_many(&self.limits) {
            state.end_for(Abuse::Flood);
            return Err(Abuse::Flood);
        }
        Ok(())
    }

    /// Records an abuse; the caller cuts the connection.
    pub(super) fn abused(&self, abuse: Abuse) {
        self.state().end_for(abuse);
    }

    /// The abuse for which the connection is cut.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.state().abuse
    }

    /// Records that the socket accepted bytes.
    pub(super) fn wrote(&self) {
        self.state().blocked_since = None;
    }

    /// Records that the socket accepts no bytes at present.
    pub(super) fn blocked(&self) {
        self.state().blocked_since.get_or_insert_with(Instant::now);
    }

    /// Records that part of an HTTP/2 response was sent and more follows.
    pub(super) fn answering(&self, stream: u32) {
        self.state().answers.insert(stream, Instant::now());
    }

    /// Records that an HTTP/2 response ended or was reset.
    pub(super) fn answer_ended(&self, stream: u32) {
        let mut state = self.state();
        if state.answers.remove(&stream).is_some() {
            state.quiet_since = Instant::now();
        }
    }

    /// Records that a request is being handled until the guard is dropped.
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

    /// Completes when the connection's last request has arrived, which changes the outlook.
    pub(super) async fn last_request(&self) {
        self.last_request.notified().await;
    }

    /// Records that the edge drains: only a request that arrives soon is still served.
    pub(super) fn call_last(&self) {
        let mut state = self.state();
        state.last_call = Some(Instant::now());
        self.part_with_response(&state);
    }

    /// Called before the response is written, so that the GOAWAY reaches the peer together with it.
    fn part_with_response(&self, state: &State) {
        if state.goaway == Goaway::Last && state.leaving_since.is_none() {
            self.parting.store(Parting::WithResponse as u8, Ordering::Release);
        }
    }

    /// Begins to shut down the connection, with a warning first if the peer supports one.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        if state.goaway == Goaway::Warning && state.warned_since.is_none() {
            state.warned_since = Some(Instant::now());
            self.parting.store(Parting::Warning as u8, Ordering::Release);
            return;
        }
        let is_idle = state.handling == 0 && state.answers.is_empty() && !matches!(state.head, Head::Begun { .. });
        // Some clients notice the shutdown only when they send the next request, which must not meet a closed
        // socket.
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

    /// Records how the peer reacts to a GOAWAY.
    pub(super) fn takes_goaway(&self, goaway: Goaway) {
        self.state().goaway = goaway;
    }

    /// How the peer reacts to a GOAWAY.
    pub(super) fn goaway(&self) -> Goaway {
        self.state().goaway
    }

    /// The GOAWAY that is due.
    pub(super) fn parting(&self) -> Parting {
        Parting::of(self.parting.load(Ordering::Acquire))
    }

    /// Whether an HTTP/2 response has begun and not ended.
    pub(super) fn is_answering(&self) -> bool {
        !self.state().answers.is_empty()
    }

    /// Records that our half of the connection is closed. Returns how long to wait for the peer's next bytes, if
    /// at all.
    pub(super) fn closed(&self) -> Option<Duration> {
        let mut state = self.state();
        state.closed = true;
        state.linger
    }

    /// What is due, or when to ask again.
    pub(super) fn outlook(&self, now: Instant) -> Outlook {
        let (state, limits) = (self.state(), &self.limits);
        if state.closed && state.last_call.is_none() {
            // `Socket` limits how long it lingers.
            return Outlook::Until(now + limits.linger);
        }
        let told = state.leaving_since.or(state.warned_since);
        // If the GOAWAY is sent with the response to the last request, that response ends the connection.
        if state.worn && told.is_none() && state.goaway != Goaway::Last {
            return Outlook::Worn;
        }
        if let (Some(warned), None) = (state.warned_since, state.leaving_since)
            && now >= warned + limits.farewell
        {
            return Outlook::Warned;
        }
        // A response of which the peer reads nothing, whether or not a handler is working on another.
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

/// Marks a request as being handled until it is dropped, which also happens when the peer resets the request.
#[derive(Debug)]
pub(super) struct Handling {
    activity: Arc<Activity>,
    is_last: bool,
}

impl Handling {
    /// Whether the connection should accept no request after this one.
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
