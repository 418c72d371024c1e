//! What a tenant's database knows of a move of its account to another one.
//!
//! While the move holds the account, whoever asks for the store waits. Then the store is that of the database to which the
//! account has moved, also for requests, senders and waiting readers that began at the old one; or it is the old one again, if
//! the move was put off. A hold has a time limit: the death of the node that carries out the move must not stop the account.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::TenantDatabase;
use crate::store::DatabaseLocation;

/// How long requests wait at most. A move that gives up earlier releases them at once.
///
/// Larger: they wait longer for a node that died. Smaller: while the registry is slow, they use a database that the account has
/// left, and their writes are refused.
const LONGEST_HOLD: Duration = Duration::from_secs(5);

/// How often it is checked whether requests still use the database.
///
/// Larger: requests wait for longer. Smaller: more checks.
const IN_USE_INTERVAL: Duration = Duration::from_millis(2);

/// The part of a move that one node sees.
#[derive(Debug)]
pub(super) struct Leaving {
    /// It is held now, or was once: only then does the rest matter.
    is_near: AtomicBool,
    /// Until when requests wait; none: they do not.
    held_until: watch::Sender<Option<Instant>>,
    /// The identity of the database to which the account is being moved.
    expected: ArcSwapOption<String>,
    /// Where the account is now.
    next: OnceLock<Arc<TenantDatabase>>,
    /// Held by each [`DirectUse`].
    uses: Arc<()>,
}

/// Somebody uses the account's database by connections of its own, for which a move waits as for requests.
#[derive(Debug)]
pub struct DirectUse(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl Default for Leaving {
    fn default() -> Self {
        Self {
            is_near: AtomicBool::new(false),
            held_until: watch::Sender::new(None),
            expected: ArcSwapOption::empty(),
            next: OnceLock::new(),
            uses: Arc::default(),
        }
    }
}

impl Leaving {
    pub(super) fn is_near(&self) -> bool {
        self.is_near.load(Ordering::Acquire)
    }

    /// Waits while the account is held. Returns the database to which it has moved.
    pub(super) async fn wait(&self) -> Option<&Arc<TenantDatabase>> {
        let mut held_until = self.held_until.subscribe();
        loop {
            let until = *held_until.borrow_and_update();
            match (self.next.get(), until) {
                (Some(next), _) => return Some(next),
                (None, Some(until)) if until > Instant::now() => _ = timeout_at(until, held_until.changed()).await,
                (None, _) => return None,
            }
        }
    }
}

impl TenantDatabase {
    /// The account is being moved to a database with this identity.
    pub fn expect_move(&self, identity: &str) {
        if self.leaving.expected.load().as_ref().is_none_or(|expected| **expected != identity) {
            self.leaving.expected.store(Some(Arc::new(identity.to_owned())));
        }
    }

    /// Whether the database with an identity is the one to which the account is being moved.
    pub(in crate::tenant) fn is_expected_at(&self, identity: &str) -> bool {
        self.leaving.expected.load().as_ref().is_some_and(|expected| **expected == identity)
    }

    /// Where the account is, for a caller that opens the database itself. While the account is held, waits.
    pub async fn use_directly(&self) -> (&DatabaseLocation, DirectUse) {
        let mut database = self;
        loop {
            if database.leaving.is_near()
                && let Some(next) = database.leaving.wait().await
            {
                database = next;
                continue;
            }
            let using = DirectUse(Arc::clone(&database.leaving.uses));
            if database.may_be_used() {
                return (&database.location, using);
            }
        }
    }

    /// Whether a user of the database that is already counted may continue. The count comes first, so that a hold that begins
    /// now does not overlook it.
    pub(super) fn may_be_used(&self) -> bool {
        !self.leaving.is_near() || !self.is_held() && !self.has_moved()
    }

    /// Holds requests that need the database from now on.
    pub fn hold(&self) {
        self.leaving.is_near.store(true, Ordering::Release);
        self.leaving.held_until.send_replace(Some(Instant::now() + LONGEST_HOLD));
    }

    /// Ends the hold.
    pub fn release(&self) {
        self.leaving.held_until.send_replace(None);
    }

    /// Whether requests wait.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leaving.held_until.borrow().is_some_and(|until| until > Instant::now())
    }

    /// Whether the account is in another database by now.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.leaving.next.get().is_some()
    }

    /// Continues requests in the database to which the account has moved.
    pub(in crate::tenant) fn move_to(&self, next: &Arc<Self>) {
        self.leaving.is_near.store(true, Ordering::Release);
        // The first one counts: that one knows where the account went then.
        self.leaving.next.set(Arc::clone(next)).ok();
        self.release();
    }

    /// Waits until no request uses the database, for a limited time. Returns whether that is so.
    pub async fn rest(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_used() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(IN_USE_INTERVAL).await;
        }
        true
    }

    /// Whether anybody but this has the open store.
    fn is_used(&self) -> bool {
        let opening = self.opening.try_lock().is_err() || Arc::strong_count(&self.leaving.uses) > 1;
        // One is kept here, and one was loaded now.
        opening || self.open.load_full().is_some_and(|store| Arc::strong_count(&store) > 2 || store.has_copies())
    }
}
