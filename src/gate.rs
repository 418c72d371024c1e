//! Which requests pass: the tenant that a request is for, its token, and its budget.
//!
//! Passing yields [`Admitted`], which only this module can create and every handler takes, so a handler of an
//! unauthenticated request does not compile. Knows no routes and no bodies; [`crate::request`] owns the order of the
//! steps.

mod bad_tokens;
mod budget;
mod head;
mod limits;
mod network;
mod verify;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;

use crate::error::Refusal;
use crate::host::CertificateNames;
use crate::quota::{Quota, Usage};
use crate::tenant::token::TokenDigest;
use crate::tenant::usage::minutes::SharedMinutes;
use crate::tenant::{Directory, InFlightPermit, Tenant, Token, TokenVerifier, Tokens};
pub use bad_tokens::{Attempt, BadTokens};
pub use head::{Authority, FirstAuthority, HeadFault, Origin, check_form, check_method, check_size};
pub use limits::TokenLimitChecks;
pub use network::network_of;

/// What the edge knows about a request's connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client's address for the log, as `IP:PORT`; the load balancer's if it does not send the client's.
    pub client: Box<str>,
    /// The client's address, if it is known. Limits per address use it.
    pub caller: Option<IpAddr>,
    /// How it is protected in transit.
    pub transport: Transport,
    /// The first authority of its requests, parsed once.
    pub authority: FirstAuthority,
}

/// How a connection is protected, which decides which requests are allowed on it.
#[derive(Clone, Debug)]
pub enum Transport {
    /// TLS that ends here, with a certificate for these names.
    Tls(Arc<CertificateNames>),
    /// TLS that ends at a load balancer, with a certificate unknown to us.
    Balancer,
    /// Unprotected: requests are redirected.
    Redirect {
        /// The port in the redirect's address.
        https_port: u16,
    },
}

impl Transport {
    /// Whether the client uses HTTPS: `Strict-Transport-Security` must not be sent over anything else (RFC 6797,
    /// section 7.2). The load balancer's TLS counts: the client sees no difference.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Balancer => true,
            Self::Redirect { .. } => false,
        }
    }
}

/// A request that passed the gate, with its tenant and token.
#[derive(Debug)]
pub struct Admitted {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
    usage: Option<Usage>,
    /// Counts it as one of the tenant's requests in flight.
    _permit: InFlightPermit,
}

impl Admitted {
    /// The tenant that owns this account.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The request's token.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Records that the token was used, once the route is known.
    pub fn note_use(&self, route: &'static str, caller: Option<IpAddr>) {
        let Tokens { last_used, usage, .. } = &*self.tenant.tokens;
        last_used.note(&self.token, route, caller, usage, Timestamp::now());
    }

    /// Which tokens used the account's budget, if the route reports it.
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
    /// Limits addresses that try tokens.
    pub bad_tokens: BadTokens,
    /// Refuses requests by the limits of their token.
    pub limits: TokenLimitChecks,
    /// Adds up the minutes of all nodes.
    pub minutes: Arc<SharedMinutes>,
}

impl Gate {
    /// The tenant that a request is for.
    ///
    /// # Errors
    /// [`Refusal::Misdirected`], [`Refusal::UnknownAccount`].
    pub fn resolve(&self, connection: &Connection, authority: &Authority<'_>) -> Result<Arc<Tenant>, Refusal> {
        // By certificate rather than SNI: wildcards and coalesced HTTP/2 connections are legitimate.
        if let Transport::Tls(names) = &connection.transport
            && !names.covers(authority.host())
        {
            return Err(Refusal::Misdirected);
        }
        self.directory.load().resolve(authority.host()).cloned().ok_or(Refusal::UnknownAccount)
    }

    /// Begins the look-up of a secret other than a token: a cookie or a link of the administration area. Wrong ones
    /// count as attempts of the caller's address, like bad tokens.
    ///
    /// # Errors
    /// [`Refusal::TooManyBadTokens`].
    pub fn attempt(&self, connection: &Connection, tenant: &Tenant, digest: [u8; 32]) -> Result<Attempt<'_>, Refusal> {
        self.bad_tokens.attempt(connection.caller, tenant.tokens.generation, TokenDigest::from(digest))
    }
}
