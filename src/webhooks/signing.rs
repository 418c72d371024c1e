//! Ends the lease of a subscription whose secrets or URL can't be used.

use std::time::Duration;

use super::DeliveryContext;
use super::outcome::pause;
use crate::outbound::DeliveryReason;
use crate::store::{LeasedSubscription, Progress, Standing, Store, StoreError, Written};
use crate::tenant::Tenant;

/// Ends a lease without sending anything. A fault that another configuration may fix is retried.
pub(super) async fn end_unusable(
    context: &DeliveryContext,
    tenant: &Tenant,
    store: &Store,
    leased: &LeasedSubscription,
    reason: DeliveryReason,
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
        prunes: false,
    };
    if store.write_progress(leased, &progress).await? == Written::Ended {
        context.report(tenant, leased, &standing, "unusable");
    }
    Ok(again_in)
}
