//! The background tasks of no other module: writing what requests left, and closing idle database connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::background::{Run, Task};
use crate::store::Connections;
use crate::tenant::Directory;
use crate::tenant::written_behind::{self, Due};

/// How often what is written within seconds is collected.
///
/// Larger: the log of requests is stored later. Smaller: while there are requests, all tenants are checked more often.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// How many of these rounds there are for one that collects everything that no request wrote.
///
/// Larger: what could not be written is written later. Smaller: all tenants are checked more often for nothing.
const ROUNDS: u32 = 30;

/// Writes what requests left of tenants that have sent no further one.
pub(super) struct WriteUnwritten {
    directory: Arc<ArcSwap<Directory>>,
    round: u32,
}

impl WriteUnwritten {
    pub(super) fn new(directory: Arc<ArcSwap<Directory>>) -> Self {
        Self { directory, round: 0 }
    }
}

impl Task for WriteUnwritten {
    const NAME: &'static str = "last_used";

    fn interval(&self) -> Duration {
        WRITE_INTERVAL
    }

    async fn run(&mut self) -> Run {
        self.round = (self.round + 1) % ROUNDS;
        let due = if self.round == 0 { Due::Afterwards } else { Due::Promptly };
        if due == Due::Afterwards || written_behind::is_any_prompt() {
            let writes = self.directory.load().tenants().filter_map(|tenant| tenant.write_behind(due)).collect();
            written_behind::write(writes).await;
        }
        Run::Succeeded
    }
}

/// The longest pause between two checks for idle connections. A connection that becomes idle while there was none
/// wakes the task.
///
/// Larger: the metric is older. Smaller: more checks for nothing.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// Closes database connections that have been idle for too long.
pub(super) struct CloseIdleConnections {
    connections: Arc<Connections>,
    /// When the next connection will have been idle for too long.
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
