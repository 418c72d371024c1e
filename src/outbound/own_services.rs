//! Looks up where formgate's own services are, so that a [`Guard`] refuses them.
//!
//! An operator may allow targets in a private network, where Redis, the databases and the operator address usually are. A
//! caller who subscribes one of them must reach nothing there, so their addresses are refused even then.

use std::net::SocketAddr;
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
    /// Refuses services at these hosts, each with its port, and at the addresses of these listeners, instead of the
    /// previous ones.
    pub async fn refuse_services(
        &self,
        hosts: impl IntoIterator<Item = String>,
        listeners: impl IntoIterator<Item = SocketAddr>,
    ) {
        self.refuse(look_up(hosts).await.into_iter().chain(listeners));
    }

    /// Refuses services at these hosts too.
    pub async fn refuse_more_services(&self, hosts: impl IntoIterator<Item = String>) {
        self.refuse_more(look_up(hosts).await);
    }
}

async fn look_up(hosts: impl IntoIterator<Item = String>) -> Vec<SocketAddr> {
    stream::iter(hosts).map(addresses_of).buffer_unordered(MAX_LOOKUPS).concat().await
}

/// A name that can't be resolved now can't be connected to either.
async fn addresses_of(host: String) -> Vec<SocketAddr> {
    match timeout(LOOKUP_LIMIT, lookup_host(host)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        _ => Vec::new(),
    }
}
