//! The state of a connection, and how long it may stay in it.
//!
//! Owns the clock of one connection and the count of bytes that belong to no request. hyper's header timeout also
//! runs between two requests, so it can't allow ten seconds for a head and sixty for an idle connection. hyper has
//! no idle timeout for HTTP/2, and for neither version a timeout for responses that the peer does not read.
//!
//! No timer is reset when something happens. Instead, [`Activity::check_timeouts`] returns the earliest instant at
//! which anything could be overdue, whatever happens until then, and is called again at that instant.

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
use self::abuse::ByteCounts;
use super::goaway::{DueGoaway, GoawayReaction};
use crate::config::ConnectionLimits;

/// The state of one connection, shared by its socket, its requests and the task that ends it.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ConnectionState>,
    last_request: Notify,
    /// A [`DueGoaway`]. Atomic, because every write reads it.
    due_goaway: AtomicU8,
    limits: ConnectionLimits,
}

#[derive(Debug)]
struct ConnectionState {
    began: Instant,
    /// The number of requests so far.
    requests: u64,
    /// The number of requests that a handler is working on.
    handling: usize,
    /// When part of a response was last sent, a handler finished, or the connection began. Other writes, such as
    /// PING acknowledgements, do not count.
    quiet_since: Instant,
    /// The progress of the next HTTP/1.1 head; always [`HeadProgress::None`] in HTTP/2.
    head: HeadProgress,
    /// Whether the peer has sent a request, so that it may still be reading a response.
    has_sent_request: bool,
    /// When the edge began to drain. The peer may still send a request for a short time.
    drain_since: Option<Instant>,
    /// Since when the socket has accepted no bytes because the peer reads none.
    blocked_since: Option<Instant>,
    /// The HTTP/2 responses in progress, by stream, and when a byte of each was last sent.
    open_responses: HashMap<u32, Instant>,
    /// Whether the connection has reached its maximum age or number of requests.
    aged_out: bool,
    /// When a GOAWAY warned the peer, which may still finish after that.
    warned_since: Option<Instant>,
    /// When the shutdown of the connection began.
    shutdown_since: Option<Instant>,
    /// How long to wait for the peer's next bytes once our half is closed. None if the peer has no response to
    /// lose: the connection was idle when its shutdown began.
    linger: Option<Duration>,
    /// Whether our half of the connection is closed.
    closed: bool,
    goaway: GoawayReaction,
    bytes: ByteCounts,
    abuse: Option<Abuse>,
}

#[derive(Clone, Copy, Debug)]
enum HeadProgress {
    /// Between two requests, or handling one.
    None,
    /// Waiting for the first byte of the connection's first head.
    Awaited { since: Instant },
    /// Part of the head has arrived.
    Begun { since: Instant },
}

/// The result of checking a connection against its limits on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutCheck {
    /// Nothing is overdue; check again at this instant.
    NextAt(Instant),
    /// No request for too long: shut down gracefully.
    Idle,
    /// The peer was warned, and its time to finish is over: shut down gracefully.
    Warned,
    /// The connection has reached its maximum age or number of requests: shut down gracefully.
    AgedOut,
    /// A head, a response that the peer does not read, or the shutdown takes too long: cut.
    Stalled,
}

