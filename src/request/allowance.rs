//! The time that a request may take in all, of which its steps use what they need.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::Refusal;

/// What is left of a request's time. The clock stands still between two [`Allowance::spend`]: a body that comes slowly
/// has limits of its own.
#[derive(Debug)]
pub(super) struct Allowance {
    used: Duration,
    limit: Duration,
}

impl Allowance {
    pub(super) fn of(limit: Duration) -> Self {
        Self { used: Duration::ZERO, limit }
    }

    /// Sets what the request may take in all; what it took is kept.
    pub(super) fn change(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Takes a step, and gives it up when the request's time is over.
    pub(super) async fn spend<T>(&mut self, step: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let mut step = pin!(step);
        // Most steps are done at once, and need neither a clock nor a timer.
        if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
            return outcome;
        }
        let began = Instant::now();
        let left = self.limit.saturating_sub(self.used);
        let outcome = timeout_at(began + left, step).await.map_err(|_| Refusal::TooSlow)?;
        self.used += began.elapsed();
        outcome
    }
}
