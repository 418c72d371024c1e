//! The end of a request in the log of its account.
//!
//! Owns which requests are noted, and what of them: those of the API and of directories, never a body, a query or the value in a path. Refusals
//! for which nobody spends a budget are counted, since nothing else bounds how many there are: those without a valid token,
//! and those by a spent budget.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, Method, StatusCode, request};
use jiff::Timestamp;

use super::RequestContext;
use super::scim::{interface_of, path_below};
use crate::api;
use crate::error::{Refusal, RefusalReason};
use crate::gate::Connection;
use crate::metrics::RequestLogMetrics;
use crate::quota::Interface;
use crate::scim;
use crate::tenant::request_log::{EndedRequest, NotedAs, RequestToken};
use crate::tenant::token::SentToken;

/// How many characters of a `User-Agent` are kept.
///
/// Larger: the log grows. Smaller: long ones can't be told apart.
const MAX_AGENT: usize = 120;

/// Whether requests are logged.
#[derive(Debug)]
pub struct RequestLogSwitch(AtomicBool);

/// What is known of a request at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended<'r> {
    pub(super) id: &'r str,
    pub(super) status: StatusCode,
    pub(super) took: Duration,
    pub(super) rows: Option<u32>,
    pub(super) refusal: Option<&'r Refusal>,
}

impl RequestLogSwitch {
    /// On or off.
    #[must_use]
    pub fn new(is_on: bool) -> Self {
        Self(AtomicBool::new(is_on))
    }

    /// Switches it on or off. What is stored stays until it is too old.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }

    /// Whether it is on.
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes a request of an account's API, or of its directory.
    pub(super) fn note(
        &self,
        connection: &Connection,
        head: &request::Parts,
        context: &RequestContext,
        ended: Ended<'_>,
        metrics: &RequestLogMetrics,
    ) {
        let Some(tenant) = context.tenant.as_ref().filter(|_| context.area.is_none()) else { return };
        let interface = interface_of(head.uri.path());
        let Some(path) = path_below(interface, head.uri.path()).filter(|_| self.is_on()) else {
            return;
        };
        let reason = match ended.refusal {
            Some(refusal) => Some(refusal.reason()),
            None if ended.status.as_u16() >= 400 => Some(RefusalReason::of_status(ended.status)),
            None => None,
        };
        let token = match (&context.token, ended.refusal) {
            (Some(token), _) => RequestToken::Known(token.id),
            (None, Some(Refusal::WrongNetwork { token })) => RequestToken::Known(*token),
            (None, _) => sent(&head.headers).map_or(RequestToken::None, RequestToken::Refused),
        };
        let agent = agent(&head.headers);
        let duration_ms = u32::try_from(ended.took.as_millis()).unwrap_or(u32::MAX);
        let noted = tenant.tokens.requests.note(&EndedRequest {
            at: Timestamp::now() - ended.took,
            id: ended.id,
            token,
            method: method(&head.method),
            // The name of a route is its method and its template.
            route: match context.route {
                Some(name) => name.split_once(' ').map(|(_, template)| template),
                None => match interface {
                    Interface::Api => api::ENDPOINTS.template(path),
                    Interface::Scim => scim::ENDPOINTS.template(path),
                },
            },
            status: ended.status.as_u16(),
            duration_ms,
            rows: ended.rows.filter(|_| head.method != Method::HEAD),
            caller: connection.caller,
            agent: agent.as_deref(),
            reason: reason.map(RefusalReason::as_str),
            is_counted: context.token.is_none() || ended.refusal.is_some_and(Refusal::is_free),
        });
        match noted {
            NotedAs::Row => {}
            NotedAs::Counted => metrics.counted.inc(),
            NotedAs::Dropped => metrics.dropped.inc(),
        }
        tenant.tokens.prompt.begin();
    }
}

/// What was sent as a token, if it is like one.
fn sent(headers: &HeaderMap) -> Option<SentToken> {
    SentToken::from_authorization(headers.get(AUTHORIZATION)?.as_bytes())
}

/// The beginning of the `User-Agent`, as visible text.
fn agent(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let value = headers.get(USER_AGENT)?.as_bytes();
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte);
    let first = &value[..value.len().min(MAX_AGENT)];
    if let Ok(text) = std::str::from_utf8(first)
        && first.iter().all(is_plain)
    {
        return Some(text.into());
    }
    let text = String::from_utf8_lossy(value);
    Some(text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).take(MAX_AGENT).collect())
}

/// The name of a method. A client may have invented others.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

    #[test]
    fn an_agent_is_cut_and_has_no_control_characters() {
        for (sent, expected) in [
            ("curl/8.5.0".to_owned().into_bytes(), "curl/8.5.0".to_owned()),
            (vec![b'x'; 200], "x".repeat(MAX_AGENT)),
            ("ä".repeat(200).into_bytes(), "ä".repeat(MAX_AGENT)),
            (b"a\tb\xff".to_vec(), "a\u{fffd}b\u{fffd}".to_owned()),
        ] {
            let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_bytes(&sent).unwrap())]);
            assert_eq!(agent(&headers).as_deref(), Some(&*expected));
        }
        assert_eq!(agent(&HeaderMap::new()), None);
    }

    #[test]
    fn a_method_that_was_invented_is_not_repeated() {
        assert_eq!(method(&Method::PATCH), "PATCH");
        assert_eq!(method(&Method::from_bytes(b"STEAL").unwrap()), "other");
    }
}
