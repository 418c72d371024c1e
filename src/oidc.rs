//! Signing in through an OpenID provider: the authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636),
//! as a client with a secret.
//!
//! Knows no pages, no sessions and no database. On the way of a sign-in:
//!
//! 1. [`Providers`] has a [`Provider`] for each issuer, which reads and keeps its metadata (`metadata`) and keys
//!    (`keys`).
//! 2. [`SignInAttempt`] is what the browser keeps until then; `state`, `nonce` and the PKCE verifier are derived from it.
//! 3. [`BrowserResponse::find`] reads what the provider sent back through the browser, and finds its
//!    attempt.
//! 4. [`Provider::identify`] exchanges the code, verifies the ID token (`id_token`), and finds the role in its `claims`.
//!
//! The operator chose the issuer, so it may be at an address that is not public, unlike a webhook receiver. Link-local
//! addresses and the metadata services of clouds are still refused. Whatever the provider does, each request to
//! it ends within a time limit and in bounded memory, and redirects are not followed.

mod attempt;
mod claims;
mod id_token;
mod keys;
mod metadata;
mod provider;
mod providers;

use std::fmt;

use http::StatusCode;

pub use attempt::{ATTEMPT_LIFETIME, SignInAttempt};
pub use id_token::IdTokenError;
pub use provider::{BrowserResponse, Identified, Provider};
pub use providers::Providers;

use crate::outbound::SendError;

/// A kind of request to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The document at `/.well-known/openid-configuration`.
    Metadata,
    /// Its public keys.
    Keys,
    /// The exchange of a code for an ID token.
    Token,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "metadata",
            Self::Keys => "key set",
            Self::Token => "token endpoint",
        })
    }
}

/// Why a sign-in failed. No text contains anything that a provider or a browser chose, apart from the registered codes
/// of OAuth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    /// The provider did not respond.
    #[error("the provider's {0} gave no response: {1}")]
    Unreachable(Endpoint, SendError),
    /// The provider responded with an unexpected status.
    #[error("the provider's {0} responded with status {1}{described}", described = described(*.2))]
    Status(Endpoint, StatusCode, Option<&'static str>),
    /// The provider's response does not follow the specification.
    #[error("the provider's {0} is not usable: {1}")]
    Malformed(Endpoint, &'static str),
    /// The browser has no attempt, or it was begun for something else.
    #[error("the response does not belong to a sign-in of this browser")]
    ForeignResponse,
    /// The attempt is too old.
    #[error("the sign-in took too long")]
    Expired,
    /// `iss` is missing or another issuer's (RFC 9207).
    #[error("the response is of another issuer, or does not name its issuer although the provider always does")]
    WrongIssuer,
    /// The provider did not sign the person in.
    #[error("the provider refused: {}", .0.unwrap_or("an unknown code"))]
    Denied(Option<&'static str>),
    /// The response has neither a code nor an error.
    #[error("the response has no code")]
    NoCode,
    /// The provider did not accept the code: it was used before, or is too old.
    #[error("the provider refused the code")]
    RefusedCode,
    /// The ID token is not valid.
    #[error("the ID token was refused: {0}")]
    Token(#[from] IdTokenError),
    /// The person has no role here.
    #[error("the claim `{claim}` {}", if *is_present {
        "has no value that gives a role"
    } else if claim == "email" {
        "is missing, or not verified: `email_verified` is not true"
    } else {
        "is missing"
    })]
    NoRole {
        /// The configured claim.
        claim: String,
        /// Whether the ID token has it, and verified if it is an e-mail address.
        is_present: bool,
    },
}

fn described(code: Option<&'static str>) -> String {
    code.map(|code| format!(" and `{code}`")).unwrap_or_default()
}

/// The error codes of OAuth and OpenID Connect (RFC 6749, sections 4.1.2.1 and 5.2; OpenID Connect Core, 3.1.2.6). Only
/// these are logged: others are text that anyone could choose.
const ERROR_CODES: [&str; 20] = [
    "access_denied",
    "account_selection_required",
    "consent_required",
    "interaction_required",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_request_object",
    "invalid_request_uri",
    "invalid_scope",
    "login_required",
    "registration_not_supported",
    "request_not_supported",
    "request_uri_not_supported",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unmet_authentication_requirements",
    "unsupported_grant_type",
    "unsupported_response_type",
];

fn known_code(code: &str) -> Option<&'static str> {
    ERROR_CODES.into_iter().find(|known| *known == code)
}
