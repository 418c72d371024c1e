//! Looks up where formgate's own services are, so that a [`Guard`] refuses them.
//!
//! An operator may allow targets in a private network, where Redis, the databases and the operator address usually are. A
//! caller who subscribes one of them must reach nothing there, so their addresses are refused even then.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::guard::Guard;

/// How many names are looked up at once.
///
/// Larger: more threads, one for each. Smaller: names that can't be resolved delay the others.
const MAX_LOOKUPS: usize = 8;

/// How long a look-up may take.
///
/// Larger: as for [`MAX_LOOKUPS`]. Smaller: a slow DNS server leaves a service out.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

impl Guard {
    /// Refuses services at these hosts, each with its port, and at the address of a listener, instead of the previous
    /// ones.
    pub async fn refuse_services(&self, hosts: impl IntoIterator<Item = String>, listener: Option<SocketAddr>) {
        let found = stream::iter(hosts).map(addresses_of).buffer_unordered(MAX_LOOKUPS).concat().await;
        self.refuse(found.into_iter().chain(listener.into_iter().flat_map(reachable_at)));
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
