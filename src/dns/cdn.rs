//! Recognizes CDNs by their published networks, and by the names that lead to them.
//!
//! Owns the list, `cdn.txt`, which is compiled in. If a network is missing there, a finding is less precise, not wrong: the
//! host is `elsewhere` then.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

/// Operator, and network or domain.
static CDNS: LazyLock<Vec<(&str, Place)>> = LazyLock::new(|| {
    let lines = include_str!("cdn.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parsed(line).expect("a test reads every line")).collect()
});

#[derive(Debug)]
enum Place {
    Network(IpNet),
    Domain(&'static str),
}

fn parsed(line: &'static str) -> Option<(&'static str, Place)> {
    let (operator, place) = line.split_once(' ')?;
    let place = match place.parse() {
        Ok(network) => Place::Network(network),
        Err(_) if place.contains('/') => return None,
        Err(_) => Place::Domain(place),
    };
    Some((operator, place))
}

/// The operator of the CDN that an address belongs to.
pub(super) fn at(address: IpAddr) -> Option<&'static str> {
    CDNS.iter().find_map(|(operator, place)| match place {
        Place::Network(network) if network.contains(&address) => Some(*operator),
        _ => None,
    })
}

/// The operator of the CDN that a name, without a trailing dot, points to.
pub(super) fn named(name: &str) -> Option<&'static str> {
    CDNS.iter().find_map(|(operator, place)| match place {
        Place::Domain(domain) => {
            let below = name.strip_suffix(domain)?;
            (below.is_empty() || below.ends_with('.')).then_some(*operator)
        }
        Place::Network(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_an_operator_and_a_place() {
        assert!(CDNS.len() > 100, "{} lines", CDNS.len());
        for (operator, place) in CDNS.iter() {
            match place {
                Place::Network(network) => assert_eq!(network.trunc(), *network, "{operator}"),
                Place::Domain(domain) => assert!(crate::host::HostName::parse(domain).is_ok(), "{operator} {domain}"),
            }
        }
    }

    #[test]
    fn a_cdn_is_known_by_address_and_by_name() {
        for (address, operator) in [
            ("104.21.3.4", Some("Cloudflare")),
            ("2606:4700:3030::6815:304", Some("Cloudflare")),
            ("151.101.1.195", Some("Fastly")),
            ("13.224.0.1", Some("CloudFront")),
            ("203.0.113.7", None),
            ("2001:db8::7", None),
        ] {
            assert_eq!(at(address.parse().unwrap()), operator, "{address}");
        }
        for (name, operator) in [
            ("d111111abcdef8.cloudfront.net", Some("CloudFront")),
            ("acme.example.cdn.cloudflare.net", Some("Cloudflare")),
            ("e1.a.akamaiedge.net", Some("Akamai")),
            ("notcloudfront.net", None),
            ("cloudfront.net.acme.example", None),
        ] {
            assert_eq!(named(name), operator, "{name}");
        }
    }
}
