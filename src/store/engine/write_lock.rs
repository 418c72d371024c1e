//! The write lock of a SQLite file, which one program holds at a time.
//!
//! Writers of this process queue for the one writing connection of a tenant, and those of groups for their turn before that,
//! so only the first of them waits for a lock that another program holds (the forms product, a backup, an import). Owns how
//! long: every writer waits once, and the time in a queue counts while the first one is waiting for that lock. A writer that
//! is still in a queue then is refused there ([`WriteLock::timed_out`]): four writers are refused after one wait, not after
//! four.
//!
//! The lock is tried again and again from here and not by SQLite's own busy handler, which would block a thread that nothing
//! can interrupt.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::DatabaseFailure;

/// The longest pause between two tries. Larger: the lock is idle for longer before a writer takes it, and other programs get
/// it first. Smaller: waiting costs more CPU.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// What one process knows of the lock.
#[derive(Debug, Default)]
pub(super) struct WriteLock {
    /// Since when another program has been holding it, as far as the last try showed.
    held_since: Mutex<Option<Instant>>,
}

impl WriteLock {
    /// Whether a writer that has been waiting since `asked` tries again, after a pause; it gives up once another program has
    /// held the lock for `limit` of that time. `tried_at` is when the try began that found the lock held.
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

    /// Completes when a writer in a queue, waiting since `asked`, is to give up: once another program has held the lock for
    /// `limit` of that time.
    pub(super) async fn timed_out(&self, waiting_since: Instant, limit: Duration) {
        loop {
            let held_since = *self.held();
            // While the lock is free, the earliest end is a whole wait away.
            let remaining = held_since.map_or(limit, |since| remaining(since, waiting_since, limit));
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining).await;
        }
    }

    /// A try showed that no other program holds it.
    pub(super) fn is_free(&self) {
        *self.held() = None;
    }

    fn held(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much longer a writer that has been waiting since `asked` waits for a lock that is held.
fn remaining(held_since: Instant, waiting_since: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(held_since.max(waiting_since).elapsed())
}

/// The pauses of one writer: short ones first, since most transactions take milliseconds.
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

/// Whether an error reports that another program holds the lock.
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
    async fn a_writer_in_a_queue_gives_up_as_soon_as_one_that_tries() {
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
            "nobody holds it"
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
