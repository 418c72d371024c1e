//! The URL of a webhook receiver, parsed once.
//!
//! Owns which URLs name a receiver. The parser is that of browsers, so an IPv4 address in any notation (`0x7f.1`,
//! `2130706433`) is an address here and never a name that is looked up, and an IPv6 address with a zone is no URL.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::Uri;
use http::uri::{Authority, PathAndQuery};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::host::HostName;

/// The port of URLs that name none.
const HTTPS_PORT: u16 = 443;

/// An `https` URL that a request can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: TargetHost,
    port: u16,
    uri: Uri,
}

/// The host of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetHost {
    /// A name to look up.
    Name(HostName),
    /// An IP address.
    Address(IpAddr),
}

/// The text does not name a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum InvalidTarget {
    /// Not an `https` URL with a host, or one that is too long.
    #[error("not an https URL")]
    NotHttps,
    /// It contains a user name or a password.
    #[error("contains credentials")]
    Credentials,
    /// Its host is neither an IP address nor a name that DNS can have.
    #[error("has no host that can be looked up")]
    Host,
}

impl Target {
    /// Parses a URL. Its fragment is dropped.
    ///
    /// # Errors
    /// [`InvalidTarget`].
    pub fn parse(url: &str) -> Result<Self, InvalidTarget> {
        let url = Url::parse(url).map_err(|_| InvalidTarget::NotHttps)?;
        if url.scheme() != "https" {
            return Err(InvalidTarget::NotHttps);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::Credentials);
        }
        let host = match url.host().ok_or(InvalidTarget::NotHttps)? {
            Host::Domain(name) => TargetHost::Name(HostName::parse(name).map_err(|_| InvalidTarget::Host)?),
            Host::Ipv4(address) => TargetHost::Address(address.into()),
            Host::Ipv6(address) => TargetHost::Address(address.into()),
        };
        let port = url.port().unwrap_or(HTTPS_PORT);
        let authority = if port == HTTPS_PORT { host.to_string() } else { format!("{host}:{port}") };
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let uri = Uri::builder()
            .scheme("https")
            .authority(Authority::try_from(authority).map_err(|_| InvalidTarget::Host)?)
            .path_and_query(
                PathAndQuery::try_from(format!("{}{query}", url.path())).map_err(|_| InvalidTarget::NotHttps)?,
            );
        Ok(Self { host, port, uri: uri.build().map_err(|_| InvalidTarget::NotHttps)? })
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &TargetHost {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, if the URL contains one.
    #[must_use]
    pub fn literal(&self) -> Option<SocketAddr> {
        match self.host {
            TargetHost::Name(_) => None,
            TargetHost::Address(address) => Some(SocketAddr::new(address, self.port)),
        }
    }

    /// The URL as HTTP sends it.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The host and port of a URL whose path is lost: what the HTTP client gives to its connector.
    pub(super) fn origin_of(uri: &Uri) -> Result<Self, InvalidTarget> {
        Self::parse(&uri.to_string())
    }
}

/// The same for all spellings of one URL: scheme and host in lower case, without the default port, a last dot of the host
/// and the fragment. Path and query are as they are, since only the receiver knows which of them are equal.
#[must_use]
pub fn url_identity(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // An IPv6 address has colons too.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port.trim_start_matches('0')),
        _ => (authority, ""),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let port = match port {
        "" | "443" => String::new(),
        port => format!(":{port}"),
    };
    format!("{}://{host}{port}{path}", scheme.to_ascii_lowercase())
}

/// As in a URL: IPv6 addresses in brackets.
impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn an_address_in_any_notation_is_an_address() {
        for (url, address) in [
            ("https://127.0.0.1/", "127.0.0.1:443"),
            ("https://2130706433/", "127.0.0.1:443"),
            ("https://0x7f000001/", "127.0.0.1:443"),
            ("https://0x7f.1/", "127.0.0.1:443"),
            ("https://0177.0.0.1/", "127.0.0.1:443"),
            ("https://017700000001/", "127.0.0.1:443"),
            ("https://127.1:8443/", "127.0.0.1:8443"),
            ("https://127.0.0.1./", "127.0.0.1:443"),
            ("https://１２７.０.０.１/", "127.0.0.1:443"),
            ("https://①②⑦.0.0.1/", "127.0.0.1:443"),
            ("https://0/", "0.0.0.0:443"),
            ("https://%31%32%37.0.0.1/", "127.0.0.1:443"),
            ("https://[::1]/", "[::1]:443"),
            ("https://[0:0:0:0:0:0:0:1]/", "[::1]:443"),
            ("https://[::ffff:7f00:1]:7/", "[::ffff:127.0.0.1]:7"),
            ("https://[::ffff:127.0.0.1]/", "[::ffff:127.0.0.1]:443"),
        ] {
            assert_eq!(parse(url).literal(), Some(address.parse().unwrap()), "{url}");
        }
        for name in
            ["https://hooks.example/", "https://1.hooks.example/", "https://localhost/", "https://0x7f.1.example/"]
        {
            assert_eq!(parse(name).literal(), None, "{name}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (url, fault) in [
            ("", InvalidTarget::NotHttps),
            ("hooks.example", InvalidTarget::NotHttps),
            ("http://hooks.example/", InvalidTarget::NotHttps),
            ("https://", InvalidTarget::NotHttps),
            ("https://hooks.example:99999/", InvalidTarget::NotHttps),
            ("https://[fe80::1%25eth0]/", InvalidTarget::NotHttps),
            ("https://[fe80::1%eth0]/", InvalidTarget::NotHttps),
            ("https://127.0.0.1.5/", InvalidTarget::NotHttps),
            ("https://256.1/", InvalidTarget::NotHttps),
            ("https://user@hooks.example/", InvalidTarget::Credentials),
            ("https://:pw@hooks.example/", InvalidTarget::Credentials),
            ("https://*.hooks.example/", InvalidTarget::Host),
            ("https://hooks..example/", InvalidTarget::Host),
        ] {
            assert_eq!(Target::parse(url), Err(fault), "{url}");
        }
        let long = format!("https://hooks.example/{}", "x".repeat(70_000));
        assert_eq!(Target::parse(&long), Err(InvalidTarget::NotHttps));
    }

    #[test]
    fn spellings_of_a_url_have_one_identity_and_other_urls_another() {
        let identity = "https://hooks.example/A/%7bx%7D?B=c";
        for url in [
            "https://hooks.example/A/%7bx%7D?B=c",
            "HTTPS://Hooks.Example/A/%7bx%7D?B=c",
            "https://hooks.example:443/A/%7bx%7D?B=c",
            "https://hooks.example:/A/%7bx%7D?B=c",
            "https://hooks.example:00443/A/%7bx%7D?B=c",
            "https://hooks.example./A/%7bx%7D?B=c",
            "hTTps://hooks.EXAMPLE.:443/A/%7bx%7D?B=c#D/e?f",
        ] {
            assert_eq!(url_identity(url), identity, "{url}");
        }
        for url in [
            "https://hooks.example/a/%7bx%7D?B=c",
            "https://hooks.example/A/%7Bx%7D?B=c",
            "https://hooks.example/A/{x}?B=c",
            "https://hooks.example/A/%7bx%7D?b=c",
            "https://hooks.example/A/%7bx%7D",
            "https://hooks.example/A/%7bx%7D/?B=c",
            "https://hooks.example/A//%7bx%7D?B=c",
            "https://hooks.example:4430/A/%7bx%7D?B=c",
            "https://hooks.example:8443/A/%7bx%7D?B=c",
            "https://www.hooks.example/A/%7bx%7D?B=c",
        ] {
            assert_ne!(url_identity(url), identity, "{url}");
        }
        for (url, identity) in [
            ("https://[2001:DB8::1]:443/", "https://[2001:db8::1]/"),
            ("https://[2001:DB8::443]", "https://[2001:db8::443]"),
            ("https://[2001:db8::1]:8443?A:443#b", "https://[2001:db8::1]:8443?A:443"),
            ("https://hooks.example:08443/:443.", "https://hooks.example:8443/:443."),
            ("HTTPS://Hooks.Example.:443?Q", "https://hooks.example?Q"),
        ] {
            assert_eq!(url_identity(url), identity);
        }
    }

    #[test]
    fn a_url_is_sent_as_it_was_subscribed_without_its_fragment() {
        for (url, sent) in [
            ("https://hooks.example", "https://hooks.example/"),
            ("https://Hooks.Example.:443/a?b=c#d", "https://hooks.example/a?b=c"),
            ("https://hooks.example:8443/%7Bx%7D?q={\\}^|`", "https://hooks.example:8443/%7Bx%7D?q={\\}^|`"),
            ("https://hooks.example/a b/{c}?d'e", "https://hooks.example/a%20b/%7Bc%7D?d%27e"),
            ("https://bücher.example/ä", "https://xn--bcher-kva.example/%C3%A4"),
            ("https://[2606:4700::1]:8443/", "https://[2606:4700::1]:8443/"),
        ] {
            let target = parse(url);
            assert_eq!(target.uri().to_string(), sent, "{url}");
            let origin = Target::origin_of(target.uri()).unwrap();
            assert_eq!((origin.host(), origin.port()), (target.host(), target.port()), "{url}");
        }
    }
}
