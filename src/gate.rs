//! Who may pass: the tenant that a request is for, its token, and its budget.
//!
//! Passing yields [`Admitted`], which only this module can make and every handler takes, so that a handler of an
//! unauthenticated request does not compile. Knows no routes and no bodies; the order of the steps is
//! [`crate::request`]'s.

mod bad_tokens;
mod budget;
mod head;
mod network;
mod verify;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::error::Refusal;
use crate::host::CertificateNames;
use crate::quota::{Quota, Usage};
use crate::tenant::{Directory, InFlightPermit, Tenant, Token, TokenVerifier};
pub use bad_tokens::BadTokens;
pub use head::{Authority, FirstAuthority, HeadFault, Origin, check_form, check_method, check_size};
pub use network::network_of;

/// What the edge knows of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where the caller connected from, or the balancer that does not say so, as the log shows it: `IP:PORT`.
    pub client: Box<str>,
    /// The caller's address, where it is known: what limits by address count.
    pub caller: Option<IpAddr>,
    /// How it is protected on its way.
    pub transport: Transport,
    /// The first authority of its requests, parsed once.
    pub authority: FirstAuthority,
}

/// How a connection is protected, which decides what may be asked on it.
#[derive(Clone, Debug)]
pub enum Transport {
    /// By TLS that ends here, with a certificate of these names.
    Tls(Arc<CertificateNames>),
    /// By a balancer before us, which chose a certificate that we don't know.
    Balancer,
    /// Not at all: callers are told where to go instead.
    Redirect {
        /// The port of the addresses they are sent to.
        https_port: u16,
    },
}

impl Transport {
    /// Whether the client meets HTTPS: browsers must not be sent `Strict-Transport-Security` over anything else (RFC 6797,
    /// section 7.2). To a client, the balancer's TLS is the gateway's.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Balancer => true,
            Self::Redirect { .. } => false,
        }
    }
}

/// A request that passed the gate: whose it is.
#[derive(Debug)]
pub struct Admitted {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
    usage: Option<Usage>,
    /// Its place among the tenant's requests in flight.
    _turn: InFlightPermit,
}

impl Admitted {
    /// The tenant whose account this is.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The token that it came with.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Who used the account's budget, if its route reports it.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }
}

/// Resolves, verifies and admits.
#[derive(Debug)]
pub struct Gate {
    /// The tenants.
    pub directory: Arc<ArcSwap<Directory>>,
    /// Their budgets.
    pub quota: Quota,
    /// Their tokens.
    pub tokens: TokenVerifier,
    /// The addresses that try tokens.
    pub bad_tokens: BadTokens,
}

impl Gate {
    /// The tenant that a request is for.
    ///
    /// # Errors
    /// [`Refusal::Misdirected`], [`Refusal::UnknownAccount`].
    pub fn resolve(&self, connection: &Connection, authority: &Authority<'_>) -> Result<Arc<Tenant>, Refusal> {
        // By the certificate and not by the SNI: wildcards and coalesced HTTP/2 connections are honest traffic.
        if let Transport::Tls(names) = &connection.transport
            && !names.covers(authority.host())
        {
            return Err(Refusal::Misdirected);
        }
        self.directory.load().resolve(authority.host()).cloned().ok_or(Refusal::UnknownAccount)
    }
}
