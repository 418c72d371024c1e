//! Calls of a node's background work that Redis refuses, such as those that the ACL of its user lacks.
//!
//! No request notices them: each is counted, logged once until Redis takes it again, and shown by readiness.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use redis::RedisError;

use crate::metrics::RedisMetrics;

/// A call that no request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackgroundCall {
    /// Publishing the requests of the last hour.
    Usage,
    /// Receiving changes of tokens.
    TokenChanges,
    /// Reading whether Redis evicts keys.
    EvictionPolicy,
}

impl BackgroundCall {
    /// What does not work while Redis refuses it.
    fn consequence(self) -> &'static str {
        match self {
            Self::Usage => "the chart of the last hour shows one node only",
            Self::TokenChanges => "a revoked token may be taken for 5 seconds more",
            Self::EvictionPolicy => "it is not known whether Redis may evict budgets",
        }
    }

    /// Whether a part of the node does not work without it.
    fn is_needed(self) -> bool {
        self != Self::EvictionPolicy
    }
}

/// Whether Redis answered with an error.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    error.code().is_some()
}

/// The calls that Redis refused when they were last made.
#[derive(Debug)]
pub(super) struct Refusals {
    refused: Mutex<BTreeSet<BackgroundCall>>,
    metrics: RedisMetrics,
}

impl Refusals {
    pub(super) fn new(metrics: RedisMetrics) -> Self {
        Self { refused: Mutex::default(), metrics }
    }

    /// Redis refused a call.
    pub(super) fn refused(&self, call: BackgroundCall, cause: &str) {
        self.metrics.failures.with_label_values(&["refused"]).inc();
        let is_new = self.change(|refused| refused.insert(call));
        if is_new {
            tracing::warn!(
                cause,
                consequence = call.consequence(),
                remedy = "see the ACL in deploy/configuration.md",
                "Redis refuses a call of this node"
            );
        }
    }

    /// Redis took a call.
    pub(super) fn taken(&self, call: BackgroundCall) {
        if self.change(|refused| refused.remove(&call)) {
            tracing::info!(?call, "Redis takes the call again that it refused");
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<BackgroundCall>) -> bool) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let is_changed = change(&mut refused);
        if is_changed {
            self.metrics.refuses.set(refused.iter().any(|call| call.is_needed()).into());
        }
        is_changed
    }
}
