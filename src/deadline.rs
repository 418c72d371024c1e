//! Time limits that allow for a pause of this process.
//!
//! After a pause (its machine was suspended, migrated or overloaded), all its timers fire at once although the other
//! side may have answered in time. So a limit whose timer fires late is extended instead of blaming the other side.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::coop::unconstrained;
use tokio::time::Sleep;

/// How late a timer must fire to indicate a pause of this process. For limits shorter than twice this, half the
/// limit.
///
/// Larger: shorter pauses are blamed on the other side. Smaller: a busy moment of this process extends limits.
const LATE: Duration = Duration::from_millis(100);

/// Two turns: one more after a pause of this process.
///
/// Larger: a busy node waits longer for a peer that hangs. Smaller: it gives up on calls that would have been
/// answered.
pub(crate) const ONCE_MORE: u32 = 2;

/// The outcome of `what`, or `None` if it took longer than `limit`. If the timer itself fires late, another turn of
/// the same length is added, up to `turns` in total.
pub(crate) async fn within<T>(limit: Duration, turns: u32, what: impl Future<Output = T>) -> Option<T> {
    by(pin!(tokio::time::sleep(limit)), limit, turns, what).await
}

/// A reusable timer. It stays registered with the runtime: moving its deadline later takes no lock, while a new timer
/// with the earliest deadline wakes the thread that polls sockets.
#[derive(Debug)]
pub(crate) struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// Creates a timer; `limit` is the length of the first wait.
    pub(crate) fn new(limit: Duration) -> Self {
        Self(Box::pin(tokio::time::sleep(limit)))
    }

    /// As [`within`], with this timer.
    pub(crate) async fn within<T>(&mut self, limit: Duration, turns: u32, what: impl Future<Output = T>) -> Option<T> {
        self.0.as_mut().reset((Instant::now() + limit).into());
        by(self.0.as_mut(), limit, turns, what).await
    }
}

/// As [`within`], with a timer that is already set.
async fn by<T>(mut timer: Pin<&mut Sleep>, limit: Duration, turns: u32, what: impl Future<Output = T>) -> Option<T> {
    let mut what = pin!(what);
    for turn in 0..turns {
        let began = Instant::now();
        if turn > 0 {
            timer.as_mut().reset((began + limit).into());
        }
        let outcome = poll_fn(|context| match what.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            // Unconstrained: the limit applies even if the work used up the task's cooperative budget.
            Poll::Pending => pin!(unconstrained(timer.as_mut())).poll(context).map(|()| None),
        });
        if let Some(outcome) = outcome.await {
            return Some(outcome);
        }
        if began.elapsed() < limit + (limit / 2).min(LATE) {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn work_over_its_time_limit_is_given_up() {
        let began = Instant::now();
        assert_eq!(within(LIMIT, 3, std::future::pending::<()>()).await, None);
        assert!(began.elapsed() >= LIMIT);
        assert_eq!(within(LIMIT, 3, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn each_wait_by_a_timer_has_its_own_limit() {
        let mut timer = Timer::new(LIMIT);
        let slow = async {
            tokio::time::sleep(2 * LIMIT).await;
            7
        };
        // The first deadline falls into the second wait; the third wait must not last until the second deadline.
        assert_eq!(timer.within(LIMIT, 1, async { 7 }).await, Some(7));
        assert_eq!(timer.within(100 * LIMIT, 1, slow).await, Some(7));
        for _ in 0..2 {
            let began = Instant::now();
            assert_eq!(timer.within(LIMIT, 1, std::future::pending::<()>()).await, None);
            assert!((LIMIT..50 * LIMIT).contains(&began.elapsed()));
        }
    }

    #[tokio::test]
    async fn a_timeout_after_a_pause_of_this_process_is_granted_once_more() {
        for (turns, expected) in [(1, None), (2, Some(7))] {
            let (tell, told) = oneshot::channel();
            let waiting = tokio::spawn(within(LIMIT, turns, told));
            tokio::task::yield_now().await;
            thread::sleep(3 * LIMIT);
            // The value arrives shortly after the pause, behind the waiting task.
            let bring = async {
                tokio::time::sleep(LIMIT / 10).await;
                let _ = tell.send(7);
            };
            bring.await;
            assert_eq!(waiting.await.unwrap().transpose().unwrap(), expected, "{turns} turns");
        }
    }
}
