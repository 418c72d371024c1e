//! The answer of a listener without TLS: a redirect to the same address with `https://`.
//!
//! Only a tenant's host gets this far, so the gateway can't be used to redirect clients elsewhere; and no one-time
//! link, which would work nevertheless, so that nobody would notice. Nothing else of the request is examined; a token
//! in it has already crossed the network in the clear.

use http::header::{HeaderValue, LOCATION};
use http::{StatusCode, request};
use serde_json::json;

use crate::error::Refusal;
use crate::gate::Authority;
use crate::reply::Reply;

/// Takes the place of a route in the log and in metrics.
pub(super) const NAME: &str = "redirect";

/// The default port of `https://`.
const DEFAULT_PORT: u16 = 443;

/// 308, which preserves the method and body (RFC 9110, section 15.4.9).
pub(super) fn to_https(authority: &Authority, port: u16, head: &request::Parts) -> Result<Reply, Refusal> {
    // `*` and the target of CONNECT are not paths.
    let target = head.uri.path_and_query().map(http::uri::PathAndQuery::as_str).filter(|text| text.starts_with('/'));
    let target = target.ok_or(Refusal::UnknownPath)?;
    let port = if port == DEFAULT_PORT { String::new() } else { format!(":{port}") };
    let location = format!("https://{}{port}{target}", authority.host());
    let location = HeaderValue::try_from(location).map_err(|_| Refusal::UnknownPath)?;
    let body = json!({ "message": "This address is served over https" });
    Ok(Reply::json(StatusCode::PERMANENT_REDIRECT, &body).with_header(LOCATION, location))
}
