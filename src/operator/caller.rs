//! Who calls the operator API: whoever may connect to its socket, or has one of its tokens.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderValue, ORIGIN};
use http::request;
use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;
use sha2::{Digest, Sha256};

use super::OperatorApi;
use super::refusal::OperatorRefusal;
use crate::store::{Actor, AuditSource};
use crate::tenant::shown_network;

/// What every operator token begins with.
pub const TOKEN_PREFIX: &str = "fgo_";

/// Where the page that sends a request is (Fetch Metadata): `cross-site`, `same-site`, `same-origin`, or `none` for
/// what a person typed.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// How a request arrived.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Over the socket in the file system, by this system user.
    Socket {
        /// The name of the user, or its number.
        user: String,
    },
    /// Over TCP, from this address.
    Tcp {
        /// The address.
        from: IpAddr,
    },
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The system user, or the name of the token.
    pub name: String,
    network: Option<String>,
}

impl Caller {
    /// For the audit log of a tenant.
    pub(super) fn actor(&self) -> Actor {
        Actor { name: self.name.clone(), source: AuditSource::Operator, network: self.network.clone(), identity: None }
    }
}

/// The caller of a request. Pages of a browser are none, whatever they were let know: a page that an operator visits
/// reaches addresses of the operator's machine.
pub(super) async fn identify(
    api: &OperatorApi,
    transport: &Transport,
    head: &request::Parts,
) -> Result<Caller, OperatorRefusal> {
    let is_of_another_site = |site: &HeaderValue| !matches!(site.as_bytes(), b"none" | b"same-origin");
    if head.headers.contains_key(ORIGIN) || head.headers.get_all(SEC_FETCH_SITE).iter().any(is_of_another_site) {
        return Err(OperatorRefusal::OfPage);
    }
    let from = match transport {
        Transport::Socket { user } => return Ok(Caller { name: user.clone(), network: None }),
        Transport::Tcp { from } => *from,
    };
    let mut values = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(OperatorRefusal::Unauthenticated) };
    let token = value.to_str().ok().and_then(token_of).filter(|token| token.starts_with(TOKEN_PREFIX));
    let token = token.ok_or(OperatorRefusal::Unauthenticated)?;
    let digest = Sha256::digest(token.as_bytes()).into();
    let found = api.registry().await?.use_operator_token(&digest, Timestamp::now()).await?;
    let found = found.ok_or(OperatorRefusal::Unauthenticated)?;
    Ok(Caller { name: found.name, network: Some(shown_network(from)) })
}

/// The token of an `Authorization` header: a bearer token, or the password of clients that can only have a URL, such as
/// the `ask` of Caddy.
fn token_of(header: &str) -> Option<Zeroizing<String>> {
    let (scheme, credentials) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Zeroizing::new(credentials.to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = Zeroizing::new(STANDARD.decode(credentials.trim()).ok()?);
    let (_, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(Zeroizing::new(password.to_owned()))
}
