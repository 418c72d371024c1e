//! Passes on, within this node, that the subscriptions of a tenant changed: its events may now have somewhere to go.

use std::sync::Arc;

use tokio::sync::mpsc;

/// How many changes may wait to be noticed. Further ones are dropped: each tenant is inspected every minute or so anyway.
///
/// Larger: more memory while nothing notices them. Smaller: in a burst some are noticed later.
const MAX_WAITING: usize = 1024;

/// Where changes are announced.
#[derive(Clone, Debug)]
pub struct SubscriptionChanges(mpsc::Sender<Arc<str>>);

impl SubscriptionChanges {
    /// An announcer, and the slugs that it announces.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Arc<str>>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Announces that a tenant's subscriptions changed.
    pub fn announce(&self, slug: &Arc<str>) {
        // Without a receiver this node delivers nothing.
        let _ = self.0.try_send(Arc::clone(slug));
    }
}
