//! Which IP addresses are public, and which ones no configuration can open.
//!
//! Owns the address ranges and nothing else; [`super::Guard`] applies them. An address is public if a packet to it
//! leaves for the public internet and could reach a webhook receiver there. Every range of IANA's special-purpose
//! registries (RFC 6890; as of 2026) is refused, also the few that are globally reachable: no receiver is there. In
//! IPv6, anything outside of the allocated unicast space 2000::/3 is refused too, so a range that is assigned in the
//! future needs no entry here.
//!
//! Some IPv6 addresses contain an IPv4 address to which a translator or a tunnel forwards the packet. Only those of the
//! well-known NAT64 prefix can be public, if the IPv4 address is: on a network without IPv4, DNS64 maps every IPv4-only
//! receiver to it. A NAT64 prefix that an operator chose within 2000::/3 (RFC 6052) can't be recognized; its translator
//! must not forward to private addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 ranges without a public receiver.
const SPECIAL_V4: [Ipv4Net; 18] = [
    v4([0, 0, 0, 0], 8),       // "this network"; the kernel connects to 127.0.0.1 instead
    v4([10, 0, 0, 0], 8),      // private
    v4([100, 64, 0, 0], 10),   // carrier-grade NAT
    v4([127, 0, 0, 0], 8),     // loopback
    v4([169, 254, 0, 0], 16),  // link-local, with most clouds' metadata services
    v4([172, 16, 0, 0], 12),   // private
    v4([192, 0, 0, 0], 24),    // protocol assignments
    v4([192, 0, 2, 0], 24),    // documentation
    v4([192, 31, 196, 0], 24), // AS112
    v4([192, 52, 193, 0], 24), // multicast tunnels
    v4([192, 88, 99, 0], 24),  // 6to4 relays
    v4([192, 168, 0, 0], 16),  // private
    v4([192, 175, 48, 0], 24), // AS112
    v4([198, 18, 0, 0], 15),   // benchmarks
    v4([198, 51, 100, 0], 24), // documentation
    v4([203, 0, 113, 0], 24),  // documentation
    v4([224, 0, 0, 0], 4),     // multicast
    v4([240, 0, 0, 0], 4),     // reserved, and broadcast
];

/// The IPv6 addresses that are allocated as global unicast. Everything else is loopback, link-local, unique local,
/// site-local, multicast, mapped, translated or unassigned.
const UNICAST_V6: Ipv6Net = v6([0x2000, 0, 0], 3);

/// The ranges in [`UNICAST_V6`] without a public receiver.
const SPECIAL_V6: [Ipv6Net; 5] = [
    v6([0x2001, 0, 0], 23),         // protocol assignments: Teredo, benchmarks, ORCHID
    v6([0x2001, 0xdb8, 0], 32),     // documentation
    v6([0x2002, 0, 0], 16),         // 6to4
    v6([0x2620, 0x4f, 0x8000], 48), // AS112
    v6([0x3fff, 0, 0], 20),         // documentation
];

/// Link-local addresses and the metadata services of clouds, which give credentials to every client.
const NEVER_V4: [Ipv4Net; 4] = [
    v4([169, 254, 0, 0], 16), // AWS, Azure, Google Cloud, DigitalOcean, Oracle, Tencent, Scaleway …
    v4([100, 100, 100, 200], 32), // Alibaba Cloud
    v4([168, 63, 129, 16], 32), // Azure; in a range that is otherwise public
    v4([192, 0, 0, 192], 32), // Oracle Cloud, older instances
];

/// The same in IPv6.
const NEVER_V6: [Ipv6Net; 3] = [
    v6([0xfe80, 0, 0], 10),                                                      // link-local
    v6([0xfd00, 0xec2, 0], 32),                                                  // AWS
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128), // Google Cloud
];

/// NAT64 with the well-known prefix (RFC 6052).
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0], 96);

/// NAT64 within a network (RFC 8215), in its usual form: the IPv4 address in the last 32 bits.
const LOCAL_NAT64: Ipv6Net = v6([0x64, 0xff9b, 1], 48);

const TEREDO: Ipv6Net = v6([0x2001, 0, 0], 32);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0], 16);
/// Mapped addresses of the form ::ffff:0:a.b.c.d (RFC 2765, obsolete).
const TRANSLATED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96);
/// ::a.b.c.d (RFC 4291, deprecated).
const COMPATIBLE: Ipv6Net = v6([0, 0, 0], 96);

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6([a, b, c]: [u16; 3], bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), bits)
}

