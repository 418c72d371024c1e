//! What this node knows of one tenant's tokens.

use std::sync::atomic::{AtomicU64, Ordering};

use super::last_used::LastUsed;
use super::names::TokenNames;

/// One tenant with one database, for as long as the configuration has both without a break. A tenant that gets another
/// database begins a new generation, and so does one that comes back after a reload without it: its slug, and the numbers of
/// its tokens, may mean something else by then. Whatever is remembered of tokens is filed under this and not under the slug,
/// so that what a request of the old generation still notes never concerns the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u64);

impl Generation {
    /// One that there was not before.
    #[must_use]
    pub fn begin() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// What is known of the tokens of one generation of a tenant.
#[derive(Debug)]
pub struct Tokens {
    /// Which generation.
    pub generation: Generation,
    /// What they are called.
    pub names: TokenNames,
    /// When they were used.
    pub last_used: LastUsed,
    changes: AtomicU64,
}

impl Tokens {
    /// Of a new generation: nothing is known yet.
    pub(super) fn new() -> Self {
        Self {
            generation: Generation::begin(),
            names: TokenNames::default(),
            last_used: LastUsed::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// How often they changed, as far as this node heard.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes that they changed.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}
