//! Requests that only test a receiver, for a caller who waits for the outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Attempt, Client, Message};
use crate::shares::Shares;

/// How many tests of an account a node runs at once.
///
/// Larger: fewer accounts can test while receivers of some hang. Smaller: an account can't test two receivers at once.
const OF_AN_ACCOUNT: usize = 2;

/// How many tests a node runs at once.
///
/// Larger: callers with receivers that hang hold more sockets. Smaller: tests are refused while others run.
const AT_ONCE: usize = 64;

/// Why a test was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Too many tests of the account run, or of all.
    Busy,
    /// This node sends none.
    Off,
}

/// Sends tests, a few at once for each account.
#[derive(Debug)]
pub struct TestRequests {
    /// `None`: no test is sent.
    client: Option<Arc<Client>>,
    shares: Shares,
    limit: Duration,
}

impl TestRequests {
    /// Sends with a client. A test ends `limit` after it began, or after the time limit of the client if that is shorter.
    #[must_use]
    pub fn new(client: Arc<Client>, limit: Duration) -> Self {
        Self { client: Some(client), shares: Shares::new(OF_AN_ACCOUNT, AT_ONCE), limit }
    }

    /// Sends none.
    #[must_use]
    pub fn none() -> Self {
        Self { client: None, shares: Shares::new(OF_AN_ACCOUNT, AT_ONCE), limit: Duration::ZERO }
    }

    /// Sends a message for a test of an account that began at an instant.
    ///
    /// # Errors
    /// [`NotSent`]; a receiver that fails is no error.
    pub async fn send(&self, account: &str, message: &Message<'_>, began: Instant) -> Result<Attempt, NotSent> {
        let client = self.client.as_ref().ok_or(NotSent::Off)?;
        let _share = self.shares.begin(account).ok_or(NotSent::Busy)?;
        let limit = self.limit.saturating_sub(began.elapsed());
        Ok(client.send_within(limit, message).await)
    }
}
