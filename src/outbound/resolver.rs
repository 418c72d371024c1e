//! Looks up the addresses of a receiver's host.
//!
//! Owns DNS: which servers are asked, for how long, and how long answers are remembered. hickory-resolver rather than
//! the system's `getaddrinfo`, which blocks a thread for as long as the servers are silent. Names are absolute: search
//! domains are for people who type names. `/etc/hosts` applies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::Name;

use super::error::DnsFault;
use super::target::TargetHost;

/// How long a DNS server may take to answer.
///
/// Larger: with a server that is down, less time remains for the receiver. Smaller: answers of slow authoritative
/// servers are lost.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a query is repeated if no server answers.
///
/// Larger: as for [`SERVER_TIMEOUT`]. Smaller: a lost packet fails a request.
const ATTEMPTS: usize = 2;

/// How many answers are remembered.
///
/// Larger: more memory, about half a kilobyte each. Smaller: receivers are looked up more often than their TTL says.
const CACHED_ANSWERS: u64 = 8192;

/// How long an answer is remembered at most, whatever its TTL.
///
/// Larger: a receiver that moves is missed for longer if its TTL is long. Smaller: more queries.
const MAX_TTL: Duration = Duration::from_secs(300);

/// The same for the answer that a name or its address does not exist.
///
/// Larger: a name that was just created stays unknown for longer. Smaller: more queries for names that are gone.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(10);

/// Finds the addresses of hosts.
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    /// Asks these DNS servers, or those of the system, which are read now. As the C library does, asks a server on
    /// this machine if the system configures none.
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        let system = || hickory_resolver::system_conf::read_system_conf().ok();
        let (config, mut options) = match servers {
            [] => system().unwrap_or_else(|| (asking(&[(Ipv4Addr::LOCALHOST, 53).into()]), ResolverOpts::default())),
            servers => (asking(servers), ResolverOpts::default()),
        };
        options.timeout = SERVER_TIMEOUT;
        options.attempts = ATTEMPTS;
        options.cache_size = CACHED_ANSWERS;
        options.positive_max_ttl = Some(MAX_TTL);
        options.negative_max_ttl = Some(MAX_NEGATIVE_TTL);
        options.use_hosts_file = ResolveHosts::Always;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Self(builder.build().expect("building fails for DNS over TLS only"))
    }

    /// The addresses of a host, at least one: IPv4 and IPv6 in turns (RFC 8305, section 4), so that a connection does
    /// not depend on both.
    pub(super) async fn resolve(&self, host: &TargetHost) -> Result<Vec<IpAddr>, DnsFault> {
        let name = match host {
            TargetHost::Address(address) => return Ok(vec![*address]),
            TargetHost::Name(name) => name,
        };
        let mut name = Name::from_ascii(name.as_str()).map_err(|_| DnsFault::UnknownName)?;
        name.set_fqdn(true);
        let found = self.0.lookup_ip(name).await.map_err(|error| fault_of(&error))?;
        let addresses = in_turns(found.iter());
        if addresses.is_empty() { Err(DnsFault::NoAddress) } else { Ok(addresses) }
    }
}

fn asking(servers: &[SocketAddr]) -> ResolverConfig {
    let servers = servers.iter().map(|server| {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        for connection in &mut config.connections {
            connection.port = server.port();
        }
        config
    });
    ResolverConfig::from_parts(None, Vec::new(), servers.collect())
}

fn in_turns(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.partition(IpAddr::is_ipv6);
    let both = v6.len().min(v4.len());
    let pairs = v6[..both].iter().zip(&v4[..both]).flat_map(|(v6, v4)| [v6, v4]);
    pairs.chain(&v6[both..]).chain(&v4[both..]).copied().collect()
}

fn fault_of(error: &NetError) -> DnsFault {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) if none.response_code == ResponseCode::NXDomain => {
            DnsFault::UnknownName
        }
        NetError::Dns(DnsError::NoRecordsFound(_)) => DnsFault::NoAddress,
        NetError::Timeout => DnsFault::TimedOut,
        _ => DnsFault::Failed,
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_take_turns() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect::<Vec<_>>();
        for (found, ordered) in [
            (&["1.1.1.1", "1.1.1.2", "::1", "::2"][..], &["::1", "1.1.1.1", "::2", "1.1.1.2"][..]),
            (&["::1", "::2", "::3", "1.1.1.1"], &["::1", "1.1.1.1", "::2", "::3"]),
            (&["1.1.1.1", "1.1.1.2"], &["1.1.1.1", "1.1.1.2"]),
            (&[], &[]),
        ] {
            assert_eq!(in_turns(ips(found).into_iter()), ips(ordered));
        }
    }
}
