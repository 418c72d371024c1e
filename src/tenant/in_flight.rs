//! Limits how many requests of one tenant are in flight: a tenant with a slow database must not fill the gateway with
//! waiting requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The requests of one tenant in flight.
#[derive(Debug)]
pub struct InFlight {
    now: AtomicU32,
    most: u32,
}

/// The permit of one request; dropping it releases it.
#[derive(Debug)]
pub struct InFlightPermit(Arc<InFlight>);

impl InFlight {
    pub(super) fn new(most: u32) -> Self {
        Self { now: AtomicU32::new(0), most }
    }

    /// A permit for one request; `None` if the limit is reached.
    pub fn enter(self: &Arc<Self>) -> Option<InFlightPermit> {
        let more = |now| (now < self.most).then_some(now + 1);
        self.now.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(InFlightPermit(Arc::clone(self)))
    }

    /// The limit.
    pub(super) fn most(&self) -> u32 {
        self.most
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_up_to_the_limit_enter_and_one_more_after_one_left() {
        let in_flight = Arc::new(InFlight::new(2));
        let first = in_flight.enter().expect("room for one");
        let _second = in_flight.enter().expect("room for two");
        assert!(in_flight.enter().is_none());
        drop(first);
        assert!(in_flight.enter().is_some());
    }
}
