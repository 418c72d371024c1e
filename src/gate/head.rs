//! The head of a request: whom it is for, and whether it is of a sane size.

use http::header::HOST;
use http::{Version, request};

use crate::error::Refusal;
use crate::tenant::host::HostName;

/// The longest request target. Longer serves nobody: filters travel in the body.
const TARGET_LIMIT: usize = 8 * 1024;

/// The most bytes of header fields, HTTP/1.1. Larger lets a caller hold more memory before anything is checked; smaller
/// refuses honest proxies that add fields and cookies of their own.
const FIELDS_LIMIT: usize = 32 * 1024;

/// The same for HTTP/2, whose fields come uncompressed out of a few bytes.
const FIELDS_LIMIT_HTTP2: usize = 16 * 1024;

/// The most header fields, for the same reasons.
const FIELD_COUNT_LIMIT: usize = 100;

/// Refuses a head that is too large.
pub(super) fn check_size(head: &request::Parts) -> Result<(), Refusal> {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > TARGET_LIMIT {
        return Err(Refusal::TargetTooLong);
    }
    let fields: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let limit = if head.version == Version::HTTP_2 { FIELDS_LIMIT_HTTP2 } else { FIELDS_LIMIT };
    if fields > limit || head.headers.len() > FIELD_COUNT_LIMIT {
        return Err(Refusal::HeadTooLarge);
    }
    Ok(())
}

/// The authority of a request: the host in its normal form, and the port as the caller wrote it.
#[derive(Debug)]
pub(super) struct Authority {
    host: HostName,
    port: String,
}

impl Authority {
    /// From `:authority` in HTTP/2 and an absolute target, else from `Host` (RFC 9112, section 3.2; RFC 9113, section
    /// 8.3.1). Where both are there they must agree: a proxy before us may have looked at the other one.
    pub(super) fn of(head: &request::Parts) -> Result<Self, Refusal> {
        let mut hosts = head.headers.get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        if more.is_some() {
            return Err(Refusal::InvalidAuthority);
        }
        let host = host.map(|value| std::str::from_utf8(value.as_bytes()).map_err(|_| Refusal::InvalidAuthority));
        let host = host.transpose()?.map(Self::parse).transpose()?;
        let target = head.uri.authority().map(|authority| Self::parse(authority.as_str())).transpose()?;
        match (target, host) {
            (Some(target), Some(host)) if target.host != host.host => Err(Refusal::InvalidAuthority),
            (Some(authority), _) | (None, Some(authority)) => Ok(authority),
            (None, None) => Err(Refusal::InvalidAuthority),
        }
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let host = HostName::parse_authority(text).map_err(|_| Refusal::InvalidAuthority)?;
        let port = text.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty() && !port.contains(']'));
        Ok(Self { host, port: port.map(|port| format!(":{port}")).unwrap_or_default() })
    }

    pub(super) fn host(&self) -> &HostName {
        &self.host
    }

    /// What links begin with: `https://acme.example.com:8443`.
    pub(super) fn origin(&self) -> String {
        format!("https://{}{}", self.host, self.port)
    }
}
