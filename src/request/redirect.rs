//! The answer of a listener without TLS: the same address with `https://`.
//!
//! Only a host that a tenant has comes this far, so that nobody can be sent elsewhere through us. Nothing else of the
//! request counts, and a token that stands in it has crossed the network in the clear already.

use http::header::{HeaderValue, LOCATION};
use http::{StatusCode, request};
use serde_json::json;

use crate::error::Refusal;
use crate::gate::Authority;
use crate::reply::Reply;

/// What stands in the log and in metrics in place of a route.
pub(super) const NAME: &str = "redirect";

/// The port that `https://` means when none is given.
const DEFAULT_PORT: u16 = 443;

/// 308, which leaves method and body as they are (RFC 9110, section 15.4.9).
pub(super) fn to_https(authority: &Authority, port: u16, head: &request::Parts) -> Result<Reply, Refusal> {
    // `*` and the target of CONNECT are no paths of any address.
    let target = head.uri.path_and_query().map(http::uri::PathAndQuery::as_str).filter(|text| text.starts_with('/'));
    let target = target.ok_or(Refusal::UnknownPath)?;
    let port = if port == DEFAULT_PORT { String::new() } else { format!(":{port}") };
    let location = format!("https://{}{port}{target}", authority.host());
    let location = HeaderValue::try_from(location).map_err(|_| Refusal::UnknownPath)?;
    let body = json!({ "message": "This address is served over https" });
    Ok(Reply::json(StatusCode::PERMANENT_REDIRECT, &body).with_header(LOCATION, location))
}
