//! The accounts that this node knows, by key, and what it remembers of each one's window.
//!
//! Owns which tenants share an account: those with the same slug and database, even across reloads. A reload that
//! reaches the database by another address, or that brings back a removed tenant, must not start a new window while
//! requests of the old one still count.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::sync::Semaphore;

use super::outcome::{Budget, BudgetOf, Full, Outcomes};
use super::shared::{Operation, OwnWindow, WindowRequest};
use super::usage::LogEntry;
use super::windows::{KnownOwn, Windows};
use super::{NotAdmitted, outcome};
use crate::store::DatabaseIdentity;

/// What the keys of windows begin with.
const WINDOW: &str = "formgate:window:";

/// What requests of an account are for. Each interface has a budget of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// The API.
    #[default]
    Api,
    /// SCIM: a directory sends a request for each person, which must not spend what other programs need.
    Scim,
}

/// One account's budget, as this node knows it.
#[derive(Debug)]
pub struct Account {
    pub(super) key: Arc<str>,
    /// What this node admitted. Complete if no Redis is shared.
    own: Mutex<Windows>,
    /// What the shared window reported when it was last full. Only the passing of time frees a place, so no node
    /// needs to ask Redis before then.
    pub(super) full: ArcSwapOption<Full>,
    /// The shared window's last known remainder, for requests that spend nothing.
    last_peek: Mutex<Option<Peek>>,
    /// Held while one request peeks; others wait and reuse its result.
    pub(super) peeking: tokio::sync::Mutex<()>,
    /// Held by the export that this node sends.
    pub(super) exporting: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Peek {
    /// In microseconds of [`Quota::now`](super::Quota).
    pub(super) at: u64,
    /// The limit that `remaining` was computed with.
    pub(super) limit: u32,
    pub(super) remaining: u32,
}

impl Account {
    /// The account of the tenant with a slug and a database, for one interface. The key contains all three. A slug that moves to another
    /// database is another account. So is the tenant of a copied database, which has the same identity but its own
    /// slug.
    #[must_use]
    pub fn new(slug: &str, database: &DatabaseIdentity, interface: Interface) -> Self {
        let of_interface = match interface {
            Interface::Api => "",
            Interface::Scim => ":scim",
        };
        Self {
            // The braces are a hash tag: the key stays in the same cluster slot when the tenant gets another
            // database.
            key: format!("{WINDOW}{{{slug}}}:{}{of_interface}", database.as_str()).into(),
            own: Mutex::default(),
            full: ArcSwapOption::empty(),
            last_peek: Mutex::default(),
            peeking: tokio::sync::Mutex::default(),
            exporting: Arc::new(Semaphore::new(1)),
        }
    }

    /// Its part of the keys of Redis, with the hash tag that keeps all of them in one cluster slot.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.key[WINDOW.len()..]
    }

    /// The account with its tenant's configured limit. Requests in flight across a change of the limit keep the one
    /// they started with, so the account itself stores none.
    #[must_use]
    pub fn limited(&self, limit: u32) -> LimitedAccount<'_> {
        LimitedAccount { account: self, limit }
    }

    pub(super) fn own(&self) -> MutexGuard<'_, Windows> {
        // A window is consistent between any two of its statements, so a poisoned lock is usable.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no thread panicked while it held the window.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.own.is_poisoned()
    }

    pub(super) fn last_peek(&self) -> MutexGuard<'_, Option<Peek>> {
        self.last_peek.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token, and the limit per window of its own budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedToken {
    /// Its number.
    pub id: i64,
    /// Its limit; `None` if only the account's budget limits it.
    pub limit: Option<u32>,
}

/// An account and its limit per window.
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
    /// A look at the account's window.
    pub(super) fn look(&self) -> WindowRequest {
        let held = self.last_peek().map_or(0, |peek| peek.limit.saturating_sub(peek.remaining));
        let (log, limit) = (Arc::clone(&self.key), self.limit);
        WindowRequest { log, limit, operation: Operation::Peek, places: 1, token: 0, held, own: None }
    }

    /// A request to its window, and to the token's own if the token has a budget.
    pub(super) fn request(&self, operation: Operation, token: LimitedToken) -> WindowRequest {
        let own = token.limit.map(|limit| {
            let (log, held) = (format!("{}:token:{}", self.key, token.id), self.own().held(token.id));
            OwnWindow { log, limit, held }
        });
        WindowRequest { operation, token: LogEntry::short(token.id), own, ..self.look() }
    }

    pub(super) fn budget(&self, remaining: u32) -> Budget {
        Budget { of: BudgetOf::Account, limit: self.limit, remaining }
    }

    /// What the shared window of the account reported when it was last full, if it still is.
    pub(super) fn known_full(&self, now: u64) -> Option<Arc<Full>> {
        self.full.load_full().filter(|full| full.holds(self.limit, now))
    }

    /// What this node knows of the token's own shared window.
    pub(super) fn known_own(&self, token: LimitedToken, account: Option<&Full>, now: u64) -> KnownOwn {
        // Without a budget, no lock is needed.
        if token.limit.is_some() { self.own().known(now, token, account) } else { KnownOwn::Open }
    }

    /// Remembers what shared windows reported, and returns the refusal by those that are full.
    pub(super) fn note_shared(
        &self,
        (now, span): (u64, u64),
        token: LimitedToken,
        outcomes: &Outcomes,
    ) -> Option<NotAdmitted> {
        let full = Full::of(&outcomes.account, self.limit, now);
        if let Some(full) = &full {
            self.full.store(Some(Arc::new(full.clone())));
        }
        let own = outcomes.token.as_ref();
        let own = own.and_then(|own| self.own().note_shared((now, span), token, own, full.as_ref()));
        outcome::refusal(full.as_ref(), own.as_ref(), now)
    }

    pub(super) fn note_peek(&self, at: u64, remaining: u32) {
        *self.last_peek() = Some(Peek { at, limit: self.limit, remaining });
    }
}

/// Every account that a tenant uses, and those without a tenant whose requests still count.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<HashMap<Arc<str>, Arc<Account>>>);

impl Accounts {
    /// Returns the account with this key, or inserts and returns `account` if there is none.
    pub(super) fn find_or_insert(&self, account: Account) -> Arc<Account> {
        let key = Arc::clone(&account.key);
        Arc::clone(self.lock().entry(key).or_insert_with(|| Arc::new(account)))
    }

    /// Keeps the accounts in use, and those others for which `keeps` returns true.
    pub(super) fn retain(&self, keeps: impl Fn(&Account) -> bool) {
        self.lock().retain(|_, account| Arc::strong_count(account) > 1 || keeps(account));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Account>>> {
        // A map is consistent between any two calls.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
