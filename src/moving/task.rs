//! The background task that carries out moves: it leases moves that no node has, and spawns a task for each.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::task::JoinSet;

use super::carrying::Carrier;
use crate::background::{Run, Task};
use crate::metrics::RegistryMetrics;
use crate::registry::{FollowError, Following};
use crate::store::with_causes;

/// The interval at which the registry is polled for moves.
///
/// Larger: a move begins later. Smaller: more statements without one.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many accounts a node moves at once. Others wait, unless another node takes them.
///
/// Larger: more connections: each move has up to two to either database. Smaller: many moves take longer.
const AT_ONCE: usize = 8;

/// What moves need of this node.
#[derive(Debug)]
pub(super) struct MoveContext {
    pub(super) following: Arc<Following>,
    pub(super) metrics: RegistryMetrics,
    /// Written by the one move whose account's requests wait, and read by the others during each step: nothing that a move does
    /// makes requests wait for longer.
    pub(super) turn: RwLock<()>,
}

/// The moves that this node carries out. They end with the task: another node takes them over then.
#[derive(Debug)]
pub struct MoveAccounts {
    context: Arc<MoveContext>,
    carried: JoinSet<()>,
}

impl MoveAccounts {
    /// Carries out the moves of the registry that a node follows.
    #[must_use]
    pub fn new(following: Arc<Following>, metrics: RegistryMetrics) -> Self {
        let context = MoveContext { following, metrics, turn: RwLock::new(()) };
        Self { context: Arc::new(context), carried: JoinSet::new() }
    }

    async fn take(&mut self) -> Result<(), FollowError> {
        let following = &self.context.following;
        let node = following.node();
        while self.carried.try_join_next().is_some() {}
        let free = AT_ONCE.saturating_sub(self.carried.len());
        let moves = following.registry().await?.lease_moves(node.id(), node.host(), free).await?;
        for record in moves {
            tracing::info!(tenant = record.slug, to = record.to, state = record.state.as_str(), "carrying a move out");
            self.carried.spawn(Carrier::new(Arc::clone(&self.context), record).run());
        }
        Ok(())
    }
}

impl Task for MoveAccounts {
    const NAME: &'static str = "moves";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn run(&mut self) -> Run {
        if !self.context.following.config().is_written {
            return Run::Succeeded;
        }
        match self.take().await {
            Ok(()) => Run::Succeeded,
            Err(error) => {
                tracing::debug!(cause = with_causes(&error), "could not look for moves of accounts");
                Run::Failed
            }
        }
    }
}
