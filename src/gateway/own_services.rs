//! Keeps webhooks away from formgate's own services: its Redis, its databases, that of the registry included, and the
//! addresses where it serves its operator.
//!
//! [`crate::outbound`] looks them up; here is which they are, and that names are resolved again every minute.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::background::{Run, Task};
use crate::outbound::Guard;
use crate::tenant::Directory;

/// How often the addresses are looked up.
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
}

impl Task for RefuseOwnServices {
    const NAME: &'static str = "own_services";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn run(&mut self) -> Run {
        let mut hosts: BTreeSet<String> = self.shared.iter().cloned().collect();
        hosts.extend(self.directory.load().configs().filter_map(|tenant| tenant.database.host()));
        self.guard.refuse_services(hosts, self.listeners.iter().copied()).await;
        Run::Succeeded
    }
}
