//! Keeps webhooks away from formgate's own services: its Redis, its databases and its operator address.
//!
//! An operator may allow targets in a private network, where these usually are. A caller who subscribes one of them must
//! reach nothing there, so their addresses are refused even then. Names are resolved again every minute.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::{StreamExt, stream};
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::background::{Run, Task};
use crate::outbound::Guard;
use crate::tenant::Directory;

/// How often the addresses are looked up.
///
/// Larger: a service that moved can be reached for longer. Smaller: more queries.
const INTERVAL: Duration = Duration::from_secs(60);

/// How many names are looked up at once.
///
/// Larger: more threads, one for each. Smaller: names that can't be resolved delay the others.
const MAX_LOOKUPS: usize = 8;

/// How long a look-up may take.
///
/// Larger: as for [`MAX_LOOKUPS`]. Smaller: a slow DNS server leaves a service out.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// The background task that looks up the addresses.
pub(super) struct RefuseOwnServices {
    pub(super) guard: Arc<Guard>,
    pub(super) directory: Arc<ArcSwap<Directory>>,
    /// The hosts and ports of Redis.
    pub(super) redis: Vec<String>,
    /// Where the operator looks.
    pub(super) admin: Option<SocketAddr>,
}

impl Task for RefuseOwnServices {
    const NAME: &'static str = "own_services";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn run(&mut self) -> Run {
        let mut hosts: BTreeSet<String> = self.redis.iter().cloned().collect();
        hosts.extend(self.directory.load().configs().filter_map(|tenant| tenant.database.host()));
        let found = stream::iter(hosts).map(addresses_of).buffer_unordered(MAX_LOOKUPS).concat().await;
        self.guard.refuse(found.into_iter().chain(self.admin.into_iter().flat_map(reachable_at)));
        Run::Succeeded
    }
}

/// A name that can't be resolved now can't be connected to either.
async fn addresses_of(host: String) -> Vec<SocketAddr> {
    match timeout(LOOKUP_LIMIT, lookup_host(host)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        _ => Vec::new(),
    }
}

/// Where a listener on this machine is reached. One that listens everywhere is also reached at loopback.
fn reachable_at(listener: SocketAddr) -> Vec<SocketAddr> {
    if !listener.ip().is_unspecified() {
        return vec![listener];
    }
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    loopback.map(|ip| SocketAddr::new(ip, listener.port())).into()
}
