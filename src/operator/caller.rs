//! Who calls the operator API: whoever may connect to its socket, or has one of its tokens.

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::request;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::OperatorApi;
use super::refusal::OperatorRefusal;
use crate::store::{Actor, AuditSource};
use crate::tenant::shown_network;

/// What every operator token begins with.
pub const TOKEN_PREFIX: &str = "fgo_";

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

/// The caller of a request.
pub(super) async fn identify(
    api: &OperatorApi,
    transport: &Transport,
    head: &request::Parts,
) -> Result<Caller, OperatorRefusal> {
    let from = match transport {
        Transport::Socket { user } => return Ok(Caller { name: user.clone(), network: None }),
        Transport::Tcp { from } => *from,
    };
    let mut values = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(OperatorRefusal::Unauthenticated) };
    let token = value.to_str().ok().and_then(|text| text.split_once(' '));
    let token =
        token.filter(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && token.starts_with(TOKEN_PREFIX));
    let (_, token) = token.ok_or(OperatorRefusal::Unauthenticated)?;
    let digest = Sha256::digest(token.as_bytes()).into();
    let found = api.registry().await?.use_operator_token(&digest, Timestamp::now()).await?;
    let found = found.ok_or(OperatorRefusal::Unauthenticated)?;
    Ok(Caller { name: found.name, network: Some(shown_network(from)) })
}
