//! The accounts that this node knows, by their keys: what it remembers of each one's window.
//!
//! Owns which tenants share an account: those with the same slug and database, whichever configuration made them. A reload
//! that reaches the database by another address, or removes a tenant that a later one brings back, must not begin a new
//! window while the requests of the old one still count.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use super::Budget;
use super::shared::{Ask, Question};
use super::usage::Usage;
use super::window::Window;
use crate::store::DatabaseIdentity;

/// The part of a budget that this node holds for one account.
#[derive(Debug)]
pub struct Account {
    pub(super) key: Arc<str>,
    /// What this node admitted; the whole truth where no store is shared.
    own: Mutex<Window>,
    /// What the shared window last said of itself when it was full. Only the passing of time frees a place, so until
    /// then no node needs to ask it.
    pub(super) full: ArcSwapOption<Full>,
    /// What the shared window last said was left, for requests that spend nothing.
    last_look: Mutex<Option<Look>>,
    /// Held while one request looks and others wait for what it sees.
    pub(super) looking: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Full {
    /// In microseconds of [`Quota::now`](super::Quota).
    pub(super) until: u64,
    /// The limit that it was full by.
    pub(super) limit: u32,
    pub(super) usage: Arc<Usage>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// In microseconds of [`Quota::now`](super::Quota).
    pub(super) at: u64,
    /// The limit that the rest is of.
    pub(super) limit: u32,
    pub(super) remaining: u32,
}

impl Account {
    /// The account of the tenant with a slug and a database. Both are in the key: a slug that is given to another database
    /// is another account, and so is the tenant of a copied database, which has the same identity and a slug of its own.
    #[must_use]
    pub fn new(slug: &str, database: &DatabaseIdentity) -> Self {
        Self {
            // In braces, what chooses the slot of a cluster: it stays where it is when the tenant gets another database.
            key: format!("formgate:window:{{{slug}}}:{}", database.as_str()).into(),
            own: Mutex::default(),
            full: ArcSwapOption::empty(),
            last_look: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// The account with the limit that its tenant is configured with. Requests that are in flight across a change of the
    /// limit keep the one they began with, so the account itself has none.
    #[must_use]
    pub fn limited(&self, limit: u32) -> LimitedAccount<'_> {
        LimitedAccount { account: self, limit }
    }

    pub(super) fn own(&self) -> MutexGuard<'_, Window> {
        // A window is whole between any two of its statements: a panic elsewhere leaves it usable.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no thread panicked while it held the window.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.own.is_poisoned()
    }

    pub(super) fn last_look(&self) -> MutexGuard<'_, Option<Look>> {
        self.last_look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An account and its limit a window.
#[derive(Clone, Copy, Debug)]
pub struct LimitedAccount<'a> {
    account: &'a Account,
    pub(super) limit: u32,
}

impl Deref for LimitedAccount<'_> {
    type Target = Account;

    fn deref(&self) -> &Account {
        self.account
    }
}

impl LimitedAccount<'_> {
    pub(super) fn question(&self, ask: Ask, token: u32) -> Question {
        let held = self.last_look().map_or(0, |look| look.limit.saturating_sub(look.remaining));
        Question { key: Arc::clone(&self.key), limit: self.limit, ask, token, held }
    }

    pub(super) fn budget(&self, remaining: u32) -> Budget {
        Budget { limit: self.limit, remaining }
    }

    pub(super) fn note_look(&self, at: u64, remaining: u32) {
        *self.last_look() = Some(Look { at, limit: self.limit, remaining });
    }
}

/// Every account that a tenant has, and those whose tenant has gone and whose requests still count.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<HashMap<Arc<str>, Arc<Account>>>);

impl Accounts {
    /// The account with the key of this one, which is `account` itself if there was none.
    pub(super) fn find_or_insert(&self, account: Account) -> Arc<Account> {
        let key = Arc::clone(&account.key);
        Arc::clone(self.lock().entry(key).or_insert_with(|| Arc::new(account)))
    }

    /// Keeps the accounts in use, and the others of which this holds.
    pub(super) fn retain(&self, keeps: impl Fn(&Account) -> bool) {
        self.lock().retain(|_, account| Arc::strong_count(account) > 1 || keeps(account));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Account>>> {
        // A map is whole between any two of its calls.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
