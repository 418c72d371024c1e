//! The secrets that sign what is sent to a subscription's URL, opened from what the database has.

use super::signature::{InvalidSecret, SigningSecret};
use crate::seal::{Seals, Unopened};

/// Why the secrets of a subscription can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableSecret {
    /// It can't be opened.
    #[error(transparent)]
    Sealed(#[from] Unopened),
    /// It is not a secret.
    #[error("the secret of the subscription is {0}")]
    Invalid(#[from] InvalidSecret),
}

impl UnusableSecret {
    /// Whether another configuration of this node helps, or another node.
    #[must_use]
    pub fn is_of_this_node(self) -> bool {
        self == Self::Sealed(Unopened::UnknownKey)
    }
}

/// The secrets that sign what is sent to a URL. `stored` are those of the database.
///
/// # Errors
/// [`UnusableSecret`].
pub fn signing_secrets(
    seals: &Seals,
    stored: &[String],
    target_url: &str,
) -> Result<Vec<SigningSecret>, UnusableSecret> {
    stored.iter().map(|secret| Ok(SigningSecret::parse(&seals.open(secret, target_url)?)?)).collect()
}
