//! The GOAWAYs that end an HTTP/2 connection, depending on the peer.
//!
//! Owns two types: how a peer reacts to a GOAWAY (`first_settings` detects it), and which GOAWAY is due (`activity`
//! decides it, `frames` sends it).

/// How a peer reacts to a GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoawayReaction {
    /// The peer has not sent its settings yet, or speaks HTTP/1.1.
    Unknown,
    /// It accepts responses after it, as RFC 9113 (section 6.8) requires.
    KeepsReading,
    /// It loses every response after it.
    StopsReading,
}

/// The GOAWAY that is due on an HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DueGoaway {
    /// None.
    None,
    /// A warning: every request is still answered.
    Warning,
    /// The last one, together with the response to the last request.
    WithResponse,
    /// The last one, once the requests read so far are answered. No more are read.
    Now,
}

impl DueGoaway {
    /// The variant with this number.
    pub(super) fn of(number: u8) -> Self {
        [Self::None, Self::Warning, Self::WithResponse, Self::Now][usize::from(number)]
    }
}