/// Whether an address is on the public internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) if NAT64.contains(&address) => is_public_v4(last_32_bits(address)),
        IpAddr::V6(address) => {
            UNICAST_V6.contains(&address) && !SPECIAL_V6.iter().any(|range| range.contains(&address))
        }
    }
}

/// Whether an address is refused even if the configuration allows it.
pub(super) fn is_never_allowed(address: IpAddr) -> bool {
    destinations(address).any(|address| match address {
        IpAddr::V4(address) => NEVER_V4.iter().any(|range| range.contains(&address)),
        IpAddr::V6(address) => NEVER_V6.iter().any(|range| range.contains(&address)),
    })
}

/// Whether every address of a network is refused even if the configuration allows it.
pub(super) fn is_network_never_allowed(network: &IpNet) -> bool {
    match network {
        IpNet::V4(network) => NEVER_V4.iter().any(|range| range.contains(network)),
        IpNet::V6(network) => NEVER_V6.iter().any(|range| range.contains(network)),
    }
}

/// Every address that a packet to `address` may end at: the address itself, an IPv4-mapped one as IPv4, and the IPv4
/// address that it contains.
pub(super) fn destinations(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let embedded = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => embedded_v4(address),
    };
    std::iter::once(address).chain(embedded.map(IpAddr::V4))
}

fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    if [NAT64, LOCAL_NAT64, TRANSLATED, COMPATIBLE].iter().any(|range| range.contains(&address)) {
        Some(last_32_bits(address))
    } else if TEREDO.contains(&address) {
        // The client's address is stored inverted (RFC 4380, section 4).
        Some(last_32_bits(Ipv6Addr::from_bits(!bits)))
    } else if SIX_TO_FOUR.contains(&address) {
        Some(last_32_bits(Ipv6Addr::from_bits(bits >> 80)))
    } else {
        None
    }
}

fn last_32_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|range| range.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_ends_of_each_special_range_are_refused_and_their_neighbors_are_public() {
        // These are each other's neighbors.
        let touching = ["224.0.0.0/4", "240.0.0.0/4"];
        for range in SPECIAL_V4 {
            assert!(!is_public(range.network().into()) && !is_public(range.broadcast().into()), "{range}");
            let before = range.network().to_bits().checked_sub(1);
            let after = range.broadcast().to_bits().checked_add(1);
            for neighbor in [before, after].into_iter().flatten().map(Ipv4Addr::from_bits) {
                let public = is_public(neighbor.into());
                assert!(public || touching.contains(&&*range.to_string()), "{neighbor}, next to {range}");
            }
        }
        for range in SPECIAL_V6 {
            assert!(!is_public(range.network().into()) && !is_public(range.broadcast().into()), "{range}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001:82a::200e",
            "3ffe::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(ip(public)) && !is_never_allowed(ip(public)), "{public}");
        }
    }

    #[test]
    fn addresses_that_contain_a_private_address_are_refused_in_every_form() {
        for private in [
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::1.1.1.1",
            "::ffff:0:1.1.1.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1.1.1.1",
            "64:ff9b:1:ffff::1",
            "64:ff9b:2::1",
            "2002:a00:1::1",
            "2002:101:101::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:1::1",
            "2001:2::1",
            "2001:20::1",
        ] {
            assert!(!is_public(ip(private)), "{private}");
        }
    }

    #[test]
    fn special_ipv6_addresses_are_refused() {
        for special in [
            "::",
            "::1",
            "100::1",
            "100:0:0:1::1",
            "2001:db8::1",
            "2620:4f:8000::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
        ] {
            assert!(!is_public(ip(special)), "{special}");
        }
    }

    #[test]
    fn metadata_services_are_never_allowed_in_any_form() {
        for never in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.42.42",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::a83f:8110",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "2001:0:0:0:0:0:5601:5601",
        ] {
            assert!(is_never_allowed(ip(never)), "{never}");
        }
        for other in ["10.0.0.1", "127.0.0.1", "168.63.129.17", "fd00:ec3::254", "::1", "64:ff9b::10.0.0.1"] {
            assert!(!is_never_allowed(ip(other)), "{other}");
        }
    }
}
