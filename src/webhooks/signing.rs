//! The secrets that sign what is sent, opened from what the database has, and what becomes of a subscription whose secrets
//! can't be used.

use std::time::Duration;

use super::outcome::pause;
use super::{Hub, Place};
use crate::outbound::{InvalidSecret, SigningSecret};
use crate::seal::{Seals, Unopened};
use crate::store::{LeasedSubscription, Progress, Standing, Store, StoreError, Written};

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

/// Ends a lease without sending anything. What another configuration may fix is tried again.
pub(super) async fn end_unusable(
    hub: &Hub,
    place: &Place,
    store: &Store,
    leased: &LeasedSubscription,
    reason: String,
    is_tried_again: bool,
) -> Result<Option<Duration>, StoreError> {
    let again_in = is_tried_again.then(|| pause(leased.failures + 1, None));
    let standing = match again_in {
        Some(again_in) => Standing::Failing { reason, again_in },
        None => Standing::Disabled { reason },
    };
    let progress = Progress {
        position: leased.position,
        done_beyond: &leased.done_beyond,
        attempts: &[],
        accepted: &[],
        dropped: &[],
        failed: &[],
        standing: &standing,
    };
    if store.write_progress(leased, &progress).await? == Written::Ended {
        hub.report(place, leased, &standing, "unusable");
    }
    Ok(again_in)
}
