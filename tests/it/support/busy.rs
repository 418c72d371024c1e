//! What a busy machine may spoil: the bound of a duration, and a period in which a test must be done.
//!
//! Owns how such a test is repeated. A busy machine spoils some attempts, a node that is at fault fails in all of them. So
//! both helpers end with the first attempt that counts, and panic if there is none.

use std::time::Duration;

/// How often a test is repeated. Each attempt fails on a machine that is busy for all of it, and no machine is for so long.
const ATTEMPTS: u32 = 6;

/// Asserts that something takes less than a limit, in at least one of several measurements.
pub(crate) async fn takes_less_than(limit: Duration, what: &str, mut measure: impl AsyncFnMut() -> Duration) {
    let mut shortest = Duration::MAX;
    for _ in 0..ATTEMPTS {
        shortest = shortest.min(measure().await);
        if shortest < limit {
            return;
        }
    }
    panic!("{what} takes {shortest:?} or longer, each of {ATTEMPTS} times, and not less than {limit:?}");
}

/// An attempt that does not count, because its period was over before it was done.
#[derive(Debug)]
pub(crate) struct PeriodTooShort;

/// Runs a test that must be done within a period of a number of seconds, such as the window of a budget. The period
/// doubles until an attempt counts.
pub(crate) async fn with_period_from(seconds: u32, mut test: impl AsyncFnMut(u32) -> Result<(), PeriodTooShort>) {
    for attempt in 0..ATTEMPTS {
        if test(seconds << attempt).await.is_ok() {
            return;
        }
    }
    panic!("{} seconds are too short for this test", seconds << (ATTEMPTS - 1));
}
