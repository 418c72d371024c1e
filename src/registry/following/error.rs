//! Why the registry can't be followed.

use crate::store::StoreError;

/// Why the registry is not followed at the moment.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// It can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its database has another registry, such as an empty one after the first was lost.
    #[error(
        "the database has another registry than the one that this node follows: restore that one, or remove the \
         snapshot and restart the node to follow the other"
    )]
    OtherRegistry,
}
