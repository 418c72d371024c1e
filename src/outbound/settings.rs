//! What an operator decides about requests to receivers: the part of `[gateway.webhooks]` that the client needs.
//!
//! Owns the defaults, and what breaks when a limit is larger or smaller. The configuration owns keys and ranges.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::guard::AllowedTargets;

/// The settings of a [`super::Client`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a request may take, from DNS to the last byte of the answer.
    ///
    /// Larger: a receiver that hangs holds a permit for longer. Smaller: receivers that do their work before they
    /// answer are sent the same event again and again.
    pub timeout: Duration,
    /// The maximum number of requests at once, which the caller enforces. Twice as many connections may be open before
    /// new ones are closed after one request.
    ///
    /// Larger: more sockets, and about 64 KiB of memory for each. Smaller: slow receivers delay the others.
    pub in_flight: u32,
    /// The maximum number of requests at once to one host and port, which the caller enforces.
    ///
    /// Larger: one receiver takes more of the permits, and gets a larger burst. Smaller: the tenants that share a
    /// popular receiver wait for each other.
    pub per_host: u32,
    /// The exceptions from the rule that addresses must be public.
    pub allowed: AllowedTargets,
    /// Certificate authorities to trust in addition to the system's.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The DNS servers; if there are none, the system's.
    pub dns_servers: Vec<SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(15),
            in_flight: 256,
            per_host: 32,
            allowed: AllowedTargets::default(),
            authorities: Vec::new(),
            dns_servers: Vec::new(),
        }
    }
}
