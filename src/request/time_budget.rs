//! The total time that a request may take; its steps share it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::Refusal;

/// The remaining time of a request. The clock runs only during [`TimeBudget::run`]: reading a body has its own
/// limits.
#[derive(Debug)]
pub(super) struct TimeBudget {
    used: Duration,
    limit: Duration,
}

impl TimeBudget {
    pub(super) fn of(limit: Duration) -> Self {
        Self { used: Duration::ZERO, limit }
    }

    /// Changes the total time; the time used so far still counts.
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Runs a step, and cancels it when the request's time is over.
    pub(super) async fn run<T>(&mut self, step: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let mut step = pin!(step);
        // Most steps finish at their first poll, and need neither a clock nor a timer.
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
