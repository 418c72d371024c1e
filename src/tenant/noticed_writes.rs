//! Wakes requests that wait for a change in a tenant's database, when a write there was noticed.
//!
//! Owns the set of waiting requests. The webhook watcher, which detects writes anyway, reports them here. A report is only a
//! hint: a waiting request also polls the log, rarely if every write is detected ([`WaitingReader::next_look`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How often a request polls while writes may go undetected, or right after a write.
///
/// Larger: its response is later. Smaller: more polls of the database.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often a request polls if every write is detected.
///
/// Larger: its response is later if a write still goes undetected. Smaller: waiting takes more connections.
const RARE_LOOKS: Duration = Duration::from_secs(10);

/// For how long after a detected write a request polls often: the commit may follow the detected write.
///
/// Larger: more polls that find nothing. Smaller: the next rare poll finds a slow commit.
const RECENT: Duration = Duration::from_secs(2);

/// The requests of a node that wait for changes, by tenant.
#[derive(Debug, Default)]
pub struct NoticedWrites(Mutex<HashMap<Arc<str>, Readers>>);

/// The waiting requests of a tenant: at least one.
#[derive(Debug, Default)]
struct Readers {
    count: usize,
    noticed: watch::Sender<Noticed>,
}

/// The writes to a database, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
struct Noticed {
    last: Option<Instant>,
    /// Whether every write is detected.
    is_reliable: bool,
}

/// A request that waits. Dropping it ends the wait.
#[derive(Debug)]
pub struct WaitingReader {
    all: Arc<NoticedWrites>,
    slug: Arc<str>,
    noticed: watch::Receiver<Noticed>,
}

impl NoticedWrites {
    /// Begins to wait for writes to a tenant's database. What is written from now on is noticed.
    #[must_use]
    pub fn wait(self: &Arc<Self>, slug: &Arc<str>) -> WaitingReader {
        let mut waiting = self.lock();
        let readers = waiting.entry(Arc::clone(slug)).or_default();
        readers.count += 1;
        WaitingReader { all: Arc::clone(self), slug: Arc::clone(slug), noticed: readers.noticed.subscribe() }
    }

    /// The tenants with requests that wait.
    #[must_use]
    pub fn waited_for(&self) -> Vec<Arc<str>> {
        self.lock().keys().cloned().collect()
    }

    /// Whether a request of a tenant waits.
    #[must_use]
    pub fn is_waited_for(&self, slug: &str) -> bool {
        self.lock().contains_key(slug)
    }

    /// Wakes the requests of a tenant, because a write may have gone unnoticed until now.
    pub fn wake(&self, slug: &str) {
        if let Some(readers) = self.lock().get(slug) {
            readers.noticed.send_modify(|_| ());
        }
    }

    /// Wakes the requests that wait for a write to a tenant's database.
    pub fn note(&self, slug: &str) {
        if let Some(readers) = self.lock().get(slug) {
            readers.noticed.send_modify(|noticed| noticed.last = Some(Instant::now()));
        }
    }

    /// Notes whether each write from now on is sure to be noticed. Wakes them if it is no longer so: a write may have gone unnoticed.
    pub fn set_reliable(&self, slug: &str, is_reliable: bool) {
        if let Some(readers) = self.lock().get(slug) {
            readers.noticed.send_if_modified(|noticed| {
                let was_reliable = std::mem::replace(&mut noticed.is_reliable, is_reliable);
                was_reliable && !is_reliable
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Readers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingReader {
    /// Returns when it is time to poll: a write was detected, or none was for a while.
    pub async fn next_look(&mut self) {
        // The sender is kept as long as this reader.
        let _ = tokio::time::timeout(self.rest(), self.noticed.changed()).await;
    }

    /// How long it may rest unless it is woken.
    fn rest(&self) -> Duration {
        let noticed = *self.noticed.borrow();
        let is_recent = noticed.last.is_some_and(|last| last.elapsed() < RECENT);
        if noticed.is_reliable && !is_recent { RARE_LOOKS } else { LOOK_INTERVAL }
    }
}

impl Drop for WaitingReader {
    fn drop(&mut self) {
        let mut waiting = self.all.lock();
        if let Some(readers) = waiting.get_mut(&self.slug) {
            readers.count -= 1;
            if readers.count == 0 {
                waiting.remove(&self.slug);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a reader was woken since it last rested.
    fn is_woken(reader: &mut WaitingReader) -> bool {
        let is_woken = reader.noticed.has_changed().unwrap();
        reader.noticed.mark_unchanged();
        is_woken
    }

    #[test]
    fn a_reader_rests_for_long_only_while_each_write_is_sure_to_be_noticed() {
        let (all, slug) = (Arc::new(NoticedWrites::default()), Arc::from("acme"));
        let mut reader = all.wait(&slug);
        assert_eq!((is_woken(&mut reader), reader.rest()), (false, LOOK_INTERVAL));
        all.set_reliable("acme", true);
        all.note("another");
        assert_eq!((is_woken(&mut reader), reader.rest()), (false, RARE_LOOKS));
        all.wake("acme");
        assert_eq!((is_woken(&mut reader), reader.rest()), (true, RARE_LOOKS));
        all.note("acme");
        assert_eq!((is_woken(&mut reader), reader.rest()), (true, LOOK_INTERVAL), "the commit may follow");
        all.set_reliable("acme", true);
        assert!(!is_woken(&mut reader));
        all.set_reliable("acme", false);
        assert_eq!((is_woken(&mut reader), reader.rest()), (true, LOOK_INTERVAL), "a write may have gone unnoticed");
    }

    #[tokio::test]
    async fn a_write_while_a_reader_looks_wakes_it_at_once() {
        let (all, slug) = (Arc::new(NoticedWrites::default()), Arc::from("acme"));
        let mut reader = all.wait(&slug);
        all.set_reliable("acme", true);
        all.note("acme");
        let began = Instant::now();
        reader.next_look().await;
        assert!(began.elapsed() < LOOK_INTERVAL);
        assert!(!is_woken(&mut reader));
    }

    #[test]
    fn a_tenant_is_waited_for_as_long_as_a_reader_is() {
        let (all, slug) = (Arc::new(NoticedWrites::default()), Arc::from("acme"));
        let (first, second) = (all.wait(&slug), all.wait(&slug));
        assert_eq!(all.waited_for(), [Arc::clone(&slug)]);
        drop(first);
        assert!(all.is_waited_for("acme"));
        drop(second);
        assert!(!all.is_waited_for("acme"));
    }
}
