//! How long somebody else is waited for, who is not to blame where it is this process that stood still: one whose machine was
//! paused, or moved, finds all its timers due, and the answers that came meanwhile unread.

use std::pin::pin;
use std::time::{Duration, Instant};

/// How late a timer is at least that says so; half of a limit that is shorter than twice of it. Larger, and a shorter pause is
/// taken for the other side's; smaller, and a busy moment of our own makes limits longer.
const LATE: Duration = Duration::from_millis(100);

/// So many turns: one more where this process stood still. More is for what is better waited for by a busy node than given up.
pub(crate) const ONCE_MORE: u32 = 2;

/// What comes of it, or nothing once it took longer than its limit: while the timer that says so is itself late, another turn
/// of the same length is given, of so many.
pub(crate) async fn within<T>(limit: Duration, turns: u32, what: impl Future<Output = T>) -> Option<T> {
    let mut what = pin!(what);
    for _ in 0..turns {
        let began = Instant::now();
        if let Ok(outcome) = tokio::time::timeout(limit, &mut what).await {
            return Some(outcome);
        }
        if began.elapsed() < limit + (limit / 2).min(LATE) {
            return None;
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
    async fn who_takes_longer_is_not_waited_for() {
        let began = Instant::now();
        assert_eq!(within(LIMIT, 3, std::future::pending::<()>()).await, None);
        assert!(began.elapsed() >= LIMIT);
        assert_eq!(within(LIMIT, 3, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn what_came_while_this_process_stood_still_is_waited_for_once_more() {
        for (turns, expected) in [(1, None), (2, Some(7))] {
            let (tell, told) = oneshot::channel();
            let waiting = tokio::spawn(within(LIMIT, turns, told));
            tokio::task::yield_now().await;
            thread::sleep(3 * LIMIT);
            // Who brings it is only behind who waits for it.
            let bring = async {
                tokio::time::sleep(LIMIT / 10).await;
                let _ = tell.send(7);
            };
            bring.await;
            assert_eq!(waiting.await.unwrap().transpose().unwrap(), expected, "{turns} turns");
        }
    }
}
