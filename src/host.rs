//! Host names in the form in which they are compared: lower case, A-labels, no port, no trailing dot.
//!
//! A [`HostName`] is normalized on construction, so two are the same host exactly if they are equal.
//! [`CertificateNames`] are the names that a certificate covers, and decide about 421 (RFC 9110, section 15.5.20). A
//! [`HostPattern`] is what an operator configures a certificate for: a host, or a wildcard. `domain` decides which hosts
//! a tenant can have.

mod domain;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

pub use domain::NotADomain;

/// A normalized DNS name or IP literal: `acme.example.com`, `xn--bcher-kva.example`, `127.0.0.1`, `[::1]`.
///
/// Cheap to clone: a gateway with many tenants stores each name once, shared by its configuration and its maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Arc<str>);

/// Equal and hashed as its text.
impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The text is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid host name")]
pub struct InvalidHost;

/// The maximum length of a DNS name in text form (RFC 1035, section 2.3.4).
///
/// Larger: names that DNS can't resolve are accepted. Smaller: valid names are refused.
const MAX_NAME: usize = 253;

impl HostName {
    /// Normalizes a name without a port, as in a configuration or a ClientHello.
    ///
    /// # Errors
    /// [`InvalidHost`] if the name is empty, a label is empty or too long, or a character is not allowed in a host.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if let Some(literal) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: std::net::Ipv6Addr = literal.parse().map_err(|_| InvalidHost)?;
            return Ok(Self(format!("[{address}]").into()));
        }
        if is_normalized(text) {
            return Ok(Self(text.into()));
        }
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::URL).map_err(|_| InvalidHost)?;
        // URLs allow more characters in a host than names in DNS have.
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let mut labels = ascii.as_bytes().split(|byte| *byte == b'.');
        let labels_fit = labels.all(|label| (1..=63).contains(&label.len()) && label.iter().all(fits));
        if ascii.len() > MAX_NAME || !labels_fit {
            return Err(InvalidHost);
        }
        Ok(Self(ascii.into()))
    }

    /// Normalizes the authority of a request: a name and an optional port, which is dropped.
    ///
    /// # Errors
    /// [`InvalidHost`] also for userinfo, a path, or a port that is not a number up to 65535.
    pub fn parse_authority(text: &str) -> Result<Self, InvalidHost> {
        Self::parse_with_port(text).map(|(host, _)| host)
    }

    /// Like [`parse_authority`](Self::parse_authority), but returns the port as written.
    ///
    /// # Errors
    /// Same as there.
    pub fn parse_with_port(text: &str) -> Result<(Self, Option<&str>), InvalidHost> {
        let colon = memchr::memrchr(b':', text.as_bytes()).filter(|&colon| !text[colon..].contains(']'));
        let (host, port) = match colon {
            Some(colon) => (&text[..colon], Some(&text[colon + 1..]).filter(|port| !port.is_empty())),
            None => (text, None),
        };
        let fits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        if !port.is_none_or(fits) || (host.contains(':') && !host.starts_with('[')) {
            return Err(InvalidHost);
        }
        Ok((Self::parse(host)?, port))
    }

    /// The name as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as people write it: `bücher.example`. `None` if it is the same.
    #[must_use]
    pub fn in_unicode(&self) -> Option<String> {
        let (shown, faults) = idna::domain_to_unicode(&self.0);
        (faults.is_ok() && shown != *self.0).then_some(shown)
    }

    /// A copy with its own allocation.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self(Arc::from(&*self.0))
    }

    /// The name without its left-most label.
    fn parent(&self) -> Option<&str> {
        self.0.split_once('.').map(|(_, parent)| parent)
    }
}

/// Whether a name is already normalized: a fast path for nearly all names that clients send. Returns false for
/// A-labels, which need a closer look.
fn is_normalized(text: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() | byte.is_ascii_digit() | (byte == b'-') | (byte == b'_') | (byte == b'.');
    let label_fits = |label: &[u8]| (1..=63).contains(&label.len()) && !label.starts_with(b"xn--");
    // Check every byte without an early exit, so that the loop is vectorized.
    text.len() <= MAX_NAME
        && text.bytes().fold(true, |all, byte| all & fits(byte))
        && text.as_bytes().split(|byte| *byte == b'.').all(label_fits)
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host, or `*.` followed by a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern {
    name: HostName,
    is_wildcard: bool,
}

impl HostPattern {
    /// Normalizes a name that may begin with `*.`.
    ///
    /// # Errors
    /// [`InvalidHost`] also for a wildcard in any other position, and for one below an IP literal.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        match text.strip_prefix("*.") {
            Some(name) if name.starts_with('[') => Err(InvalidHost),
            Some(name) => Ok(Self { name: HostName::parse(name)?, is_wildcard: true }),
            None => Ok(Self { name: HostName::parse(text)?, is_wildcard: false }),
        }
    }

    /// The host, unless this is a wildcard.
    #[must_use]
    pub fn host(&self) -> Option<&HostName> {
        (!self.is_wildcard).then_some(&self.name)
    }

    /// Whether the pattern matches a host. As in certificates, a wildcard matches exactly one left-most label.
    #[must_use]
    pub fn matches(&self, host: &HostName) -> bool {
        if self.is_wildcard { host.parent() == Some(self.name.as_str()) } else { self.name == *host }
    }

    /// The entry for a host; an exact match takes precedence over a wildcard.
    pub fn choose<'a, T>(among: &'a [(Self, T)], host: &HostName) -> Option<&'a (Self, T)> {
        let own = among.iter().find(|(pattern, _)| pattern.host() == Some(host));
        own.or_else(|| among.iter().find(|(pattern, _)| pattern.matches(host)))
    }
}

