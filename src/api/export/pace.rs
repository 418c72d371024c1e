//! The pace of an export on a node: it rests between short pieces of work, so that other accounts wait less for a
//! processor.
//!
//! An export would otherwise occupy a processor for as long as its client keeps up, and a request that needs that processor waits for
//! a time slice of the kernel, which is longer than most requests take. Few clients notice: most networks are slower than this.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long an export works before it rests.
///
/// Larger: other requests wait for longer. Smaller: the timer, which counts milliseconds, makes exports slower.
const WORK: Duration = Duration::from_micros(500);

/// How long a rest is, as a multiple of the work before it.
///
/// Larger: exports take longer. Smaller: other requests wait more often. Measured on two processors, with a client on the same
/// machine: during an export, the p99 of another account's searches rises to 2.4 times its usual value with no rest, to 1.6 times
/// with four times this rest, and to 1.3 to 1.7 times with this one. With a client at 100 Mbit/s it rises to 1.2 to 1.4 times.
const REST: u32 = 1;

/// The longest rest.
///
/// Larger: while a database is slow, exports take longer still. Smaller: it is relieved less.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// When to rest.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
}

impl Pace {
    pub(super) fn begin() -> Self {
        Self { since: Instant::now() }
    }

    /// Begins to work, after a time in which nothing was done.
    pub(super) fn resume(&mut self) {
        self.since = Instant::now();
    }

    /// Rests, if there was enough work since the last time.
    pub(super) async fn rest(&mut self) {
        if let Some(rest) = rest_after(self.since.elapsed()) {
            sleep(rest).await;
            self.since = Instant::now();
        }
    }
}

/// How long the rest is after some work, if it is time for one.
fn rest_after(worked: Duration) -> Option<Duration> {
    (worked >= WORK).then(|| (worked * REST).min(LONGEST_REST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_as_long_as_the_work_before_it_unless_that_was_short_or_very_long() {
        let ms = Duration::from_millis;
        for (worked, rest) in [(WORK / 2, None), (ms(3), Some(ms(3))), (ms(700), Some(LONGEST_REST))] {
            assert_eq!(rest_after(worked), rest, "{worked:?}");
        }
    }
}
