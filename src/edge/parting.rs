//! How an HTTP/2 connection is to end, depending on the peer.
//!
//! Owns the two choices: what a peer makes of a GOAWAY (`opening` finds out), and which one it is due (`activity` decides,
//! `frames` sends it).

/// What the peer makes of a GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goaway {
    /// The peer did not say anything yet, or speaks HTTP/1.1.
    Unknown,
    /// It takes the responses that come after it, as RFC 9113 (section 6.8) asks for.
    Warning,
    /// It loses every response that comes after it.
    Last,
}

/// Which GOAWAY an HTTP/2 connection is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Parting {
    /// None.
    None,
    /// One that warns: every request is still answered.
    Warning,
    /// The last one, together with the response to the last request.
    WithResponse,
    /// The last one, once the requests that were read are answered. No more are read.
    Now,
}

impl Parting {
    /// Of its number.
    pub(super) fn of(number: u8) -> Self {
        [Self::None, Self::Warning, Self::WithResponse, Self::Now][usize::from(number)]
    }
}