impl ConnectionState {
    /// When the current state times out if no request is being handled and the peer has read all responses.
    fn quiet_timeout(&self, limits: &ConnectionLimits) -> (Instant, TimeoutCheck) {
        if let (Some(warned), None) = (self.warned_since, self.shutdown_since) {
            // A request that the peer sent before it read the warning arrives within a round trip or two.
            return (warned.max(self.quiet_since) + limits.drain_grace, TimeoutCheck::Warned);
        }
        match (self.drain_since, self.shutdown_since, self.head) {
            // In a drain, a client on a bad link gets no extra time for the rest of a head.
            (Some(called), _, HeadProgress::Begun { since }) => {
                ((called + limits.drain_grace).min(since.max(self.quiet_since) + limits.head), TimeoutCheck::Stalled)
            }
            (Some(_), None, HeadProgress::None | HeadProgress::Awaited { .. }) => {
                (self.quiet_since + limits.drain_grace, TimeoutCheck::Idle)
            }
            // Nothing is in progress but the shutdown.
            (Some(_), Some(left), HeadProgress::None) if !self.has_sent_request => {
                (left + limits.drain_grace, TimeoutCheck::Stalled)
            }
            (_, _, HeadProgress::Awaited { since } | HeadProgress::Begun { since }) => {
                (since.max(self.quiet_since) + limits.head, TimeoutCheck::Stalled)
            }
            (_, Some(left), HeadProgress::None) => (left.max(self.quiet_since) + limits.closing, TimeoutCheck::Stalled),
            (None, None, HeadProgress::None) => (self.quiet_since + limits.idle, TimeoutCheck::Idle),
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
        let state = Mutex::new(ConnectionState {
            began: now,
            requests: 0,
            handling: 0,
            quiet_since: now,
            head: HeadProgress::None,
            has_sent_request: false,
            drain_since: None,
            blocked_since: None,
            open_responses: HashMap::new(),
            aged_out: false,
            warned_since: None,
            shutdown_since: None,
            linger: Some(limits.linger),
            closed: false,
            goaway: GoawayReaction::Unknown,
            bytes: ByteCounts::default(),
            abuse: None,
        });
        Arc::new(Self { state, last_request: Notify::new(), due_goaway: AtomicU8::new(DueGoaway::None as u8), limits })
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the timeout of an HTTP/1.1 connection's first head: a peer that never sends a request is not an idle
    /// client.
    pub(super) fn await_head(&self) {
        self.state().head = HeadProgress::Awaited { since: Instant::now() };
    }

    /// Records that part of an HTTP/1.1 head has arrived.
    pub(super) fn head_began(&self) {
        let mut state = self.state();
        state.head = match state.head {
            HeadProgress::None => HeadProgress::Begun { since: Instant::now() },
            HeadProgress::Awaited { since } | HeadProgress::Begun { since } => HeadProgress::Begun { since },
        };
    }

    /// Records that a head is complete.
    pub(super) fn head_ended(&self) {
        self.state().head = HeadProgress::None;
    }

    /// Counts bytes of a request's head or body.
    pub(super) fn note_request_bytes(&self, bytes: usize) {
        self.state().bytes.requests += bytes as u64;
    }

    /// Like `note_request_bytes`, for bytes that complete a head.
    pub(super) fn note_head_end(&self, bytes: usize) {
        let mut state = self.state();
        state.head = HeadProgress::None;
        state.bytes.requests += bytes as u64;
    }

    /// Counts bytes of a response.
    pub(super) fn note_response_bytes(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes.responses += bytes as u64;
        state.quiet_since = Instant::now();
    }

    /// Counts bytes as they arrive from the socket, whatever they are.
    ///
    /// # Errors
    /// [`Abuse::Flood`] if too many of them belonged to no request.
    pub(super) fn note_received(&self, bytes: usize) -> Result<(), Abuse> {
        let mut state = self.state();
        state.bytes.received += bytes as u64;
        if state.bytes.are_too_many(&self.limits) {
            state.end_for(Abuse::Flood);
            return Err(Abuse::Flood);
        }
        Ok(())
    }

    /// Records an abuse; the caller cuts the connection.
    pub(super) fn note_abuse(&self, abuse: Abuse) {
        self.state().end_for(abuse);
    }

    /// The abuse for which the connection is cut.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.state().abuse
    }

    /// Records that the socket accepted bytes.
    pub(super) fn note_write(&self) {
        self.state().blocked_since = None;
    }

    /// Records that the socket accepts no bytes at present.
    pub(super) fn note_blocked_write(&self) {
        self.state().blocked_since.get_or_insert_with(Instant::now);
    }

    /// Records that part of an HTTP/2 response was sent and more follows.
    pub(super) fn note_response_part(&self, stream: u32) {
        self.state().open_responses.insert(stream, Instant::now());
    }

    /// Records that an HTTP/2 response ended or was reset.
    pub(super) fn note_response_end(&self, stream: u32) {
        let mut state = self.state();
        if state.open_responses.remove(&stream).is_some() {
            state.quiet_since = Instant::now();
        }
    }

    /// Records that a request is being handled until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        let mut state = self.state();
        state.handling += 1;
        (state.linger, state.has_sent_request) = (Some(self.limits.linger), true);
        state.requests += 1;
        let is_at_limit = state.requests >= self.limits.requests || state.began.elapsed() >= self.limits.age;
        // In a drain, the first HTTP/2 request is the last. HTTP/1.1 has `Connection: close` for that.
        if is_at_limit || (state.drain_since.is_some() && state.goaway != GoawayReaction::Unknown) {
            state.aged_out = true;
            self.send_goaway_with_response(&state);
            self.last_request.notify_one();
        }
        RequestGuard { activity: Arc::clone(self), is_last: state.aged_out }
    }

    /// Whether the connection ended with the response to its last request.
    pub(super) fn ended_aged_out(&self) -> bool {
        let state = self.state();
        state.aged_out && state.warned_since.or(state.shutdown_since).is_none()
    }

    /// Completes when the connection's last request has arrived, which changes what is overdue.
    pub(super) async fn last_request(&self) {
        self.last_request.notified().await;
    }

    /// Records that the edge drains: only a request that arrives soon is still served.
    pub(super) fn note_drain(&self) {
        let mut state = self.state();
        state.drain_since = Some(Instant::now());
        self.send_goaway_with_response(&state);
    }

