//! Limits on connections: how long a peer may take and how much it may send before its connection is closed.
//!
//! Owns the limits that the edge enforces. Limits on a single request belong to the gate ([`super::RequestLimits`]).
//! The limits on heads here are above the gate's, so that an oversized head gets a response with the account's usual
//! headers and only an absurd one gets a bare response.

use std::time::Duration;

/// The edge's limits. `Default` is what a gateway uses that configures none; tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// From accepting the socket to the end of the TLS handshake and, in HTTP/2, the first bytes of the preface.
    ///
    /// Larger: silent peers hold sockets for longer. Smaller: clients on slow links fail in their third round trip.
    pub handshake: Duration,
    /// From the first byte of an HTTP/1.1 head, or for the first head from the end of the handshake, to the end of the
    /// head.
    ///
    /// Larger: a head sent byte by byte holds a connection for longer. Smaller: a lost packet or two end a request.
    pub head: Duration,
    /// The maximum size of a head or HTTP/2 header list in bytes, at least 8192; a larger one is refused unread. An
    /// HTTP/2 header list over this gets an empty 431.
    ///
    /// Larger: a connection buffers that much before it is checked. Smaller than twice the gate's limits: heads that
    /// are only somewhat too large are refused without the account's rate headers.
    pub head_bytes: usize,
    /// How long a response may make no progress: the peer reads no byte of it from the socket or, in HTTP/2, opens no
    /// window.
    ///
    /// Larger: clients that stopped reading keep their responses in memory. Smaller: a client that pauses, or is in a
    /// tunnel, loses its response.
    pub write: Duration,
    /// How long an idle connection is kept.
    ///
    /// Larger: connection pools of clients long gone fill [`ConnectionLimits::connections`]. Smaller: clients that
    /// poll once a minute pay for a handshake each time.
    pub idle: Duration,
    /// The age after which the next request is the last of its connection.
    ///
    /// Larger: after a change of addresses or weights, clients stay with the old node. Smaller: handshakes, the
    /// costliest thing a client can request, become frequent.
    pub age: Duration,
    /// The maximum number of requests on a connection.
    ///
    /// Larger: as for [`ConnectionLimits::age`]. Smaller: a busy client pays for handshakes too often.
    pub requests: u64,
    /// The maximum ratio of bytes that belong to no request to bytes that do.
    ///
    /// Larger: a peer causes more work at less cost. Smaller: clients with short heads and much overhead (TLS records,
    /// window updates) are taken for a flood.
    pub overhead_factor: u64,
    /// How many such bytes are exempt from the ratio, handshake included.
    ///
    /// Larger: each new connection may flood for longer. Smaller: a connection that is mostly kept alive by pings is
    /// closed.
    pub overhead_bytes: u64,
    /// The maximum number of concurrent HTTP/2 streams per connection.
    ///
    /// Larger: one peer gets more of the gateway. Smaller: parallel clients wait; RFC 9113 (section 6.5.2) recommends
    /// at least 100.
    pub streams: u32,
    /// The maximum number of HTTP/2 requests that a peer may reset on a connection if more than half of them were
    /// unanswered.
    ///
    /// Larger: a peer can start more work for nothing. Smaller: a client that cancels what it no longer needs, as
    /// search fields do, loses its connection.
    pub resets: u64,
    /// The maximum number of open connections over all listeners; at the limit, accepting pauses.
    ///
    /// Larger: file descriptors and memory (about 50 KiB per connection) run out first. Smaller: clients wait in the
    /// listen queue while the gateway is idle.
    pub connections: usize,
    /// The maximum number of connections per client address (for IPv6 per /64, which one client has); further ones are
    /// closed at once.
    ///
    /// Larger: fewer addresses fill [`ConnectionLimits::connections`]. Smaller: an office behind one address is locked
    /// out.
    pub connections_per_address: u32,
    /// How long a closing connection may make no progress with its last responses.
    ///
    /// Larger: a stop waits for peers that are gone. Smaller: a client on a bad link loses its last response.
    pub closing: Duration,
    /// Once the edge drains: how long after its start, or its last response, a connection may still send a request.
    ///
    /// Larger: a stop waits for connections that send nothing more. Smaller: requests that crossed the stop on a slow
    /// link, and handshakes in progress, are lost.
    pub drain_grace: Duration,
    /// How long a closed connection waits for the next bytes of the peer, which it reads and discards.
    ///
    /// Larger: a peer that is gone holds a connection for longer. Smaller: a client that pauses its upload and reads
    /// the response only after its last byte gets a reset instead of a 413.
    pub linger: Duration,
    /// How long a closed connection is kept in total while the peer keeps sending.
    ///
    /// Larger: an answered flood is read for longer. Smaller: a client on a slow link that sends its whole body before
    /// reading loses its response. An upload of 16 MiB in this time needs 5 Mbit/s.
    pub linger_total: Duration,
    /// How many bytes are discarded on a closed connection.
    ///
    /// Larger: an answered flood is read for longer. Smaller than the largest request body, with TLS overhead: the
    /// response to an upload of that size is lost.
    pub linger_bytes: usize,
}

impl ConnectionLimits {
    /// How long an HTTP/2 connection must be quiet before a GOAWAY if the peer has several requests open.
    ///
    /// Larger: requests at the end of a connection take longer. Smaller: a busy client reads the GOAWAY together with
    /// the previous response or while it sends a request, and some clients lose that request.
    pub const PAUSE: Duration = Duration::from_millis(100);

    /// How long to wait for the next bytes of such a peer until it has sent as many requests as it had open at once,
    /// so that it is not sending one when the GOAWAY arrives.
    ///
    /// Larger: a connection whose peer sends nothing more is closed later. Smaller: a client that is slow to read its
    /// last responses loses a request.
    pub const LATE_REQUEST_WAIT: Duration = Duration::from_secs(1);

    /// The maximum of that wait in total.
    ///
    /// Larger: a connection whose peer keeps sending is closed later. Smaller: as for
    /// [`ConnectionLimits::LATE_REQUEST_WAIT`].
    pub const LATE_REQUEST_WAIT_TOTAL: Duration = Duration::from_secs(5);

    /// The maximum number of header fields of an HTTP/1.1 head; one with more is refused unread.
    ///
    /// Larger: parsing reserves space for that many. Smaller than the gate's configurable maximum: as for
    /// [`ConnectionLimits::head_bytes`].
    pub const HEAD_FIELDS: usize = 256;

    /// The HTTP/2 flow-control window of a stream: how much of a body is in transit before the gate reads it.
    ///
    /// Larger: 100 streams buffer 100 times that. Smaller: an upload waits for a round trip more often.
    pub const STREAM_WINDOW: u32 = 256 * 1024;

    /// The HTTP/2 flow-control window of a connection, which bounds what it can make the gateway buffer.
    ///
    /// Larger: 10,000 connections buffer more than a machine has. Smaller: parallel uploads wait for each other.
    pub const CONNECTION_WINDOW: u32 = 1024 * 1024;

    /// The interval of HTTP/2 pings on a quiet connection.
    ///
    /// Larger: a peer that vanished during a slow request is noticed late. Smaller: pings wake sleeping radios.
    pub const PING_EVERY: Duration = Duration::from_secs(20);

    /// How long the acknowledgement of such a ping may take.
    ///
    /// Larger: requests of dead peers keep running. Smaller: a congested link looks dead.
    pub const PING_ANSWER: Duration = Duration::from_secs(10);
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        super::Limits::default().connection
    }
}
