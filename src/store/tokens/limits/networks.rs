//! From where a token is accepted.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::{LimitFault, ListFault, joined};

/// How many networks a token can have.
///
/// Larger: each request with the token compares more. Smaller: a service that publishes its networks does not fit.
pub(super) const MAX_NETWORKS: usize = 100;

/// From where a token is accepted. None: from everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Box<[IpNet]>);

impl Networks {
    /// Parses networks and single addresses. IPv4-mapped IPv6 networks become those of IPv4.
    ///
    /// # Errors
    /// [`ListFault`] if there is none, too many, or one that is no network.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, ListFault> {
        let mut networks = Vec::new();
        for (at, text) in texts.into_iter().enumerate() {
            let network = parse_network(text).map_err(|fault| ListFault { at: Some(at), fault })?;
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
        match networks.len() {
            0 => Err(ListFault { at: None, fault: LimitFault::NoNetwork }),
            1..=MAX_NETWORKS => Ok(Self(networks.into())),
            _ => Err(ListFault { at: None, fault: LimitFault::TooManyNetworks }),
        }
    }

    /// Whether a token with them is accepted from an address. An unknown one is in no network.
    #[must_use]
    pub fn allow(&self, address: Option<IpAddr>) -> bool {
        let is_within = |address: IpAddr| {
            let address = address.to_canonical();
            self.0.iter().any(|network| network.contains(&address))
        };
        self.is_all() || address.is_some_and(is_within)
    }

    /// Whether they are not limited.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, such as `203.0.113.0/24`; none if they are not limited.
    pub fn iter(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(IpNet::to_string)
    }

    pub(in crate::store::tokens) fn stored(&self) -> Option<String> {
        (!self.is_all()).then(|| self.to_string())
    }

    pub(super) fn of_stored(stored: Option<&str>) -> Result<Self, sqlx::Error> {
        let Some(texts) = stored else { return Ok(Self::default()) };
        Self::parse(texts.split_ascii_whitespace()).map_err(|fault| sqlx::Error::Decode(Box::new(fault.fault)))
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, self.iter())
    }
}

fn parse_network(text: &str) -> Result<IpNet, LimitFault> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let network = network.ok_or_else(|| LimitFault::UnknownNetwork(text.to_owned()))?;
    if network.trunc() != network {
        return Err(LimitFault::HostBits { text: text.to_owned(), network: network.trunc().to_string() });
    }
    // Callers are compared by their canonical address, which is that of IPv4.
    let mapped = match network {
        IpNet::V6(network) if network.prefix_len() >= 96 => network.addr().to_ipv4_mapped(),
        IpNet::V6(_) | IpNet::V4(_) => None,
    };
    let of_mapped = mapped.and_then(|address| Ipv4Net::new(address, network.prefix_len() - 96).ok());
    Ok(of_mapped.map_or(network, IpNet::V4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_is_within_them_in_either_notation() {
        let parse = |texts: &str| Networks::parse(texts.split_ascii_whitespace());
        let office = parse("203.0.113.0/24 2001:db8::/32 198.51.100.7 ::ffff:192.0.2.0/120").unwrap();
        assert_eq!(office.to_string(), "203.0.113.0/24 2001:db8::/32 198.51.100.7/32 192.0.2.0/24");
        for (address, expected) in [
            ("203.0.113.77", true),
            ("::ffff:203.0.113.77", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.255", true),
            ("198.51.100.7", true),
            ("198.51.100.8", false),
            ("203.0.114.1", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
            ("::1", false),
        ] {
            assert_eq!(office.allow(Some(address.parse().unwrap())), expected, "{address}");
        }
        assert!(!office.allow(None), "an unknown address is in no network");
        assert!(Networks::default().allow(None) && Networks::default().allow(Some([192, 0, 2, 1].into())));
        assert_eq!(Networks::of_stored(office.stored().as_deref()).unwrap(), office);
        for faulty in ["203.0.113.7/24", "2001:db8::1/32", "10.0.0.0/33", "office", "10.0.0.0/8,", "*", "10.0.0.0/08x"]
        {
            assert_eq!(parse(&format!("10.0.0.0/8 {faulty}")).unwrap_err().at, Some(1), "{faulty}");
        }
        assert_eq!(parse("").unwrap_err().fault, LimitFault::NoNetwork);
        let many: Vec<_> = (0..=MAX_NETWORKS).map(|n| format!("10.0.{n}.0/24")).collect();
        assert_eq!(parse(&many.join(" ")).unwrap_err().fault, LimitFault::TooManyNetworks);
    }
}