    /// Called before the response is written, so that the GOAWAY reaches the peer together with it.
    fn send_goaway_with_response(&self, state: &ConnectionState) {
        if state.goaway == GoawayReaction::StopsReading && state.shutdown_since.is_none() {
            self.due_goaway.store(DueGoaway::WithResponse as u8, Ordering::Release);
        }
    }

    /// Begins to shut down the connection, with a warning first if the peer supports one.
    pub(super) fn begin_shutdown(&self) {
        let mut state = self.state();
        if state.goaway == GoawayReaction::KeepsReading && state.warned_since.is_none() {
            state.warned_since = Some(Instant::now());
            self.due_goaway.store(DueGoaway::Warning as u8, Ordering::Release);
            return;
        }
        let is_idle =
            state.handling == 0 && state.open_responses.is_empty() && !matches!(state.head, HeadProgress::Begun { .. });
        // Some clients notice the shutdown only when they send the next request, which must not meet a closed
        // socket.
        let is_unaware = state.goaway == GoawayReaction::StopsReading && state.has_sent_request;
        state.linger = match (is_idle, is_unaware, state.drain_since) {
            (false, ..) => Some(self.limits.linger),
            (true, true, None) => Some(self.limits.linger_total),
            (true, true, Some(_)) => Some(self.limits.drain_grace),
            (true, false, _) => None,
        };
        state.shutdown_since = Some(Instant::now());
        self.due_goaway.store(DueGoaway::Now as u8, Ordering::Release);
    }

    /// Records how the peer reacts to a GOAWAY.
    pub(super) fn note_goaway_reaction(&self, goaway: GoawayReaction) {
        self.state().goaway = goaway;
    }

    /// How the peer reacts to a GOAWAY.
    pub(super) fn goaway_reaction(&self) -> GoawayReaction {
        self.state().goaway
    }

    /// The GOAWAY that is due.
    pub(super) fn due_goaway(&self) -> DueGoaway {
        DueGoaway::of(self.due_goaway.load(Ordering::Acquire))
    }

    /// Whether an HTTP/2 response has begun and not ended.
    pub(super) fn has_open_responses(&self) -> bool {
        !self.state().open_responses.is_empty()
    }

    /// Records that our half of the connection is closed. Returns how long to wait for the peer's next bytes, if
    /// at all.
    pub(super) fn note_closed(&self) -> Option<Duration> {
        let mut state = self.state();
        state.closed = true;
        state.linger
    }

    /// What is due, or when to check again.
    pub(super) fn check_timeouts(&self, now: Instant) -> TimeoutCheck {
        let (state, limits) = (self.state(), &self.limits);
        if state.closed && state.drain_since.is_none() {
            // `Socket` limits how long it lingers.
            return TimeoutCheck::NextAt(now + limits.linger);
        }
        let notified_since = state.shutdown_since.or(state.warned_since);
        // If the GOAWAY is sent with the response to the last request, that response ends the connection.
        if state.aged_out && notified_since.is_none() && state.goaway != GoawayReaction::StopsReading {
            return TimeoutCheck::AgedOut;
        }
        if let (Some(warned), None) = (state.warned_since, state.shutdown_since)
            && now >= warned + limits.closing
        {
            return TimeoutCheck::Warned;
        }
        // A response of which the peer reads nothing, whether or not a handler is working on another.
        let (write_limit, since) = match notified_since.or(state.drain_since) {
            Some(since) => (limits.closing.min(limits.write), since),
            None => (limits.write, state.began),
        };
        let oldest_unread = state.blocked_since.iter().chain(state.open_responses.values()).min();
        let oldest_unread = oldest_unread.map(|&taken| (taken.max(since) + write_limit, TimeoutCheck::Stalled));
        // Nothing that begins after `now` is overdue before this.
        let shortest = match (state.drain_since.or(state.warned_since), state.shutdown_since) {
            (Some(_), _) => limits.drain_grace,
            (None, Some(_)) => limits.closing,
            (None, None) => limits.head.min(limits.idle),
        };
        let earliest = now + shortest.min(write_limit);
        let due = oldest_unread.or_else(|| (state.handling == 0).then(|| state.quiet_timeout(limits)));
        match due {
            Some((due, overdue)) if due <= now => overdue,
            Some((due, _)) => TimeoutCheck::NextAt(due.min(earliest)),
            None => TimeoutCheck::NextAt(earliest),
        }
    }
}

/// Marks a request as being handled until it is dropped, which also happens when the peer resets the request.
#[derive(Debug)]
pub(super) struct RequestGuard {
    activity: Arc<Activity>,
    is_last: bool,
}

impl RequestGuard {
    /// Whether the connection should accept no request after this one.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.handling -= 1;
        state.quiet_since = Instant::now();
    }
}
