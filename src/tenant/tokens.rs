//! What this node knows of one tenant's tokens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use smallvec::SmallVec;

use super::last_used::LastUsed;
use super::names::TokenNames;
use super::token::Token;
use super::token::TokenDigest;

/// How many tokens of a tenant are kept in use. More costs memory and a longer way through them; with fewer, a tenant
/// with many callers has more of its requests look in what is remembered of all tenants.
const MOST: usize = 64;

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
    /// Those that callers come with.
    pub(super) in_use: InUse,
    changes: AtomicU64,
}

impl Tokens {
    /// Of a new generation: nothing is known yet.
    pub(super) fn new() -> Self {
        Self {
            generation: Generation::begin(),
            names: TokenNames::default(),
            last_used: LastUsed::default(),
            in_use: InUse::default(),
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

/// When a database was asked, and which changes were known before: of all tenants' tokens that were missed, and of this
/// tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) changes: (u64, u64),
}

/// The tokens that callers come with, and the database knew. They stand at the tenant, which a request has at hand, and
/// where no flood of invented ones takes their place. The only one that many tenants have stands in the list itself.
#[derive(Debug, Default)]
pub(super) struct InUse(RwLock<SmallVec<[Known; 1]>>);

#[derive(Debug)]
struct Known {
    digest: TokenDigest,
    asked: Asked,
    token: Arc<Token>,
}

impl InUse {
    /// Whether nobody panicked while they changed.
    pub(super) fn is_sound(&self) -> bool {
        !self.0.is_poisoned()
    }

    /// A token, if what the database said of it still holds.
    pub(super) fn find(&self, digest: &TokenDigest, holds: impl FnOnce(Asked) -> bool) -> Option<Arc<Token>> {
        // A list is whole between any two of its statements: a panic elsewhere leaves it usable.
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.iter().find(|known| known.digest == *digest)?;
        holds(known.asked).then(|| Arc::clone(&known.token))
    }

    /// Keeps a token that the database knew; of too many, the one goes that was looked up longest ago.
    pub(super) fn keep(&self, digest: TokenDigest, asked: Asked, token: &Arc<Token>) {
        let new = Known { digest, asked, token: Arc::clone(token) };
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let same = known.iter().position(|known| known.digest == digest);
        let oldest = || (0..known.len()).min_by_key(|&at| known[at].asked.at);
        match same.or_else(|| oldest().filter(|_| known.len() >= MOST)) {
            Some(at) => known[at] = new,
            None => known.push(new),
        }
    }

    /// Forgets a token that the database no longer knows.
    pub(super) fn forget(&self, digest: &TokenDigest) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|known| known.digest != *digest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tenant::token::PresentedToken;

    fn asked(seconds: u64, now: Instant) -> Asked {
        Asked { at: now + Duration::from_secs(seconds), changes: (0, 0) }
    }

    #[test]
    fn of_too_many_the_one_goes_that_was_looked_up_longest_ago() {
        let (in_use, now) = (InUse::default(), Instant::now());
        let digests: Vec<_> = (0..=MOST).map(|_| PresentedToken::generate().digest()).collect();
        for (seconds, digest) in (1..).zip(&digests[..MOST]) {
            in_use.keep(*digest, asked(seconds, now), &Arc::new(Token::new(1, "one")));
        }
        // Looked up anew, the first is no longer the oldest.
        in_use.keep(digests[0], asked(1000, now), &Arc::new(Token::new(1, "one")));
        in_use.keep(digests[MOST], asked(1001, now), &Arc::new(Token::new(1, "one")));
        let found = |digest| in_use.find(digest, |_| true).is_some();
        let lost: Vec<_> = digests.iter().enumerate().filter(|(_, digest)| !found(digest)).map(|(at, _)| at).collect();
        assert_eq!(lost, [1]);
    }

    #[test]
    fn what_no_longer_holds_is_not_found_and_what_is_forgotten_neither() {
        let (in_use, now, digest) = (InUse::default(), Instant::now(), PresentedToken::generate().digest());
        in_use.keep(digest, asked(1, now), &Arc::new(Token::new(7, "seven")));
        assert_eq!(in_use.find(&digest, |said| said == asked(1, now)).map(|token| token.id), Some(7));
        assert!(in_use.find(&digest, |_| false).is_none());
        in_use.forget(&digest);
        assert!(in_use.find(&digest, |_| true).is_none());
    }
}
