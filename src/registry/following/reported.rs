//! What is reported of a node that follows the registry: to readiness, in its log and in its metrics.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{FollowError, Followed, Following, Unready};
use crate::store::registry::Beat;
use crate::store::with_causes;

/// What readiness reports.
#[derive(Debug, Default)]
pub(super) struct FollowingState {
    pub(super) away: Option<String>,
    /// Other nodes do not know how far this one has got.
    pub(super) is_unlisted: bool,
    /// The first tenants whose rows are not served, with the reasons.
    pub(super) refused: Vec<(Arc<str>, String)>,
    pub(super) refused_count: usize,
    /// Why this node is not ready yet.
    pub(super) unready: Option<Unready>,
    /// Whether it stays ready from now on.
    pub(super) stays_ready: bool,
}

impl Following {
    /// Why the registry can't be followed at the moment.
    #[must_use]
    pub fn away(&self) -> Option<String> {
        self.state().away.clone()
    }

    /// How many tenants there are whose rows are not served, and the first of them with the reasons.
    #[must_use]
    pub fn refused(&self) -> (usize, Vec<(Arc<str>, String)>) {
        let state = self.state();
        (state.refused_count, state.refused.clone())
    }

    /// Whether callers who wait for a change don't wait for this node, because it can't write how far it has got.
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        self.state().is_unlisted
    }

    pub(in crate::registry) fn publish(&self, followed: &Followed) {
        let first = followed.refused.iter().take(Beat::NAMED);
        let first = first.map(|(slug, refused)| (slug.as_str().into(), refused.reason.clone())).collect();
        self.metrics.followed(followed.head.revision, followed.refused.len());
        let mut state = self.state();
        (state.refused, state.refused_count) = (first, followed.refused.len());
    }

    /// Notes whether the registry can be followed.
    pub(in crate::registry) fn note(&self, outcome: &Result<(), FollowError>) {
        self.is_other.store(matches!(outcome, Err(FollowError::OtherRegistry)), Ordering::Release);
        self.note_away(outcome.as_ref().err().map(|error| with_causes(error)));
    }

    fn note_away(&self, away: Option<String>) {
        self.metrics.up.set(i64::from(away.is_none()));
        let mut state = self.state();
        match (&state.away, &away) {
            (None, Some(cause)) => tracing::error!(cause, "registry unavailable; serving the last known tenants"),
            (Some(_), None) => tracing::info!("registry available again"),
            _ => {}
        }
        state.away = away;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FollowingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
