//! How long and how much a peer may take before its connection ends.
//!
//! Owns the edge's numbers, each with what breaks when it is larger and when it is smaller. What a single request may
//! hold is the gate's: the limits on heads here lie above the gate's own, so that an oversized head gets the gate's
//! answer in JSON and only an absurd one hyper's bare one.

use std::time::Duration;

/// The edge's limits; the default is what a gateway runs with, tests shorten it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the accepted socket to the end of the TLS handshake and, in HTTP/2, to the first bytes of its preface.
    ///
    /// Larger: silent peers hold sockets for longer. Smaller: callers on slow links fail in their third round trip.
    pub handshake: Duration,
    /// From the first byte of an HTTP/1.1 head, or the end of the handshake before the first head, to the head's end.
    ///
    /// Larger: a head dripped in byte by byte holds a connection for longer. Smaller: a lost packet or two end a call.
    pub head: Duration,
    /// How long a connection without a request is kept, and a response that nobody takes.
    ///
    /// Larger: pools of callers long gone fill [`Limits::connections`]. Smaller: callers that poll once a minute pay a
    /// handshake each time.
    pub idle: Duration,
    /// How long a connection that was told to end may go without taking a byte of its last responses.
    ///
    /// Larger: a stop waits for peers that are gone. Smaller: a caller on a bad link loses its last response.
    pub farewell: Duration,
    /// How long after its begin, or its last answer, a connection may still ask something once the edge drains.
    ///
    /// Larger: a stop waits for connections that ask nothing more. Smaller: requests that crossed the stop on a slow link
    /// are lost, and handshakes that were under way.
    pub last_call: Duration,
    /// How long a closed connection waits for the peer's next bytes, and at most [`Limits::LINGER_ROUNDS`] times that
    /// in all, to read and discard what the peer still sends.
    ///
    /// Larger: closing costs a slot for longer. Smaller: an uploader that reads its answer only after its last byte
    /// finds a reset in place of a 413.
    pub linger: Duration,
    /// How many connections are open at once, over all listeners; at the cap, accepting pauses.
    ///
    /// Larger: file descriptors and memory (about 50 KiB a connection) run out first. Smaller: callers wait in the
    /// listen queue while the gateway is idle.
    pub connections: usize,
    /// How many requests of one HTTP/2 connection are open at once.
    ///
    /// Larger: one peer has more of the gateway. Smaller: below 100, RFC 9113 (section 6.5.2) warns, parallel callers
    /// wait.
    pub streams: u32,
}

impl Limits {
    /// See [`Limits::linger`].
    pub const LINGER_ROUNDS: u32 = 5;

    /// How much of what a peer still sends is read and discarded after the last response.
    ///
    /// Larger: an answered flood is read for longer. Smaller: the answer to an upload of the largest body that any
    /// route takes, 16 MiB, is lost.
    pub const LINGER_BYTES: usize = 16 * 1024 * 1024;

    /// The most bytes of a head (and of an HTTP/2 header list) before hyper refuses it by itself.
    ///
    /// Larger: a connection buffers that much before anyone looks. Smaller than twice the gate's 32 KiB: heads that the
    /// gate would refuse with a readable 431 or 414 get hyper's empty one.
    pub const HEAD_BYTES: usize = 64 * 1024;

    /// The most header fields of an HTTP/1.1 head before hyper refuses it by itself.
    ///
    /// Larger: parsing reserves room for that many. Smaller than twice the gate's 100: as for [`Limits::HEAD_BYTES`].
    pub const HEAD_FIELDS: usize = 256;

    /// How much of one HTTP/2 request's body is on its way before the gate reads it.
    ///
    /// Larger: 100 streams buffer 100 times that. Smaller: an upload waits a round trip for each piece.
    pub const STREAM_WINDOW: u32 = 256 * 1024;

    /// The same for all requests of an HTTP/2 connection together, which bounds what a connection can make us hold.
    ///
    /// Larger: 10,000 connections hold more than a machine has. Smaller: parallel uploads wait for one another.
    pub const CONNECTION_WINDOW: u32 = 1024 * 1024;

    /// How often a quiet HTTP/2 peer is asked whether it is still there.
    ///
    /// Larger: a peer that vanished during a slow request is noticed late. Smaller: pings wake sleeping radios.
    pub const PING_EVERY: Duration = Duration::from_secs(20);

    /// How long the answer to such a ping may take.
    ///
    /// Larger: a dead peer's requests run on. Smaller: a congested link looks dead.
    pub const PING_ANSWER: Duration = Duration::from_secs(10);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            farewell: Duration::from_secs(5),
            last_call: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            connections: 10_000,
            streams: 100,
        }
    }
}
