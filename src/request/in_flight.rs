//! How many requests are in flight on this node.
//!
//! Owns the cap over all tenants. It is checked before anything else: a request refused here costs no look-up, no
//! quota decision and no memory.

use std::sync::atomic::Ordering;

use crate::metrics::GateMetrics;

/// The requests in flight.
#[derive(Debug)]
pub struct RequestsInFlight {
    most: usize,
    metrics: GateMetrics,
}

/// A request's permit. Dropping it frees the place, also when the client disconnects.
#[derive(Debug)]
pub(super) struct RequestPermit<'a>(&'a RequestsInFlight);

impl RequestsInFlight {
    /// At most `most` requests; none yet.
    #[must_use]
    pub fn new(most: usize, metrics: GateMetrics) -> Self {
        Self { most, metrics }
    }

    /// A permit, if one is free.
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
