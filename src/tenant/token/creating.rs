//! Creates and rotates tokens: validates the request, generates the value, and stores the digest.
//!
//! The command line and the administration area both call this, so they have the same rules.

use std::time::Duration;

use jiff::Timestamp;

use super::PresentedToken;
use crate::shown_text;
use crate::store::{Actor, CreatedToken, NewToken, RotatedToken, Store, StoreError, TokenLimits};

/// What a new token shall be.
#[derive(Clone, Debug)]
pub struct NewTokenRequest {
    /// What the administrator calls it.
    pub name: String,
    /// From this instant on it is refused. None: never.
    pub expires_at: Option<Timestamp>,
    /// What it is limited to.
    pub limits: TokenLimits,
    /// Identifies the form that was sent: a second token with the same key is not created.
    pub form_key: Option<String>,
}

/// What a token that replaces another one shall be. It has the other one's name and limits.
#[derive(Clone, Debug)]
pub struct RotationRequest {
    /// From this instant on the new token is refused. None: never.
    pub expires_at: Option<Timestamp>,
    /// How long the old token is still accepted. Zero: it is revoked.
    pub overlap: Duration,
    /// Identifies the form that was sent: a second token with the same key is not created.
    pub form_key: Option<String>,
}

/// The outcome of creating a token.
#[derive(Debug)]
pub enum Created {
    /// It was created.
    New {
        /// Its number.
        id: i64,
        /// Its value, which can't be read again.
        token: PresentedToken,
    },
    /// The same form was sent before, and created a token.
    Existing {
        /// Its number.
        id: i64,
        /// Whether the form asked for the same name, expiry and limits.
        is_same: bool,
    },
}

/// The outcome of rotating a token.
#[derive(Debug)]
pub enum Rotated {
    /// It was replaced.
    New {
        /// The number of the new token.
        id: i64,
        /// Its value, which can't be read again.
        token: PresentedToken,
        /// From when on the old token is refused.
        old_until: Timestamp,
    },
    /// The same form was sent before, and created the token with this number.
    Existing(i64),
    /// There is no such token.
    Unknown,
    /// It is revoked.
    Revoked,
    /// It has expired.
    Expired,
}

/// Why a token can't be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateTokenError {
    /// The name is too long, invisible, or has characters that change what surrounds it.
    #[error("{}", shown_text::NAME_RULE)]
    InvalidName,
    /// The token would have expired already.
    #[error("a token must expire in the future")]
    AlreadyExpired,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a token can have this name.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    shown_text::is_valid_name(name)
}

/// Generates a token and stores its digest.
///
/// # Errors
/// [`CreateTokenError`]; nothing is stored then.
pub async fn create(store: &Store, request: NewTokenRequest, by: &Actor) -> Result<Created, CreateTokenError> {
    if !is_valid_name(&request.name) {
        return Err(CreateTokenError::InvalidName);
    }
    let now = Timestamp::now();
    check_expiry(request.expires_at, now)?;
    let token = PresentedToken::generate();
    let new =
        NewToken { limits: request.limits, ..new_token(&token, request.name, request.expires_at, request.form_key) };
    Ok(match store.create_token(new, now, by).await? {
        CreatedToken::New(id) => Created::New { id, token },
        CreatedToken::Existing { id, is_same } => Created::Existing { id, is_same },
    })
}

/// Generates a token that replaces another one, and stores its digest.
///
/// # Errors
/// [`CreateTokenError`]; nothing is changed then.
pub async fn rotate(store: &Store, id: i64, request: RotationRequest, by: &Actor) -> Result<Rotated, CreateTokenError> {
    let now = Timestamp::now();
    check_expiry(request.expires_at, now)?;
    let Some(old) = store.find_token_by_id(id).await? else { return Ok(Rotated::Unknown) };
    let token = PresentedToken::generate();
    let new = new_token(&token, old.name, request.expires_at, request.form_key);
    Ok(match store.rotate_token(id, new, request.overlap, now, by).await? {
        RotatedToken::New { id, old_until } => Rotated::New { id, token, old_until },
        RotatedToken::Existing(id) => Rotated::Existing(id),
        RotatedToken::Unknown => Rotated::Unknown,
        RotatedToken::Revoked => Rotated::Revoked,
        RotatedToken::Expired => Rotated::Expired,
    })
}

fn check_expiry(expires_at: Option<Timestamp>, now: Timestamp) -> Result<(), CreateTokenError> {
    match expires_at {
        Some(expires_at) if expires_at <= now => Err(CreateTokenError::AlreadyExpired),
        Some(_) | None => Ok(()),
    }
}

fn new_token(
    token: &PresentedToken,
    name: String,
    expires_at: Option<Timestamp>,
    form_key: Option<String>,
) -> NewToken {
    let (prefix, digest) = (token.shown().to_owned(), *token.digest().as_bytes());
    NewToken { name, prefix, digest, expires_at, limits: TokenLimits::default(), replaces: None, form_key }
}
