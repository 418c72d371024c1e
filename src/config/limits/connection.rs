//! How long and how much a peer may take before its connection ends.
//!
//! Owns the edge's numbers, each with what breaks when it is larger and when it is smaller. What a single request may
//! hold is the gate's ([`super::RequestLimits`]): the limits on heads here lie above the gate's own, so that an oversized
//! head is refused with all that an account's answer carries, and only an absurd one without.

use std::time::Duration;

/// The edge's limits; the default is what a gateway runs with that sets none, tests shorten it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// From the accepted socket to the end of the TLS handshake and, in HTTP/2, to the first bytes of its preface.
    ///
    /// Larger: silent peers hold sockets for longer. Smaller: callers on slow links fail in their third round trip.
    pub handshake: Duration,
    /// From the first byte of an HTTP/1.1 head, or the end of the handshake before the first head, to the head's end.
    ///
    /// Larger: a head dripped in byte by byte holds a connection for longer. Smaller: a lost packet or two end a call.
    pub head: Duration,
    /// The most bytes of a head (and of an HTTP/2 header list) before it is refused unread, at least 8192. An HTTP/2
    /// header list over this gets an empty 431.
    ///
    /// Larger: a connection buffers that much before anyone looks. Smaller than twice what the gate takes: heads that
    /// are only somewhat too large are refused without the account's rate headers.
    pub head_bytes: usize,
    /// How long a peer may leave an answer lying: none of its bytes taken from the socket, or in HTTP/2 no window given.
    ///
    /// Larger: readers that stopped hold what they asked for in memory. Smaller: a caller that pauses, or a train in a
    /// tunnel, loses its answer.
    pub write: Duration,
    /// How long a connection without a request is kept.
    ///
    /// Larger: pools of callers long gone fill [`ConnectionLimits::connections`]. Smaller: callers that poll once a minute pay a
    /// handshake each time.
    pub idle: Duration,
    /// How old a connection may be that still takes requests: the next one is its last.
    ///
    /// Larger: after a change of addresses or weights, callers stay with the old node. Smaller: handshakes, the
    /// costliest thing that a caller can ask for, become frequent.
    pub age: Duration,
    /// How many requests a connection takes.
    ///
    /// Larger: as for [`ConnectionLimits::age`]. Smaller: a busy caller pays a handshake too often.
    pub requests: u64,
    /// The bytes that belong to no request may be so many times those that belong to one.
    ///
    /// Larger: a peer has more of our work for less of its own. Smaller: callers with short heads and much
    /// bookkeeping (TLS records, window updates) are taken for a flood.
    pub overhead_factor: u64,
    /// How many such bytes are free, handshake included.
    ///
    /// Larger: each new connection may flood for longer. Smaller: a connection that is mostly kept alive by pings ends.
    pub overhead_bytes: u64,
    /// How many requests of one HTTP/2 connection are open at once.
    ///
    /// Larger: one peer has more of the gateway. Smaller: below 100, RFC 9113 (section 6.5.2) warns, parallel callers
    /// wait.
    pub streams: u32,
    /// How many requests of one HTTP/2 connection the peer may reset, where more than half of them were not answered.
    ///
    /// Larger: a peer can have more work begun for nothing. Smaller: a caller that cancels what it no longer needs, as
    /// search fields do, loses its connection.
    pub resets: u64,
    /// How many connections are open at once, over all listeners; at the cap, accepting pauses.
    ///
    /// Larger: file descriptors and memory (about 50 KiB a connection) run out first. Smaller: callers wait in the
    /// listen queue while the gateway is idle.
    pub connections: usize,
    /// How many of them may come from one address (IPv6: from one /64, which one caller has); more are closed at once.
    ///
    /// Larger: fewer addresses fill [`ConnectionLimits::connections`]. Smaller: an office behind one address is shut out.
    pub connections_per_address: u32,
    /// How long a connection that was told to end may go without taking a byte of its last responses.
    ///
    /// Larger: a stop waits for peers that are gone. Smaller: a caller on a bad link loses its last response.
    pub farewell: Duration,
    /// How long after its begin, or its last answer, a connection may still ask something once the edge drains.
    ///
    /// Larger: a stop waits for connections that ask nothing more. Smaller: requests that crossed the stop on a slow link
    /// are lost, and handshakes that were under way.
    pub last_call: Duration,
    /// How long a closed connection waits for the peer's next bytes, which are read and discarded.
    ///
    /// Larger: a peer that is gone holds a connection for longer. Smaller: an uploader that pauses, and reads its answer
    /// only after its last byte, finds a reset in place of a 413.
    pub linger: Duration,
    /// How long a closed connection is kept in all for a peer that goes on sending.
    ///
    /// Larger: an answered flood is read for longer. Smaller: a client on a slow link that sends its whole body before it
    /// reads loses its answer. An upload of 16 MiB in this time needs 5 Mbit/s.
    pub linger_total: Duration,
    /// How much of what a peer still sends is discarded on a closed connection.
    ///
    /// Larger: an answered flood is read for longer. Smaller than the largest body that any route takes, as TLS carries it:
    /// the answer to an upload of that size is lost.
    pub linger_bytes: usize,
}

impl ConnectionLimits {
    /// How long an HTTP/2 connection is quiet before a GOAWAY, where the peer has several requests under way.
    ///
    /// Larger: requests at the end of a connection take longer. Smaller: a busy client reads the GOAWAY together with the
    /// response before it, or while it sends a request, and some clients lose that one.
    pub const PAUSE: Duration = Duration::from_millis(100);

    /// How long the next bytes of such a peer are waited for, until it has sent as many requests as it had open at once, so
    /// that it is not sending one when the GOAWAY arrives.
    ///
    /// Larger: a peer that sends nothing more is ended later. Smaller: a client that is slow to read its last responses
    /// loses a request.
    pub const CROSSING: Duration = Duration::from_secs(1);

    /// How long they may take in all.
    ///
    /// Larger: a peer that sends without end is ended later. Smaller: as for [`ConnectionLimits::CROSSING`].
    pub const CROSSING_TOTAL: Duration = Duration::from_secs(5);

    /// The most header fields of an HTTP/1.1 head before it is refused unread.
    ///
    /// Larger: parsing reserves room for that many. Smaller than what the gate may be told to take: as for
    /// [`ConnectionLimits::head_bytes`].
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

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(10),
            head_bytes: 64 * 1024,
            write: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            age: Duration::from_secs(3600),
            requests: 10_000,
            overhead_factor: 8,
            overhead_bytes: 1024 * 1024,
            streams: 100,
            resets: 500,
            connections: 10_000,
            connections_per_address: 256,
            farewell: Duration::from_secs(5),
            last_call: Duration::from_secs(1),
            linger: Duration::from_secs(5),
            linger_total: Duration::from_secs(30),
            linger_bytes: 32 * 1024 * 1024,
        }
    }
}
