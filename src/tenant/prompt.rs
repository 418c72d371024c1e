//! Since when something waits that is written within seconds, unlike last uses and hours: rows of the request log. Whoever
//! notes such a thing calls [`PromptWrites::begin`], and it is written with everything else ([`super::written_behind`]).
//!
//! An open database is written every few seconds. A closed SQLite file is not opened for that: its rows wait for a minute,
//! or for a request that opens it in the second half of that minute. Whether it was closed shows in whether it
//! was opened since the last write. A write is a commit, after which the next look-up of a token reads the database again
//! (`verify.rs`): if that opened the file, and the next round wrote to the connection that it left, requests would open a
//! closed file every few seconds.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::written_behind::Due;
use crate::store::Store;

/// The shortest time between two writes of an account, and how long a row waits for a connection to Postgres that is idle.
///
/// Larger: other nodes and commands see requests later, and a crash loses more. Smaller: a busy account writes more often.
const PAUSE: Duration = Duration::from_secs(5);

/// How long rows of a closed SQLite file wait until the file is opened for them, and everything after a write that failed.
///
/// Larger: commands see requests later, and a crash loses more. Smaller: quiet accounts cost more.
const CLOSED_PAUSE: Duration = Duration::from_secs(60);

/// How long they have waited if a request that opens the file writes them.
///
/// Larger: the file is opened once more for them. Smaller: more requests to a closed file pay for a write.
const AT_OPENING: Duration = Duration::from_secs(30);

/// How many tenants have something to write: without any, nobody looks for it.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether any tenant has something to write.
pub(super) fn is_any_waiting() -> bool {
    WAITING.load(Ordering::Acquire) > 0
}

/// Since when something of one tenant waits, and when it was last written.
#[derive(Debug, Default)]
pub struct PromptWrites {
    /// In milliseconds of [`now`]; 0 if nothing waits.
    since: AtomicI64,
    /// When the last write ended; 0 if there was none.
    written: AtomicI64,
    /// Whether it failed.
    has_failed: AtomicBool,
    /// The openings of the database when it was last written.
    openings: AtomicU64,
}

/// Which connection a write may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayUse {
    /// One that is idle.
    Idle,
    /// One that is idle, or else a new one.
    New,
}

impl PromptWrites {
    /// Something waits from now on, if nothing did.
    pub fn begin(&self) {
        if self.since.load(Ordering::Relaxed) == 0 {
            self.put_back(now());
        }
    }

    /// Whether something waits that a request should write which has just ended.
    pub(super) fn is_due_after_request(&self) -> bool {
        self.waited(now()).is_some_and(|waited| waited >= AT_OPENING)
    }

    /// Whether something waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.since.load(Ordering::Acquire) > 0
    }

    /// Whether something waits, and the last write was so short a time ago that everything waits with it.
    pub(super) fn is_pausing(&self) -> bool {
        let pause = if self.has_failed.load(Ordering::Acquire) { CLOSED_PAUSE } else { PAUSE };
        self.is_waiting() && self.since_last_write().is_some_and(|passed| passed < pause)
    }

    /// Which connection may be used for what waits. `None` if nothing does, or it has to wait longer.
    pub(super) fn may_use(&self, due: Due, store: &Store, is_file: bool) -> Option<MayUse> {
        let waited = self.waited(now())?;
        let is_long = |passed: Option<Duration>| passed.is_none_or(|passed| passed >= CLOSED_PAUSE);
        match due {
            Due::All => Some(MayUse::New),
            Due::AfterRequest => (waited >= AT_OPENING).then_some(MayUse::Idle),
            Due::Promptly | Due::Afterwards if !is_file => {
                Some(if waited >= PAUSE { MayUse::New } else { MayUse::Idle })
            }
            Due::Promptly | Due::Afterwards if waited >= CLOSED_PAUSE && is_long(self.since_last_write()) => {
                Some(MayUse::New)
            }
            Due::Promptly | Due::Afterwards => {
                let was_written = self.since_last_write().is_some();
                let stayed_open = !was_written || store.openings() == self.openings.load(Ordering::Acquire);
                stayed_open.then_some(MayUse::Idle)
            }
        }
    }

    /// What waits is being written. Returns since when it has waited, for [`Self::put_back`].
    pub(super) fn take(&self) -> i64 {
        let since = self.since.swap(0, Ordering::AcqRel);
        if since != 0 {
            WAITING.fetch_sub(1, Ordering::AcqRel);
        }
        since
    }

    /// It was not written, and waits since then.
    pub(super) fn put_back(&self, since: i64) {
        if since == 0 {
            return;
        }
        let before = self.since.fetch_update(Ordering::AcqRel, Ordering::Acquire, |newer| match newer {
            0 => Some(since),
            newer => Some(newer.min(since)),
        });
        if before == Ok(0) {
            WAITING.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Everything is written.
    pub(super) fn written(&self, store: &Store) {
        self.end_write(store, false);
    }

    /// A write failed. Returns whether it is the first one since one succeeded.
    pub(super) fn failed(&self, store: &Store) -> bool {
        !self.end_write(store, true)
    }

    /// Returns whether the write before failed.
    fn end_write(&self, store: &Store, has_failed: bool) -> bool {
        self.openings.store(store.openings(), Ordering::Release);
        self.written.store(now(), Ordering::Release);
        self.has_failed.swap(has_failed, Ordering::AcqRel)
    }

    fn since_last_write(&self) -> Option<Duration> {
        let written = self.written.load(Ordering::Acquire);
        (written > 0).then(|| millis(now() - written))
    }

    fn waited(&self, now: i64) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire);
        (since > 0).then(|| millis(now - since))
    }
}

impl Drop for PromptWrites {
    fn drop(&mut self) {
        self.take();
    }
}

/// Milliseconds since this process asked first, by a clock that is never set back; not 0.
fn now() -> i64 {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(FIRST.elapsed().as_millis()).map_or(i64::MAX, |now| now + 1)
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_waits_since_it_was_noted() {
        let prompt = PromptWrites::default();
        assert!(!prompt.is_waiting() && prompt.take() == 0);
        prompt.begin();
        let since = prompt.since.load(Ordering::Acquire);
        assert!(prompt.is_waiting() && !prompt.is_pausing(), "nothing was written before");
        prompt.begin();
        assert_eq!(prompt.take(), since, "since the first of both");
        prompt.put_back(since + 7);
        prompt.put_back(since);
        // Of a write that had nothing to take.
        prompt.put_back(0);
        assert_eq!(prompt.take(), since);
        assert!(!prompt.is_waiting());
    }
}
