//! Which hosts a tenant can have, and which of them can be added as a domain.
//!
//! The operator vouches for the hosts of tables: any name of DNS is one, also `localhost`. A domain that is added needs a
//! certificate of an authority, so it has to be a name that DNS can have and that has one owner. Owns the words of both
//! refusals, which `formgate check`, the operator API, commands and the administration area show.

use super::{HostName, MAX_NAME};

/// The top-level domains that DNS never serves: RFC 6761 (`invalid`, `localhost`), RFC 6762 (`local`), RFC 7686 (`onion`)
/// and RFC 9476 (`alt`). `test` and `example` are reserved too, but are used where operators try things out.
const NOT_IN_DNS: [&str; 5] = ["alt", "invalid", "local", "localhost", "onion"];

/// The maximum length of a label (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;

/// The text is not a host that a tenant can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotADomain {
    /// A client that connects to a bare IP address sends no SNI, so no certificate can be chosen by name.
    #[error("an IP address is not a host name")]
    IpAddress,
    /// Nothing at all.
    #[error("not a host name")]
    Empty,
    /// It has a scheme, a port or a path.
    #[error("not a host name")]
    HasUrlParts,
    /// It has a `*`.
    #[error("not a host name")]
    Wildcard,
    /// Two dots in a row, or one in front.
    #[error("not a host name")]
    EmptyLabel,
    /// A label is too long.
    #[error("not a host name")]
    LongLabel,
    /// The name is too long.
    #[error("not a host name")]
    LongName,
    /// A label that begins with `xn--` encodes nothing.
    #[error("not a host name")]
    Punycode,
    /// It has characters that no name has.
    #[error("not a host name")]
    Characters,
    /// It has no dot.
    #[error("not a domain")]
    SingleLabel,
    /// It ends with a top-level domain that DNS never serves.
    #[error("not a domain")]
    SpecialUse,
    /// Its last label is a number.
    #[error("not a domain")]
    NumericEnd,
    /// A label has an underscore, or a hyphen at an end.
    #[error("not a domain")]
    NotInCertificates,
    /// Others register names below it.
    #[error("not a domain")]
    PublicSuffix,
}

impl NotADomain {
    /// The rule that is broken, if the message does not say it.
    #[must_use]
    pub fn rule(self) -> Option<&'static str> {
        Some(match self {
            Self::IpAddress => return None,
            Self::Empty => "it is empty",
            Self::HasUrlParts => "expected only a name, without scheme, port or path",
            Self::Wildcard => "wildcards are not supported; list each name",
            Self::EmptyLabel => "a label is empty: there are two dots in a row, or one in front",
            Self::LongLabel => "a label has at most 63 characters",
            Self::LongName => "a name has at most 253 characters",
            Self::Punycode => "a label that begins with `xn--` is not valid Punycode",
            Self::Characters => "a label has only letters, digits and hyphens",
            Self::SingleLabel => "expected a name with a dot, such as `forms.example.com`",
            Self::SpecialUse => {
                "names that end with `alt`, `invalid`, `local`, `localhost` or `onion` are not in the public DNS"
            }
            Self::NumericEnd => "the last label is not a number",
            Self::NotInCertificates => {
                "no CA issues for a label with an underscore, or with a hyphen at its beginning or end"
            }
            Self::PublicSuffix => "it is a public suffix: others register domains below it",
        })
    }

    /// The message and the rule.
    #[must_use]
    pub fn in_full(self) -> String {
        match self.rule() {
            Some(rule) => format!("{self}: {rule}"),
            None => self.to_string(),
        }
    }
}

impl HostName {
    /// Normalizes a host that a tenant is to have in its table.
    ///
    /// # Errors
    /// [`NotADomain`].
    pub fn parse_domain(text: &str) -> Result<Self, NotADomain> {
        let host = Self::parse(text).map_err(|_| broken_rule(text))?;
        let is_ip = host.as_str().starts_with('[') || host.as_str().parse::<std::net::Ipv4Addr>().is_ok();
        if is_ip { Err(NotADomain::IpAddress) } else { Ok(host) }
    }

    /// Normalizes a host that is to be added to a tenant: one that authorities issue certificates for.
    ///
    /// # Errors
    /// [`NotADomain`].
    pub fn parse_added(text: &str) -> Result<Self, NotADomain> {
        let host = Self::parse_domain(text)?;
        let name = host.as_str();
        let last = name.rsplit('.').next().unwrap_or_default();
        if NOT_IN_DNS.contains(&last) {
            return Err(NotADomain::SpecialUse);
        }
        if !name.contains('.') {
            return Err(NotADomain::SingleLabel);
        }
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NotADomain::NumericEnd);
        }
        if name.split('.').any(|label| label.contains('_') || label.starts_with('-') || label.ends_with('-')) {
            return Err(NotADomain::NotInCertificates);
        }
        // A suffix of the list's private part, such as that of a hosting service, belongs to one company.
        let suffix = psl::suffix(name.as_bytes()).filter(|suffix| suffix.typ() == Some(psl::Type::Icann));
        if suffix.is_some_and(|suffix| suffix.as_bytes() == name.as_bytes()) {
            return Err(NotADomain::PublicSuffix);
        }
        Ok(host)
    }
}

