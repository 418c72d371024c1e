//! The write lock of a SQLite file, which one program holds at a time.
//!
//! Writers of this process queue for the one writing connection of a tenant, and those of groups for their turn before that,
//! so only the first of them waits for a lock that another program holds (the forms product, a backup, an import). Owns how
//! long: every writer waits once, and the time in a queue counts while the first one is waiting for that lock. A writer that
//! is still in a queue then is refused there ([`WriteLock::given_up`]): four writers are refused after one wait, not after
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
    /// held the lock for `limit` of that time. `tried` is when the try began that found the lock held.
    pub(super) async fn wait(&self, pause: &mut Pause, asked: Instant, tried: Instant, limit: Duration) -> bool {
        let held_since = *self.held().get_or_insert(tried);
        let left = left(held_since, asked, limit);
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(pause.next().min(left)).await;
        true
    }

    /// Completes when a writer in a queue, waiting since `asked`, is to give up: once another program has held the lock for
    /// `limit` of that time.
    pub(super) async fn given_up(&self, asked: Instant, limit: Duration) {
        loop {
            let held_since = *self.held();
            // While the lock is free, the earliest end is a whole wait away.
            let left = held_since.map_or(limit, |since| left(since, asked, limit));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
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
fn left(held_since: Instant, asked: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(held_since.max(asked).elapsed())
}

/// The pauses of one writer: short ones first, since most transactions take milliseconds.
#[derive(Debug)]
pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

impl Pause {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
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
    async fn wait_in_vain(lock: &WriteLock, asked: Instant) {
        let mut pause = Pause::default();
        while lock.wait(&mut pause, asked, Instant::now(), LIMIT).await {}
        assert!(asked.elapsed() >= LIMIT);
    }

    async fn tries_again(lock: &WriteLock, asked: Instant, limit: Duration) -> bool {
        lock.wait(&mut Pause::default(), asked, Instant::now(), limit).await
    }

    #[tokio::test]
    async fn time_in_the_queue_counts_while_the_lock_is_held() {
        let (lock, asked) = (WriteLock::default(), Instant::now());
        wait_in_vain(&lock, asked).await;
        for _ in 0..3 {
            assert!(!tries_again(&lock, asked, LIMIT).await, "it waited in the queue");
        }
        assert!(tries_again(&lock, Instant::now(), 100 * LIMIT).await, "it came later");
    }

    #[tokio::test]
    async fn a_writer_in_a_queue_gives_up_as_soon_as_one_that_tries() {
        let (lock, asked) = (WriteLock::default(), Instant::now());
        tokio::join!(wait_in_vain(&lock, asked), lock.given_up(asked, LIMIT));
        assert!(asked.elapsed() < 2 * LIMIT, "{:?}", asked.elapsed());
        let later = Instant::now();
        lock.given_up(asked, LIMIT).await;
        assert!(later.elapsed() < LIMIT / 2, "it has waited");
        lock.given_up(later, LIMIT).await;
        assert!(later.elapsed() >= LIMIT, "this one came later");
        lock.is_free();
        assert!(tokio::time::timeout(2 * LIMIT, lock.given_up(asked, LIMIT)).await.is_err(), "nobody holds it");
    }

    #[tokio::test]
    async fn time_in_the_queue_does_not_count_while_the_lock_was_free() {
        let (lock, asked) = (WriteLock::default(), Instant::now());
        wait_in_vain(&lock, asked).await;
        lock.is_free();
        assert!(tries_again(&lock, asked, 100 * LIMIT).await);
        lock.is_free();
        let tried = Instant::now();
        while lock.wait(&mut Pause::default(), asked, tried, LIMIT).await {}
        assert!(tried.elapsed() >= LIMIT);
    }
}
