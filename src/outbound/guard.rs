//! Decides which addresses requests may be sent to: protects the network that formgate runs in from callers, who
//! choose the URLs (server-side request forgery).
//!
//! Every address passes [`Guard::check`] right before the connection is opened to it, so a name that resolves to
//! another address later, a literal and a redirect (which is not followed anyway) can't evade it. A refusal never says
//! which address was refused: that would let a caller map the network with names of their own.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use arc_swap::ArcSwap;
use ipnet::IpNet;

use super::addresses::{destinations, is_network_never_allowed, is_never_allowed, is_public};
use super::target::{Target, TargetHost};
use crate::host::HostName;

/// The targets that are allowed although their addresses are not public.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedTargets {
    /// Networks of addresses.
    pub networks: Vec<IpNet>,
    /// Hosts, at whatever address they are.
    pub hosts: Vec<HostName>,
}

/// A target that a configuration allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedTarget {
    /// A network, or one address.
    Network(IpNet),
    /// A host.
    Host(HostName),
}

/// The text is neither a network nor a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a network nor a host name")]
pub struct InvalidAllowedTarget;

/// The address is not public and not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blocked address")]
pub struct BlockedAddress;

/// Decides whether a target's address may be connected to.
#[derive(Debug, Default)]
pub struct Guard {
    allowed: AllowedTargets,
    /// formgate's own services.
    own: ArcSwap<HashSet<SocketAddr>>,
}

impl AllowedTarget {
    /// Parses `ADDRESS/BITS`, an address, or a host name.
    ///
    /// # Errors
    /// [`InvalidAllowedTarget`], also for a name that ends in a number: it is a mistyped address.
    pub fn parse(text: &str) -> Result<Self, InvalidAllowedTarget> {
        if let Some(network) = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)) {
            return Ok(Self::Network(network));
        }
        let host = HostName::parse(text).map_err(|_| InvalidAllowedTarget)?;
        let last = host.as_str().rsplit('.').next().unwrap_or_default();
        let is_name = !host.as_str().starts_with('[') && !last.bytes().all(|byte| byte.is_ascii_digit());
        is_name.then_some(Self::Host(host)).ok_or(InvalidAllowedTarget)
    }

    /// Whether it would have no effect: all of it is refused even if it is allowed.
    #[must_use]
    pub fn is_never_allowed(&self) -> bool {
        matches!(self, Self::Network(network) if is_network_never_allowed(network))
    }
}

impl FromIterator<AllowedTarget> for AllowedTargets {
    fn from_iter<I: IntoIterator<Item = AllowedTarget>>(targets: I) -> Self {
        let mut allowed = Self::default();
        for target in targets {
            match target {
                AllowedTarget::Network(network) => allowed.networks.push(network),
                AllowedTarget::Host(host) => allowed.hosts.push(host),
            }
        }
        allowed
    }
}

impl Guard {
    /// Allows public addresses and these exceptions.
    #[must_use]
    pub fn new(allowed: AllowedTargets) -> Self {
        Self { allowed, own: ArcSwap::default() }
    }

    /// Refuses these addresses from now on instead of the previous ones, even if they are among the exceptions: those
    /// of formgate's own services. An unspecified one (`0.0.0.0`, `::`) is every address of this machine.
    pub fn refuse(&self, own: impl IntoIterator<Item = SocketAddr>) {
        self.own.store(canonical(own).collect::<HashSet<_>>().into());
    }

    /// Refuses these addresses too.
    pub fn refuse_more(&self, own: impl IntoIterator<Item = SocketAddr>) {
        let more: Vec<_> = canonical(own).collect();
        self.own.rcu(|known| known.iter().chain(&more).copied().collect::<HashSet<_>>());
    }

    /// Whether a connection may be opened to an address of a host.
    ///
    /// # Errors
    /// [`BlockedAddress`].
    pub fn check(&self, host: &TargetHost, address: SocketAddr) -> Result<(), BlockedAddress> {
        let ip = address.ip();
        let own = self.own.load();
        let is_own = |ip: IpAddr| {
            let has = |ip: IpAddr| own.contains(&SocketAddr::new(ip, address.port()));
            let has_everywhere = has(Ipv4Addr::UNSPECIFIED.into()) || has(Ipv6Addr::UNSPECIFIED.into());
            has(ip) || (has_everywhere && is_of_this_machine(ip))
        };
        let is_own = destinations(ip).any(is_own);
        if is_own || is_never_allowed(ip) {
            return Err(BlockedAddress);
        }
        if is_public(ip) || self.is_exception(host, ip) { Ok(()) } else { Err(BlockedAddress) }
    }

    /// Whether a target may be stored. Only a target with an IP literal can be refused now; the address of a name is
    /// checked at each connection, since it may be another one then.
    ///
    /// # Errors
    /// [`BlockedAddress`].
    pub fn check_literal(&self, target: &Target) -> Result<(), BlockedAddress> {
        target.literal().map_or(Ok(()), |address| self.check(target.host(), address))
    }

    fn is_exception(&self, host: &TargetHost, ip: IpAddr) -> bool {
        let AllowedTargets { networks, hosts } = &self.allowed;
        destinations(ip).any(|ip| networks.iter().any(|network| network.contains(&ip)))
            || matches!(host, TargetHost::Name(name) if hosts.contains(name))
    }
}

