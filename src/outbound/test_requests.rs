//! Requests that only test a receiver, for a caller who waits for the outcome.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::client::{Attempt, Client, Message};

/// How many tests a node runs at once.
///
/// Larger: callers with receivers that hang hold more sockets. Smaller: tests are refused while others run.
const MAX_AT_ONCE: usize = 8;

/// Sends tests, a few at once.
#[derive(Debug)]
pub struct TestRequests {
    client: Arc<Client>,
    permits: Semaphore,
}

impl TestRequests {
    /// Sends with a client.
    #[must_use]
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, permits: Semaphore::new(MAX_AT_ONCE) }
    }

    /// Sends a message; none if too many tests run.
    pub async fn send(&self, message: &Message<'_>) -> Option<Attempt> {
        let _permit = self.permits.try_acquire().ok()?;
        Some(self.client.send(message).await)
    }
}
