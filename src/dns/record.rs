//! A DNS record that the owner of a host adds or removes, in the form in which DNS providers ask for it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The record is missing.
    Add,
    /// The record is wrong.
    Remove,
    /// The record is right.
    Keep,
}

/// The type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Kind {
    /// An IPv4 address.
    A,
    /// An IPv6 address.
    Aaaa,
    /// An alias.
    Cname,
    /// Text; here the proof of ownership.
    Txt,
    /// The CAs that may issue for a name (RFC 8659).
    Caa,
}

impl Kind {
    /// The name of the type, as in a zone file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Cname => "CNAME",
            Self::Txt => "TXT",
            Self::Caa => "CAA",
        }
    }
}

/// The type in which an address is stored.
impl From<IpAddr> for Kind {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv6() { Self::Aaaa } else { Self::A }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A record to add or to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What to do with it.
    pub action: Action,
    /// Its type.
    pub kind: Kind,
    /// Its name in full, without a trailing dot: `forms.acme.example`.
    pub name: String,
    /// Its name relative to the zone, as most providers ask for it: `forms`, or `@` at the apex. `None` if the zone is
    /// not known.
    pub relative: Option<String>,
    /// Its value, as in a zone file without quotes around a text: `203.0.113.7`, `0 issue "ca.example"`.
    pub value: String,
}

impl Record {
    /// A record of this name in a zone; both without a trailing dot.
    pub(super) fn new(action: Action, kind: Kind, name: &str, zone: Option<&str>, value: impl Into<String>) -> Self {
        let relative = zone.and_then(|zone| relative(name, zone));
        Self { action, kind, name: name.to_owned(), relative, value: value.into() }
    }
}

/// The name without its zone; `@` for the zone itself.
fn relative(name: &str, zone: &str) -> Option<String> {
    match name.strip_suffix(zone)? {
        "" => Some("@".to_owned()),
        labels => labels.strip_suffix('.').map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_relative_to_its_zone() {
        for (name, zone, expected) in [
            ("forms.acme.example", "acme.example", Some("forms")),
            ("_formgate.a.b.acme.example", "acme.example", Some("_formgate.a.b")),
            ("acme.example", "acme.example", Some("@")),
            ("forms.acme.example", "me.example", None),
            ("acme.example", "forms.acme.example", None),
        ] {
            assert_eq!(relative(name, zone).as_deref(), expected, "{name} in {zone}");
        }
    }
}
