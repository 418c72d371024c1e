//! Requests that only test a receiver, for a caller who waits for the outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

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
    limit: Duration,
}

impl TestRequests {
    /// Sends with a client. A test ends `limit` after it began, or after the time limit of the client if that is shorter.
    #[must_use]
    pub fn new(client: Arc<Client>, limit: Duration) -> Self {
        Self { client, permits: Semaphore::new(MAX_AT_ONCE), limit }
    }

    /// Sends a message for a test that began at an instant; none if too many tests run.
    pub async fn send(&self, message: &Message<'_>, began: Instant) -> Option<Attempt> {
        let _permit = self.permits.try_acquire().ok()?;
        let limit = self.limit.saturating_sub(began.elapsed());
        Some(self.client.send_within(limit, message).await)
    }
}