/// Which rule a text breaks that is not a host name.
fn broken_rule(text: &str) -> NotADomain {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return NotADomain::Empty;
    }
    if name.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>().is_ok() {
        return NotADomain::IpAddress;
    }
    if name.contains(['/', ':', '@', '?', '#']) {
        return NotADomain::HasUrlParts;
    }
    if name.contains('*') {
        return NotADomain::Wildcard;
    }
    if name.split('.').any(str::is_empty) {
        return NotADomain::EmptyLabel;
    }
    // The limits count the form that DNS has, which is longer than that of letters outside of ASCII.
    let ascii = idna::domain_to_ascii_cow(name.as_bytes(), idna::AsciiDenyList::EMPTY).ok();
    let ascii = ascii.as_deref().unwrap_or(name);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !ascii.bytes().all(fits) {
        return NotADomain::Characters;
    }
    if ascii.split('.').any(|label| label.len() > MAX_LABEL) {
        return NotADomain::LongLabel;
    }
    if ascii.len() > MAX_NAME {
        return NotADomain::LongName;
    }
    let is_encoded = |label: &str| label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--"));
    if ascii.split('.').any(is_encoded) { NotADomain::Punycode } else { NotADomain::Characters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_host_breaks_a_rule_of_its_own() {
        let (label, name) = (format!("{}.org", "a".repeat(64)), format!("{}org", "a.".repeat(126)));
        for (text, expected) in [
            ("", NotADomain::Empty),
            (".", NotADomain::Empty),
            ("192.0.2.1", NotADomain::IpAddress),
            ("[2001:db8::1]", NotADomain::IpAddress),
            ("2001:db8::1", NotADomain::IpAddress),
            ("https://acme.org", NotADomain::HasUrlParts),
            ("acme.org:443", NotADomain::HasUrlParts),
            ("acme.org/x", NotADomain::HasUrlParts),
            ("*.acme.org", NotADomain::Wildcard),
            ("a..org", NotADomain::EmptyLabel),
            (".acme.org", NotADomain::EmptyLabel),
            ("acme.org..", NotADomain::EmptyLabel),
            (&label, NotADomain::LongLabel),
            (&format!("{}.org", "ü".repeat(60)), NotADomain::LongLabel),
            (&name, NotADomain::LongName),
            ("xn--a.org", NotADomain::Punycode),
            ("a.XN--99999999.org", NotADomain::Punycode),
            ("a b.org", NotADomain::Characters),
            ("a,b.org", NotADomain::Characters),
            ("a\0b.org", NotADomain::Characters),
        ] {
            assert_eq!(HostName::parse_domain(text), Err(expected), "{text:?}");
            assert_eq!(HostName::parse_added(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn a_table_can_have_hosts_that_cannot_be_added() {
        for (text, expected) in [
            ("localhost", NotADomain::SpecialUse),
            ("Forms.LOCALHOST.", NotADomain::SpecialUse),
            ("nas.local", NotADomain::SpecialUse),
            ("a.invalid", NotADomain::SpecialUse),
            ("a.onion", NotADomain::SpecialUse),
            ("a.alt", NotADomain::SpecialUse),
            ("org", NotADomain::SingleLabel),
            ("forms", NotADomain::SingleLabel),
            ("forms.123", NotADomain::NumericEnd),
            ("_x.org", NotADomain::NotInCertificates),
            ("_dmarc.acme.org", NotADomain::NotInCertificates),
            ("-a.acme.org", NotADomain::NotInCertificates),
            ("a-.acme.org", NotADomain::NotInCertificates),
            ("co.uk", NotADomain::PublicSuffix),
            ("CO.UK.", NotADomain::PublicSuffix),
            ("xn--55qx5d.cn", NotADomain::PublicSuffix),
        ] {
            assert!(HostName::parse_domain(text).is_ok(), "{text}");
            assert_eq!(HostName::parse_added(text), Err(expected), "{text}");
        }
        for text in [
            "acme.org",
            "Forms.Acme.ORG.",
            "acme.co.uk",
            "bücher.example",
            "forms.acme.test",
            "github.io",
            "a--b.acme.org",
            "forms.corp.internal",
            "unknown.tld-of-a-company",
        ] {
            assert!(HostName::parse_added(text).is_ok(), "{text}");
        }
    }
}
