//! The background task that follows the registry.
//!
//! Owns when the registry is polled, and when a run counts as a success: a node that follows but can't write how far it
//! has got does not succeed, since callers do not wait for it.

use std::sync::Arc;
use std::time::Duration;

use super::following::Following;
use crate::background::{Run, Task};

/// How often the registry is polled.
///
/// Larger: changes are served later. Smaller: more statements without a change.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often it is polled while an account is about to move to another database.
///
/// Larger: the account's requests wait for longer. Smaller: more statements.
const MOVE_INTERVAL: Duration = Duration::from_millis(30);

/// The task.
#[derive(Debug)]
pub struct FollowRegistry(pub Arc<Following>);

impl Task for FollowRegistry {
    const NAME: &'static str = "registry";

    fn interval(&self) -> Duration {
        if self.0.has_near_move() { MOVE_INTERVAL } else { LOOK_INTERVAL }
    }

    async fn woken(&mut self) {
        self.0.changed.notified().await;
    }

    async fn run(&mut self) -> Run {
        let following = &self.0;
        let mut outcome = following.follow().await;
        if outcome.is_ok() {
            outcome = following.complete_snapshot().await;
        }
        following.check_rights().await;
        following.note(&outcome);
        following.share_out().await;
        if outcome.is_ok() && !following.is_unlisted() { Run::Succeeded } else { Run::Failed }
    }
}
