//! The network of a client as administrators see it: enough to recognize an office or a server farm, and not who
//! within it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The IPv4 /24 or the IPv6 /48 of an address, such as `192.0.2.0/24`. An IPv4-mapped IPv6 address counts as its IPv4
/// address.
#[must_use]
pub fn shown_network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("{}/24", Ipv4Addr::from_bits(address.to_bits() >> 8 << 8)),
        IpAddr::V6(address) => format!("{}/48", Ipv6Addr::from_bits(address.to_bits() >> 80 << 80)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_its_24_or_its_48() {
        for (address, network) in [
            ("192.0.2.77", "192.0.2.0/24"),
            ("::ffff:192.0.2.77", "192.0.2.0/24"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
            ("::1", "::/48"),
        ] {
            assert_eq!(shown_network(address.parse().unwrap()), network);
        }
    }
}
