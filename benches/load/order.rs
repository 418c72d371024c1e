//! The order that the load generator takes and the report that it returns, each a line of JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What the generator prints when the clock begins to run.
pub(crate) const BEGUN: &str = "begun";

/// One turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Connections at once.
    pub(crate) connections: usize,
    /// Requests at once on each of them; 1 for HTTP/1.1.
    pub(crate) streams: usize,
    pub(crate) pace: Pace,
    /// A new connection for each request: its time counts from the first packet.
    pub(crate) fresh: bool,
    /// Seconds of the same load that are not counted.
    pub(crate) warm_up: f64,
    /// Seconds that are.
    pub(crate) turn: f64,
    /// Asked in turn.
    pub(crate) requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Each with how many requests at once it is asked on a connection, and a title.
    pub(crate) const BOTH: [(Self, usize, &'static str); 2] =
        [(Self::Http1, 1, "HTTP/1.1"), (Self::Http2, 4, "HTTP/2, 4 streams each")];
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Pace {
    /// When the one before it is answered.
    Answered,
    /// So many a second, whatever becomes of them: a time counts from when the request was due, to the millisecond.
    Due(f64),
    /// Never again: each connection asks once, and is held until the order is taken back.
    Held,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    /// JSON.
    pub(crate) body: Option<String>,
}

impl Request {
    /// A request for `/api/v1` and a path below it.
    pub(crate) fn new(method: &str, host: &str, token: &str, path: &str) -> Self {
        let (method, host) = (method.to_owned(), host.to_owned());
        Self { method, host, path: format!("/api/v1{path}"), token: Some(token.to_owned()), body: None }
    }

    /// The same with a body.
    pub(crate) fn with(self, body: impl Into<String>) -> Self {
        Self { body: Some(body.into()), ..self }
    }

    /// The same without a token.
    pub(crate) fn unauthenticated(self) -> Self {
        Self { token: None, ..self }
    }
}

/// What one turn showed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Answered within the turn, whatever the answer.
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Without an answer.
    pub(crate) failed: u64,
    /// Why the first of them failed.
    pub(crate) failure: Option<String>,
    /// The generator's own CPU.
    pub(crate) caller_seconds: f64,
}
