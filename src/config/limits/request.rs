//! Limits on requests: how much memory one may use and how long it may take.
//!
//! Owns the limits that the gate enforces. What a connection may do between requests belongs to the edge
//! ([`super::ConnectionLimits`]).

use std::time::Duration;

/// The gate's limits. `Default` is what a gateway uses that configures none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The maximum size of HTTP/1.1 header fields in bytes.
    ///
    /// Larger: a client uses more memory before anything is checked. Smaller: requests through honest proxies that add
    /// header fields and cookies are refused.
    pub head_bytes: usize,
    /// The same for HTTP/2, whose header compression expands a few bytes to many.
    pub http2_head_bytes: usize,
    /// The maximum number of header fields, for the same reasons.
    pub head_fields: usize,
    /// The maximum length of the request target in bytes.
    ///
    /// Larger: no benefit, since filters are sent in the body. Smaller: a link with a long query is refused.
    pub target_bytes: usize,
    /// How long a body may take to arrive.
    ///
    /// Larger: slow clients hold their requests for longer. Smaller: honest clients on slow links are refused.
    pub body: Duration,
    /// How long a body may take before its rate is checked.
    ///
    /// Larger: a stalled body is noticed later. Smaller: a slow start (waiting for `100 Continue`, a lost packet) is
    /// taken for a slow client.
    pub body_grace: Duration,
    /// The minimum average rate of a body in bytes per second, once the grace period is over.
    ///
    /// Larger: clients on slow links are refused. Smaller: a body sent byte by byte holds its request for all of
    /// [`RequestLimits::body`].
    pub body_rate: u32,
    /// The maximum size of a body in bytes.
    ///
    /// Larger: a client uses more memory. Smaller: long lists of ids are refused.
    pub body_bytes: usize,
    /// The same for a group with its members: a hundred thousand of them fit into 16 MiB.
    pub group_body_bytes: usize,
    /// How long a request may take, not counting its body.
    ///
    /// Larger: a stuck database keeps its clients waiting. Smaller: large searches that would have succeeded are cut
    /// off.
    pub request: Duration,
    /// The same for a request that may write a hundred thousand members.
    pub group_request: Duration,
    /// The maximum number of requests in flight.
    ///
    /// Larger: each keeps its body and response in memory, and all become slow. Smaller: requests that could have been
    /// served are refused.
    pub in_flight: usize,
    /// The maximum memory of all request bodies and responses in flight, in bytes. Small ones are not counted; larger
    /// ones count four times the body, which is what serving it costs.
    ///
    /// Larger: with the connections and caches, more than a node of 2 GiB has. Smaller: clients of several tenants
    /// with large bodies or responses are refused at the same time.
    pub memory_bytes: usize,
    /// The same for one tenant.
    ///
    /// Larger: fewer tenants use up [`RequestLimits::memory_bytes`] for all others. Smaller than four times
    /// [`RequestLimits::group_body_bytes`]: the largest groups are always refused. Smaller than twice a response,
    /// compressed and not: it is never sent.
    pub memory_bytes_per_tenant: usize,
    /// How many bad tokens an address may try in a row. See `gate::BadTokens`.
    ///
    /// Larger: a flood queries the databases more before it is slowed down. Smaller: many clients behind one address
    /// whose tokens were just revoked are taken for a flood.
    pub bad_tokens_burst: u32,
    /// How many per second it may try after that.
    ///
    /// Larger: a sustained flood queries the databases more. Smaller: clients behind its address are refused for longer
    /// once it ends.
    pub bad_tokens_rate: u32,
}

impl RequestLimits {
    /// How long the test of a receiver may take, what it reads from the database included. The rest of the request's time
    /// is for the other steps, so that the caller reads that the receiver did not answer, and not that the gateway was too
    /// slow.
    #[must_use]
    pub fn receiver_test(&self) -> Duration {
        self.request * 3 / 4
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        super::Limits::default().request
    }
}
