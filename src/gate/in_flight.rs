//! How many requests are worked on.
//!
//! Owns the cap over all tenants, which is checked before anything else is done for a request: one that is refused costs
//! no look-up, no decision of the quota and no memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::GateMetrics;

/// The requests that are worked on.
#[derive(Debug)]
pub struct InFlight {
    places: Arc<Semaphore>,
    metrics: GateMetrics,
}

/// A request's place; dropping it, also when the caller hung up, frees it.
#[derive(Debug)]
pub(super) struct Place<'a> {
    // In this order: who reads that nobody is in flight finds every place free.
    _permit: OwnedSemaphorePermit,
    _counted: Counted<'a>,
}

#[derive(Debug)]
struct Counted<'a>(&'a GateMetrics);

impl InFlight {
    /// None yet, and at most so many.
    #[must_use]
    pub fn new(limit: usize, metrics: GateMetrics) -> Self {
        Self { places: Arc::new(Semaphore::new(limit)), metrics }
    }

    /// A place, if there is one.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
            self.metrics.refused.with_label_values(&["in_flight"]).inc();
            return None;
        };
        self.metrics.in_flight.inc();
        Some(Place { _permit: permit, _counted: Counted(&self.metrics) })
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}
