//! What this node knows about one tenant's tokens.

use std::sync::atomic::{AtomicU64, Ordering};

use super::last_used::LastUsed;
use super::names::TokenNames;
use super::prompt::PromptWrites;
use super::reads::Reads;
use super::request_log::RequestLog;
use super::usage::TokenUsage;

/// One tenant with one database, for as long as the configuration has both without interruption. A tenant that gets
/// another database starts a new generation, and so does one that returns after a reload without it: its slug and its
/// tokens' numbers may mean something else by then. Everything remembered about tokens is keyed by generation rather
/// than slug, so records from requests of the old generation never affect the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u64);

impl Generation {
    /// A generation that did not exist before.
    #[must_use]
    pub fn begin() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// What is known about the tokens of one generation of a tenant.
#[derive(Debug)]
pub struct Tokens {
    /// The generation.
    pub generation: Generation,
    /// Their names.
    pub names: TokenNames,
    /// When they were last used.
    pub last_used: LastUsed,
    /// The number of requests of each.
    pub usage: TokenUsage,
    /// The last requests.
    pub requests: RequestLog,
    /// Whether any of it is to be written within seconds.
    pub prompt: PromptWrites,
    /// Which submissions each was sent.
    pub reads: Reads,
    changes: AtomicU64,
}

impl Tokens {
    /// The tokens of a new generation, before anything is known.
    pub(super) fn new() -> Self {
        Self {
            generation: Generation::begin(),
            names: TokenNames::default(),
            last_used: LastUsed::default(),
            usage: TokenUsage::default(),
            requests: RequestLog::default(),
            prompt: PromptWrites::default(),
            reads: Reads::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// How many changes of its tokens this node received.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change: what is cached from before no longer counts.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}
