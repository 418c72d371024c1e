//! The head of a request: which host it is for, and whether the gateway can respond to it.

use std::fmt;
use std::sync::OnceLock;

use http::header::HOST;
use http::{Method, Version, request};

use crate::config::RequestLimits;
use crate::error::Refusal;
use crate::host::HostName;

/// Why the edge rejected a head. The gate gets a placeholder request in its place, with this as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// It is not HTTP.
    Malformed,
    /// The length of its body is ambiguous: two lengths, or a length and a transfer coding.
    Length,
    /// Its target is not a resource.
    Target,
    /// Its target is too long for the rest to be read.
    TargetTooLong,
    /// It is too large to be read.
    TooLarge,
}

impl From<HeadFault> for Refusal {
    fn from(fault: HeadFault) -> Self {
        match fault {
            HeadFault::Malformed => Self::MalformedHead,
            HeadFault::Length => Self::AmbiguousLength,
            HeadFault::Target => Self::InvalidTarget,
            HeadFault::TargetTooLong => Self::TargetTooLong,
            HeadFault::TooLarge => Self::HeadTooLarge,
        }
    }
}

/// Refuses requests that are not for a resource: heads that the edge rejected, `*`, and tunnels (CONNECT).
///
/// # Errors
/// [`Refusal::InvalidTarget`], and the refusal of a [`HeadFault`].
pub fn check_form(head: &request::Parts) -> Result<(), Refusal> {
    if let Some(fault) = head.extensions.get::<HeadFault>() {
        return Err((*fault).into());
    }
    if head.method == Method::CONNECT || head.uri.path() == "*" {
        return Err(Refusal::InvalidTarget);
    }
    Ok(())
}

/// Refuses unknown methods; a route decides which of the known ones it accepts. Known are the methods of HTTP itself (RFC
/// 9110, section 9.1, and RFC 5789), and QUERY, which OpenAPI and its tools know.
///
/// # Errors
/// [`Refusal::UnknownMethod`].
pub fn check_method(method: &Method) -> Result<(), Refusal> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"];
    if KNOWN.contains(&method.as_str()) { Ok(()) } else { Err(Refusal::UnknownMethod) }
}

/// Refuses a head that is too large.
///
/// # Errors
/// [`Refusal::TargetTooLong`], [`Refusal::HeadTooLarge`].
pub fn check_size(head: &request::Parts, limits: &RequestLimits) -> Result<(), Refusal> {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > limits.target_bytes {
        return Err(Refusal::TargetTooLong);
    }
    let fields: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let limit = if head.version == Version::HTTP_2 { limits.http2_head_bytes } else { limits.head_bytes };
    if fields > limit || head.headers.len() > limits.head_fields {
        return Err(Refusal::HeadTooLarge);
    }
    Ok(())
}

/// The first authority on a connection. Most later requests name the same one, which is then not normalized again.
#[derive(Clone, Debug, Default)]
pub struct FirstAuthority(OnceLock<ParsedAuthority>);

#[derive(Clone, Debug)]
struct ParsedAuthority {
    text: Box<str>,
    host: HostName,
    /// Where the port begins in the text.
    port: Option<usize>,
}

/// Maximum length of text that is kept: the longest DNS name, and a port.
///
/// Larger: a client can make each of its connections use more memory. Smaller: a long name is normalized with each
/// request.
const MAX_CACHED_LENGTH: usize = 259;

/// The authority of a request: the host in its normal form, and the port as the client sent it.
#[derive(Debug)]
pub struct Authority<'h> {
    host: HostName,
    port: Option<&'h str>,
}

impl<'h> Authority<'h> {
    /// From `:authority` in HTTP/2 or an absolute target, otherwise from `Host` (RFC 9112, section 3.2; RFC 9113,
    /// section 8.3.1). If both are present they must agree: a proxy in front may have used the other one.
    ///
    /// # Errors
    /// [`Refusal::InvalidAuthority`].
    pub fn of(head: &'h request::Parts, first: &FirstAuthority) -> Result<Self, Refusal> {
        let mut hosts = head.headers.get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        if more.is_some() {
            return Err(Refusal::InvalidAuthority);
        }
        let host = host.map(|value| std::str::from_utf8(value.as_bytes()).map_err(|_| Refusal::InvalidAuthority));
        let host = host.transpose()?.map(|text| Self::parse(text, first)).transpose()?;
        let target = head.uri.authority().map(|authority| Self::parse(authority.as_str(), first)).transpose()?;
        match (target, host) {
            (Some(target), Some(host)) if target.host != host.host => Err(Refusal::InvalidAuthority),
            // An absolute target does not replace the field (RFC 9112, section 3.2).
            (Some(_), None) if head.version == Version::HTTP_11 => Err(Refusal::InvalidAuthority),
            (Some(authority), _) | (None, Some(authority)) => Ok(authority),
            (None, None) => Err(Refusal::InvalidAuthority),
        }
    }

    fn parse(text: &'h str, first: &FirstAuthority) -> Result<Self, Refusal> {
        if let Some(ParsedAuthority { host, port, .. }) = first.0.get().filter(|first| *first.text == *text) {
            return Ok(Self { host: host.clone(), port: port.map(|port| &text[port..]) });
        }
        let (host, port) = HostName::parse_with_port(text).map_err(|_| Refusal::InvalidAuthority)?;
        if text.len() <= MAX_CACHED_LENGTH {
            first.0.get_or_init(|| {
                // The text ends with the port.
                let port = port.map(|port| text.len() - port.len());
                ParsedAuthority { text: text.into(), host: host.clone(), port }
            });
        }
        Ok(Self { host, port })
    }

    /// The host, in its normal form.
    #[must_use]
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// The start of links.
    #[must_use]
    pub fn origin(&self) -> Origin<'_> {
        Origin { host: &self.host, port: self.port }
    }
}

/// The address that the client used, as links begin: `https://acme.example.com:8443`.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The host.
    pub host: &'a HostName,
    /// The port as the client sent it.
    pub port: Option<&'a str>,
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn an_authority_is_read_the_same_whatever_the_first_one_was() {
        let named = |text: &str, first: &FirstAuthority| {
            let (head, ()) = Request::get("/").header(HOST, text).body(()).unwrap().into_parts();
            Authority::of(&head, first)
                .map(|Authority { host, port }| (host.to_string(), port.map(ToOwned::to_owned)))
                .ok()
        };
        let long = format!("acme.example.com:{:0>300}", 443);
        let texts = [
            "Acme.Example.com:8443",
            "acme.example.com:",
            "acme.example.com",
            &long,
            "[::1]",
            "[::1]:443",
            "a b",
            "a:b",
        ];
        for first in texts {
            let connection = FirstAuthority::default();
            named(first, &connection);
            for text in texts.iter().chain(&texts) {
                assert_eq!(named(text, &connection), named(text, &FirstAuthority::default()), "{text} after {first}");
            }
        }
        let connection = FirstAuthority::default();
        named(&long, &connection).expect("an authority");
        assert!(connection.0.get().is_none(), "it is too long to be kept");
        let port = Some("8443".to_owned());
        assert_eq!(named(texts[0], &FirstAuthority::default()), Some(("acme.example.com".to_owned(), port)));
    }
}
