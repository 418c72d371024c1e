//! Keeps webhooks away from formgate's own services: its Redis, its databases, that of the registry included, and the
//! addresses where it serves its operator.
//!
//! [`crate::outbound`] looks them up; here is which they are, that those of new tenants are looked up at once, and that
//! all names are resolved again every minute.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::background::{Run, Task};
use crate::outbound::Guard;
use crate::tenant::{DatabaseServers, Directory};

/// How often all addresses are looked up.
///
/// Larger: a service that moved can be reached for longer. Smaller: more queries.
const INTERVAL: Duration = Duration::from_secs(60);

/// The background task that looks up the addresses.
pub(super) struct RefuseOwnServices {
    pub(super) guard: Arc<Guard>,
    pub(super) directory: Arc<ArcSwap<Directory>>,
    /// The hosts and ports of Redis and of the registry.
    pub(super) shared: Vec<String>,
    /// Where metrics and the operator API are served.
    pub(super) listeners: Vec<SocketAddr>,
    /// The database servers of tenants that are new or were changed.
    pub(super) announced: mpsc::UnboundedReceiver<BTreeSet<String>>,
    /// Those that were not looked up yet.
    pub(super) new: BTreeSet<String>,
    /// All that were looked up.
    pub(super) known: BTreeSet<String>,
    /// When all were looked up last.
    pub(super) looked_up_at: Option<Instant>,
}

impl RefuseOwnServices {
    /// How long until all are looked up again.
    fn due_in(&self) -> Duration {
        self.looked_up_at.map_or(Duration::ZERO, |at| INTERVAL.saturating_sub(at.elapsed()))
    }
}

impl Task for RefuseOwnServices {
    const NAME: &'static str = "own_services";

    fn interval(&self) -> Duration {
        self.due_in()
    }

    async fn woken(&mut self) {
        while let Some(servers) = self.announced.recv().await {
            self.new = &servers - &self.known;
            if !self.new.is_empty() {
                return;
            }
        }
        // The gateway stops.
        std::future::pending::<()>().await;
    }

    async fn run(&mut self) -> Run {
        let new = std::mem::take(&mut self.new);
        if self.due_in().is_zero() {
            self.looked_up_at = Some(Instant::now());
            self.known = DatabaseServers::of(self.directory.load().configs());
            self.known.extend(self.shared.iter().cloned().chain(new));
            self.guard.refuse_services(self.known.iter().cloned(), self.listeners.iter().copied()).await;
        } else {
            self.guard.refuse_more_services(new.iter().cloned()).await;
            self.known.extend(new);
        }
        Run::Succeeded
    }
}
