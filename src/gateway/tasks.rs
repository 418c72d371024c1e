//! The background tasks that belong to no other module: writing when tokens were last used, and closing idle connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::background::{Run, Task};
use crate::store::Connections;
use crate::tenant::Directory;
use crate::tenant::last_used::{self, Due};

/// How often uses of tokens are looked for that are due to be written.
///
/// Larger: lists show later that a token is used. Smaller: all tenants are looked through more often for nothing.
const LAST_USED_INTERVAL: Duration = Duration::from_secs(10);

/// Writes when tokens were last used.
pub(super) struct WriteLastUsed(pub(super) Arc<ArcSwap<Directory>>);

impl Task for WriteLastUsed {
    const NAME: &'static str = "last_used";

    fn interval(&self) -> Duration {
        LAST_USED_INTERVAL
    }

    async fn run(&mut self) -> Run {
        let due = self.0.load().tenants().filter_map(|tenant| tenant.last_used(Due::Late)).collect();
        last_used::write(due).await;
        Run::Succeeded
    }
}

/// The longest pause between two looks at idle connections. A connection that becomes idle while none is wakes the task, so
/// this decides nothing but how fresh the metric is.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// Closes database connections that have been idle for too long.
pub(super) struct CloseIdleConnections {
    connections: Arc<Connections>,
    /// When the next one will have been.
    next: Option<Instant>,
}

impl CloseIdleConnections {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, next: None }
    }
}

impl Task for CloseIdleConnections {
    const NAME: &'static str = "idle_connections";

    fn interval(&self) -> Duration {
        self.next.map_or(IDLE_INTERVAL, |next| next.saturating_duration_since(Instant::now()).min(IDLE_INTERVAL))
    }

    async fn woken(&mut self) {
        self.connections.idle_began().await;
    }

    async fn run(&mut self) -> Run {
        self.next = self.connections.close_long_idle();
        Run::Succeeded
    }
}
