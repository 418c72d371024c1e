//! The abuses that end a connection, and the count of bytes that belong to no request.

use std::io;

use crate::config::ConnectionLimits;

/// What no honest peer does; its connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::edge) enum Abuse {
    /// Too many bytes that belong to no request.
    #[error("too many bytes that belong to no request")]
    Flood,
    /// Too many requests that were reset before their response.
    #[error("too many requests were reset")]
    Resets,
    /// The peer reads nothing that the kernel holds for it.
    #[error("the peer does not read a response")]
    Stall,
}

impl From<Abuse> for io::Error {
    fn from(abuse: Abuse) -> Self {
        Self::other(abuse)
    }
}

/// The byte counts of a connection.
#[derive(Debug, Default)]
pub(super) struct ByteCounts {
    /// Received from the socket.
    pub(super) received: u64,
    /// Received as heads and bodies of requests.
    pub(super) requests: u64,
    /// Sent as responses.
    pub(super) responses: u64,
}

impl ByteCounts {
    /// Whether too many bytes belonged to no request. Responses raise the limit, because they cause window
    /// updates.
    pub(super) fn are_too_many(&self, limits: &ConnectionLimits) -> bool {
        let overhead = self.received.saturating_sub(self.requests);
        overhead > limits.overhead_bytes + (self.requests + self.responses).saturating_mul(limits.overhead_factor)
    }
}
