//! What a peer does that ends its connection, and the count of bytes that belong to no request.

use std::io;

use crate::config::ConnectionLimits;

/// What a peer does that no honest one does; its connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::edge) enum Abuse {
    /// Bytes that serve no request.
    #[error("too many bytes that belong to no request")]
    Flood,
    /// Requests that are given up before they are answered.
    #[error("too many requests were reset")]
    Resets,
    /// Takes nothing of what the kernel has for it.
    #[error("nothing of an answer was taken")]
    Stall,
}

impl From<Abuse> for io::Error {
    fn from(abuse: Abuse) -> Self {
        Self::other(abuse)
    }
}

/// The bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    /// What came from the socket.
    pub(super) received: u64,
    /// How much of it was heads and bodies of requests.
    pub(super) asked: u64,
    /// How much of what was sent was answers.
    pub(super) answered: u64,
}

impl Bytes {
    /// Whether too many belonged to no request. What serves an answer (window updates, above all) is paid for by the answer.
    pub(super) fn are_too_many(&self, limits: &ConnectionLimits) -> bool {
        let overhead = self.received.saturating_sub(self.asked);
        overhead > limits.overhead_bytes + (self.asked + self.answered).saturating_mul(limits.overhead_factor)
    }
}
