//! The write lock of a SQLite file, which one program holds at a time.
//!
//! Writers of this process queue for the one writing connection of a tenant (writers of groups for the lock on groups
//! before that), so only the first of them waits for a lock that another program holds: the forms product, a backup,
//! an import. This module owns the time limit of that wait. Time spent in a queue counts while the first writer is
//! waiting for the lock, and a writer whose time is up in a queue is refused there ([`WriteLock::timed_out`]). So four
//! writers are refused after one limit and not after four.
//!
//! The lock is polled from here and not by SQLite's busy handler, which would block a thread that nothing can
//! interrupt.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::DatabaseFailure;

/// The longest pause between two tries.
///
/// Larger: a released lock is taken later, and other programs get it first. Smaller: waiting costs more CPU.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// What this process knows about the lock.
#[derive(Debug, Default)]
pub(super) struct WriteLock {
    /// When a try first found the lock held by another program. None if the last try succeeded.
    held_since: Mutex<Option<Instant>>,
}

impl WriteLock {
    /// Pauses a writer that has found the lock held, and returns whether it should try again. It gives up once another
    /// program has held the lock for `limit` since `waiting_since`. `tried_at` is when the failed try began.
    pub(super) async fn wait(
        &self,
        backoff: &mut Backoff,
        waiting_since: Instant,
        tried_at: Instant,
        limit: Duration,
    ) -> bool {
        let held_since = *self.held().get_or_insert(tried_at);
        let remaining = remaining(held_since, waiting_since, limit);
        if remaining.is_zero() {
            return false;
        }
        tokio::time::sleep(backoff.next().min(remaining)).await;
        true
    }

    /// Completes when a writer that has been in a queue since `waiting_since` should give up: once another program has
    /// held the lock for `limit` of that time.
    pub(super) async fn timed_out(&self, waiting_since: Instant, limit: Duration) {
        loop {
            let held_since = *self.held();
            // While the lock is free, the earliest timeout is a whole limit away.
            let remaining = held_since.map_or(limit, |since| remaining(since, waiting_since, limit));
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining).await;
        }
    }

    /// Notes that a try found the lock free.
    pub(super) fn is_free(&self) {
        *self.held() = None;
    }

    fn held(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much longer a writer that has been waiting since `waiting_since` waits for a held lock.
fn remaining(held_since: Instant, waiting_since: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(held_since.max(waiting_since).elapsed())
}

/// The pauses of one writer, doubling from a millisecond: most transactions take milliseconds.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

impl Backoff {
    fn next(&mut self) -> Duration {
        let backoff = self.0;
        self.0 = (backoff * 2).min(LONGEST_PAUSE);
        backoff
    }
}

/// Whether an error means that another program holds the lock.
pub(super) fn is_held(error: &sqlx::Error) -> bool {
    DatabaseFailure::of(error) == Some(DatabaseFailure::Locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    /// Waits for a lock that is never released until the writer gives up.
    async fn wait_in_vain(lock: &WriteLock, waiting_since: Instant) {
        let mut backoff = Backoff::default();
        while lock.wait(&mut backoff, waiting_since, Instant::now(), LIMIT).await {}
        assert!(waiting_since.elapsed() >= LIMIT);
    }

    async fn tries_again(lock: &WriteLock, waiting_since: Instant, limit: Duration) -> bool {
        lock.wait(&mut Backoff::default(), waiting_since, Instant::now(), limit).await
    }

    #[tokio::test]
    async fn time_in_the_queue_counts_while_the_lock_is_held() {
        let (lock, waiting_since) = (WriteLock::default(), Instant::now());
        wait_in_vain(&lock, waiting_since).await;
        for _ in 0..3 {
            assert!(!tries_again(&lock, waiting_since, LIMIT).await, "it waited in the queue");
        }
        assert!(tries_again(&lock, Instant::now(), 100 * LIMIT).await, "it came later");
    }

    #[tokio::test]
    async fn a_writer_in_a_queue_gives_up_as_soon_as_the_one_that_tries() {
        let (lock, waiting_since) = (WriteLock::default(), Instant::now());
        tokio::join!(wait_in_vain(&lock, waiting_since), lock.timed_out(waiting_since, LIMIT));
        assert!(waiting_since.elapsed() < 2 * LIMIT, "{:?}", waiting_since.elapsed());
        let later = Instant::now();
        lock.timed_out(waiting_since, LIMIT).await;
        assert!(later.elapsed() < LIMIT / 2, "it has waited");
        lock.timed_out(later, LIMIT).await;
        assert!(later.elapsed() >= LIMIT, "this one came later");
        lock.is_free();
        assert!(
            tokio::time::timeout(2 * LIMIT, lock.timed_out(waiting_since, LIMIT)).await.is_err(),
            "the lock is free"
        );
    }

    #[tokio::test]
    async fn time_in_the_queue_does_not_count_while_the_lock_was_free() {
        let (lock, waiting_since) = (WriteLock::default(), Instant::now());
        wait_in_vain(&lock, waiting_since).await;
        lock.is_free();
        assert!(tries_again(&lock, waiting_since, 100 * LIMIT).await);
        lock.is_free();
        let tried_at = Instant::now();
        while lock.wait(&mut Backoff::default(), waiting_since, tried_at, LIMIT).await {}
        assert!(tried_at.elapsed() >= LIMIT);
    }
}
