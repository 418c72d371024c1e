//! How many requests are worked on.
//!
//! Owns the cap over all tenants, which is checked before anything else is done for a request: one that is refused costs
//! no look-up, no decision of the quota and no memory.

use std::sync::atomic::Ordering;

use crate::metrics::GateMetrics;

/// The requests that are worked on.
#[derive(Debug)]
pub struct RequestsInFlight {
    most: usize,
    metrics: GateMetrics,
}

/// A request's place; dropping it, also when the caller hung up, frees it.
#[derive(Debug)]
pub(super) struct RequestPermit<'a>(&'a RequestsInFlight);

impl RequestsInFlight {
    /// None yet, and at most so many.
    #[must_use]
    pub fn new(most: usize, metrics: GateMetrics) -> Self {
        Self { most, metrics }
    }

    /// A place, if there is one.
    pub(super) fn enter(&self) -> Option<RequestPermit<'_>> {
        let more = |now| (now < self.most).then_some(now + 1);
        if self.metrics.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            self.metrics.refused.with_label_values(&["in_flight"]).inc();
            return None;
        }
        Some(RequestPermit(self))
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.0.metrics.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