/// A pattern that matches only this host.
impl From<HostName> for HostPattern {
    fn from(name: HostName) -> Self {
        Self { name, is_wildcard: false }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_wildcard { "*." } else { "" }, self.name)
    }
}

/// The DNS names in a certificate, wildcards included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    names: Vec<Box<str>>,
}

impl CertificateNames {
    /// Takes the subject alternative names of a certificate.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { names: names.into_iter().map(|name| name.to_ascii_lowercase().into()).collect() }
    }

    /// Formats the first names for a report; `None` if there are none.
    #[must_use]
    pub fn listed(&self, most: usize) -> Option<String> {
        let shown: Vec<_> = self.names.iter().take(most).map(|name| format!("`{name}`")).collect();
        let more =
            if self.names.len() > most { format!(" and {} more", self.names.len() - most) } else { String::new() };
        (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
    }

    /// Whether the certificate covers a host. A wildcard matches exactly one left-most label (RFC 9525, section 6.3).
    #[must_use]
    pub fn covers(&self, host: &HostName) -> bool {
        let parent = host.parent();
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(wildcard) => parent == Some(wildcard),
            None => **name == *host.as_str(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> HostName {
        HostName::parse_authority(text).expect("a valid authority")
    }

    #[test]
    fn case_port_and_one_trailing_dot_do_not_count() {
        assert_eq!(host("ACME.Example.com.:8443"), host("acme.example.com"));
        assert!(HostName::parse_authority("acme.example.com..").is_err());
    }

    #[test]
    fn a_unicode_name_equals_its_a_label_form() {
        assert_eq!(host("BÜCHER.example").as_str(), "xn--bcher-kva.example");
        assert_eq!(host("xn--bcher-kva.example").in_unicode().as_deref(), Some("bücher.example"));
        assert_eq!(host("acme.example").in_unicode(), None);
    }

    #[test]
    fn anything_but_an_authority_is_refused() {
        for text in [
            "",
            ".",
            ":443",
            "a b",
            "user@acme.example",
            "acme.example/x",
            "acme:x",
            "acme:99999",
            "a..b",
            "a,b",
            "::1",
            "%61cme",
        ] {
            assert_eq!(HostName::parse_authority(text), Err(InvalidHost), "{text:?}");
        }
    }

    #[test]
    fn names_that_seem_normalized_are_unchanged_by_normalizing() {
        let mut normal = 0;
        let parts = ["a", "z9", "-", "_", ".", "xn--", "--", "0", "A", "ü", " ", "xn--bcher-kva", &"x".repeat(62)];
        for seed in 0..parts.len().pow(4) {
            let text: String = (0..4).map(|at| parts[seed / parts.len().pow(at) % parts.len()]).collect();
            if is_normalized(&text) {
                normal += 1;
                let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::URL);
                assert_eq!(ascii.ok().as_deref(), Some(&*text));
            }
        }
        assert!(normal > 100, "{normal} prove little");
    }

    #[test]
    fn an_ipv6_literal_keeps_its_brackets() {
        assert_eq!(host("[::1]:8443").as_str(), "[::1]");
        assert_eq!(host("[::1]").as_str(), "[::1]");
    }

    #[test]
    fn a_host_gets_its_own_certificate_before_that_of_a_wildcard() {
        let pattern = |text: &str| HostPattern::parse(text).expect("a valid pattern");
        let among = [(pattern("*.ACME.org"), 1), (pattern("forms.acme.org"), 2)];
        let chosen = |text: &str| HostPattern::choose(&among, &host(text)).map(|(_, number)| *number);
        assert_eq!(chosen("forms.acme.org"), Some(2));
        assert_eq!(chosen("hr.acme.org"), Some(1));
        assert_eq!((chosen("acme.org"), chosen("a.b.acme.org"), chosen("hr.acme.com")), (None, None, None));
        assert_eq!(among[0].0.to_string(), "*.acme.org");
        for text in ["*", "*.", "*.*.acme.org", "a.*.org", "*.[::1]", "*acme.org"] {
            assert_eq!(HostPattern::parse(text), Err(InvalidHost), "{text}");
        }
    }

    #[test]
    fn a_wildcard_covers_exactly_one_label() {
        let names = CertificateNames::new(["*.example.com", "forms.acme.org"]);
        assert!(names.covers(&host("acme.example.com")));
        assert!(names.covers(&host("forms.acme.org:8443")));
        for other in ["example.com", "a.b.example.com", "acme.org", "example.com.evil.test"] {
            assert!(!names.covers(&host(other)), "{other}");
        }
    }
}
