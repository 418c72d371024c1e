//! Passes on that the subscriptions of a tenant change: its events may now have somewhere to go.
//!
//! Within this node, to the delivery of webhooks. To the other nodes, through a ledger that they share: they have to know of a
//! subscription even if this node dies as soon as it has created it.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

/// How many changes may wait to be noticed. Further ones are dropped: each tenant is inspected every minute or so anyway.
///
/// Larger: more memory while nothing notices them. Smaller: in a burst some are noticed later.
const MAX_WAITING: usize = 1024;

/// What all nodes know of subscriptions.
pub trait SubscriptionLedger: Send + Sync + 'static {
    /// Notes that a tenant is about to have a subscription. Takes a limited time, also if the others can't learn of it now.
    fn will_subscribe<'l>(&'l self, slug: &'l str) -> BoxFuture<'l, ()>;
}

/// Where changes are announced.
#[derive(Clone)]
pub struct SubscriptionChanges {
    announced: mpsc::Sender<Arc<str>>,
    ledger: Option<Arc<dyn SubscriptionLedger>>,
}

impl SubscriptionChanges {
    /// An announcer, and the slugs that it announces. Without a ledger, each node finds out for itself.
    #[must_use]
    pub fn channel(ledger: Option<Arc<dyn SubscriptionLedger>>) -> (Self, mpsc::Receiver<Arc<str>>) {
        let (announced, receiver) = mpsc::channel(MAX_WAITING);
        (Self { announced, ledger }, receiver)
    }

    /// Has every node know of a subscription that is about to be created.
    pub async fn will_subscribe(&self, slug: &str) {
        if let Some(ledger) = &self.ledger {
            ledger.will_subscribe(slug).await;
        }
    }

    /// Announces that a tenant's subscriptions changed.
    pub fn announce(&self, slug: &Arc<str>) {
        // Without a receiver this node delivers nothing.
        let _ = self.announced.try_send(Arc::clone(slug));
    }
}

impl fmt::Debug for SubscriptionChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionChanges").finish_non_exhaustive()
    }
}
