//! The records that point a host here.
//!
//! They come from the configuration, so an owner can set them before the first check. [`super::check`] also knows the zone,
//! and so the record name to enter at the DNS provider.

use std::net::IpAddr;

use super::record::{Action, Kind, Record};
use super::zone::registered_domain;
use crate::host::HostName;

/// The records to add: an alias to a name, or addresses at the apex of a zone, where an alias is not allowed
/// (RFC 1912, section 2.4), and where there is no name. `zone` is the apex, if it is known.
#[must_use]
pub fn wanted(host: &str, zone: Option<&str>, name: Option<&HostName>, addresses: &[IpAddr]) -> Vec<Record> {
    let is_apex = zone == Some(host) || registered_domain(host) == Some(host);
    let add = |kind, value| Record::new(Action::Add, kind, host, zone, value);
    match name.filter(|_| !is_apex) {
        Some(name) => vec![add(Kind::Cname, name.to_string())],
        None => addresses.iter().map(|address| add(Kind::from(*address), address.to_string())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_leads_here_except_at_an_apex() {
        let label = HostName::parse("acme.edge.example").unwrap();
        let addresses: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
        let shown = |host, zone, name| -> Vec<String> {
            let records = wanted(host, zone, name, &addresses);
            records.iter().map(|Record { kind, value, .. }| format!("{kind} {value}")).collect()
        };
        assert_eq!(shown("forms.acme.org", None, Some(&label)), ["CNAME acme.edge.example"]);
        for (host, zone, name) in [
            ("acme.co.uk", None, Some(&label)),
            ("forms.acme.org", Some("forms.acme.org"), Some(&label)),
            ("forms.acme.org", None, None),
        ] {
            assert_eq!(shown(host, zone, name), ["AAAA 2001:db8::1", "A 192.0.2.1"], "{host} {zone:?}");
        }
    }
}