fn canonical(addresses: impl IntoIterator<Item = SocketAddr>) -> impl Iterator<Item = SocketAddr> {
    addresses.into_iter().map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Whether this machine has an address: a socket can be bound to no other.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        Guard::new(allowed.iter().map(|text| AllowedTarget::parse(text).unwrap()).collect())
    }

    fn allows(guard: &Guard, host: &str, address: &str) -> bool {
        let host = Target::parse(&format!("https://{host}")).unwrap().host().clone();
        guard.check(&host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn only_public_addresses_are_allowed_without_exceptions() {
        let guard = guard(&[]);
        assert!(allows(&guard, "hooks.example", "1.1.1.1:443"));
        assert!(allows(&guard, "hooks.example", "[2606:4700::1]:8443"));
        for address in ["127.0.0.1:443", "10.0.0.1:443", "[::1]:443", "[::ffff:10.0.0.1]:443", "169.254.169.254:443"] {
            assert!(!allows(&guard, "hooks.example", address), "{address}");
        }
    }

    #[test]
    fn an_exception_is_a_network_an_address_or_a_host() {
        let guard = guard(&["10.1.0.0/16", "192.168.0.7", "fd00:1::/32", "hooks.internal"]);
        for (host, address, allowed) in [
            ("hooks.example", "10.1.2.3:443", true),
            ("hooks.example", "[::ffff:10.1.2.3]:443", true),
            ("hooks.example", "[64:ff9b::10.1.2.3]:443", true),
            ("hooks.example", "10.2.2.3:443", false),
            ("hooks.example", "192.168.0.7:8443", true),
            ("hooks.example", "192.168.0.8:8443", false),
            ("hooks.example", "[fd00:1::7]:443", true),
            ("hooks.internal", "172.16.0.9:443", true),
            ("HOOKS.internal.", "127.0.0.1:443", true),
            ("a.hooks.internal", "172.16.0.9:443", false),
        ] {
            assert_eq!(allows(&guard, host, address), allowed, "{host} {address}");
        }
    }

    #[test]
    fn no_exception_opens_a_metadata_service() {
        let guard = guard(&["0.0.0.0/0", "::/0", "hooks.internal"]);
        for address in [
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[64:ff9b::169.254.169.254]:80",
            "[fd00:ec2::254]:80",
            "100.100.100.200:80",
            "168.63.129.16:80",
        ] {
            for host in ["hooks.example", "hooks.internal"] {
                assert!(!allows(&guard, host, address), "{address}");
            }
        }
        assert!(allows(&guard, "hooks.example", "127.0.0.1:80"));
    }

    #[test]
    fn no_exception_opens_a_service_of_our_own() {
        let guard = guard(&["10.0.0.0/8", "hooks.internal"]);
        guard.refuse(["10.0.0.5:5432".parse().unwrap(), "[::ffff:10.0.0.6]:6379".parse().unwrap()]);
        for address in [
            "10.0.0.5:5432",
            "[::ffff:10.0.0.5]:5432",
            "[64:ff9b::10.0.0.5]:5432",
            "[::10.0.0.5]:5432",
            "10.0.0.6:6379",
        ] {
            for host in ["hooks.example", "hooks.internal"] {
                assert!(!allows(&guard, host, address), "{address}");
            }
        }
        assert!(allows(&guard, "hooks.example", "10.0.0.5:443"));
        guard.refuse_more(["[::ffff:10.0.0.5]:443".parse().unwrap()]);
        for address in ["10.0.0.5:443", "10.0.0.5:5432"] {
            assert!(!allows(&guard, "hooks.example", address), "{address}");
        }
        guard.refuse([]);
        assert!(allows(&guard, "hooks.example", "10.0.0.5:5432"));
    }

    #[test]
    fn a_listener_on_every_address_is_refused_at_every_address_of_this_machine() {
        let guard = guard(&["127.0.0.0/8", "::1", "10.0.0.0/8"]);
        for everywhere in ["0.0.0.0:9465", "[::]:9465"] {
            guard.refuse([everywhere.parse().unwrap()]);
            for address in ["127.0.0.1:9465", "127.8.8.8:9465", "[::1]:9465", "[::ffff:127.0.0.1]:9465"] {
                assert!(!allows(&guard, "hooks.example", address), "{everywhere}: {address}");
            }
            for address in ["127.0.0.1:9466", "10.255.255.254:9465"] {
                assert!(allows(&guard, "hooks.example", address), "{everywhere}: {address}");
            }
        }
    }

    #[test]
    fn a_literal_in_any_notation_is_refused_when_it_is_stored() {
        let check = |url: &str| guard(&["10.1.0.0/16"]).check_literal(&Target::parse(url).unwrap());
        for url in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://017700000001:8443/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://10.0.0.1:8443",
            "https://169.254.169.254/latest/meta-data/",
            "https://0/",
            "https://[64:ff9b::7f00:1]/",
        ] {
            assert_eq!(check(url), Err(BlockedAddress), "{url}");
        }
        for url in ["https://1.1.1.1/", "https://10.1.0.1/", "https://localhost/", "https://[2606:4700::1]/"] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        assert_eq!(BlockedAddress.to_string(), "blocked address");
    }

    #[test]
    fn a_mistyped_address_is_no_host_name() {
        for text in ["10.0.0.0/33", "10.0.0.256", "10.0.0", "[::1]", "*.internal", "https://hooks.internal", "a b", ""]
        {
            assert_eq!(AllowedTarget::parse(text), Err(InvalidAllowedTarget), "{text}");
        }
        assert!(matches!(AllowedTarget::parse("Receiver"), Ok(AllowedTarget::Host(_))));
    }
}
