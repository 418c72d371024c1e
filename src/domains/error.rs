//! Why a node can't work on domains.

use crate::registry::FollowError;
use crate::seal::Unopened;
use crate::store::StoreError;

/// Why nothing can be ordered.
#[derive(Debug, thiserror::Error)]
pub enum DomainsError {
    /// The registry.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The account key can't be opened.
    #[error("the account key can't be used: {0}")]
    Unopened(#[from] Unopened),
    /// The account key is damaged.
    #[error("the account key is damaged")]
    Damaged,
}

impl From<StoreError> for DomainsError {
    fn from(error: StoreError) -> Self {
        Self::Follow(error.into())
    }
}
