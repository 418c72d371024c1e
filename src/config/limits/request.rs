//! How much a request may hold, and how long it may take.
//!
//! Owns the gate's numbers, each with what breaks when it is larger and when it is smaller. What a connection may do
//! between requests is the edge's ([`super::ConnectionLimits`]).

use std::time::Duration;

/// The gate's limits; the default is what a gateway runs with that sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The most bytes of header fields, HTTP/1.1.
    ///
    /// Larger: a caller holds more memory before anything is checked. Smaller: honest proxies that add fields and
    /// cookies of their own are refused.
    pub head_bytes: usize,
    /// The same for HTTP/2, whose fields come uncompressed out of a few bytes.
    pub http2_head_bytes: usize,
    /// The most header fields, for the same reasons.
    pub head_fields: usize,
    /// The longest request target.
    ///
    /// Larger serves nobody: filters travel in the body. Smaller: a link with a long query is refused.
    pub target_bytes: usize,
    /// How long a whole body may take.
    ///
    /// Larger: slow senders hold their requests for longer. Smaller: honest callers on slow lines are refused.
    pub body: Duration,
    /// How long a body may take before its rate counts.
    ///
    /// Larger: a body that stopped is noticed later. Smaller: a slow start (a wait for `100 Continue`, a lost packet)
    /// is taken for a slow sender.
    pub body_grace: Duration,
    /// How many bytes a second a body must bring on the whole once the grace is over.
    ///
    /// Larger: callers on slow lines are refused. Smaller: a body that is dripped in holds its request for the whole of
    /// [`RequestLimits::body`].
    pub body_rate: u32,
    /// The most bytes of a body.
    ///
    /// Larger: a caller holds more memory. Smaller: long lists of ids are refused.
    pub body_bytes: usize,
    /// The most bytes of a group with its members: a hundred thousand of them fit into 16 MiB.
    pub group_body_bytes: usize,
    /// How long a request may take, without its body.
    ///
    /// Larger: a stuck database holds its callers. Smaller: large searches that would have answered are cut off.
    pub request: Duration,
    /// The same for a call that may write a hundred thousand members.
    pub group_request: Duration,
    /// How many requests are worked on at once.
    ///
    /// Larger: each holds its body and its answer, and all become slow. Smaller: callers are refused that could have
    /// been served.
    pub in_flight: usize,
    /// How many bytes the bodies and answers of all requests may hold at once. Small ones are not counted, the four
    /// times that serving a body costs are.
    ///
    /// Larger: with the connections and what is cached, more than a node of 2 GiB has. Smaller: callers of several
    /// tenants whose bodies or answers are large are refused at the same time.
    pub memory_bytes: usize,
    /// How many of them one tenant may hold.
    ///
    /// Larger: fewer tenants spend [`RequestLimits::memory_bytes`] for all others. Smaller than four times
    /// [`RequestLimits::group_body_bytes`]: the largest groups are never taken. Smaller than twice an answer, compressed and
    /// not: it is never given.
    pub memory_bytes_per_tenant: usize,
    /// How many bad tokens an address may try in a row. See `gate::BadTokens`.
    ///
    /// Larger: a flood asks the databases more before it is slowed. Smaller: many callers behind one address whose
    /// tokens were just revoked are taken for one.
    pub bad_tokens_burst: u32,
    /// How many a second it may go on trying.
    pub bad_tokens_rate: u32,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            head_bytes: 32 * 1024,
            http2_head_bytes: 16 * 1024,
            head_fields: 100,
            target_bytes: 8 * 1024,
            body: Duration::from_secs(30),
            body_grace: Duration::from_secs(5),
            body_rate: 1000,
            body_bytes: 1024 * 1024,
            group_body_bytes: 16 * 1024 * 1024,
            request: Duration::from_secs(15),
            group_request: Duration::from_secs(60),
            in_flight: 1024,
            memory_bytes: 768 * 1024 * 1024,
            memory_bytes_per_tenant: 256 * 1024 * 1024,
            bad_tokens_burst: 100,
            bad_tokens_rate: 10,
        }
    }
}
