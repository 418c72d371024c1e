//! The last step: adds what every answer carries, and writes one line to the log.
//!
//! The log never contains a token, an answer, a keyword or a query.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    VARY,
};
use http::{HeaderMap, Method, Response, StatusCode, Version, request};
use http_body_util::Full;
use hyper::body::Body;
use uuid::fmt::Hyphenated;
use uuid::{ContextV7, Timestamp, Uuid};

use super::RequestContext;
use super::encoding::{Encoding, SMALLEST};
use super::read_by::ReadBy;
use super::streaming::{AnswerBody, STREAM_BYTES, StreamRecord, StreamedBody};
use crate::error::{Refusal, abbreviate};
use crate::gate::Connection;
use crate::memory::{MemoryPermit, MemoryShare, RowMemory};
use crate::metrics::RequestMetrics;
use crate::quota::Budget;
use crate::reply::Reply;
use crate::store::with_causes;
use crate::telemetry::AccessLine;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RATE_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RATE_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// Headers whose value differs in every answer. In HTTP/2's header compression table they would evict those that
/// repeat, and h2 compares all values of a name before it adds one.
const NEVER_INDEXED: [HeaderName; 3] = [REQUEST_ID, RATE_REMAINING, RETRY_AFTER];

/// Duration of a request from which on the log includes its database time.
///
/// Larger: delays that clients notice remain unexplained. Smaller: ordinary lines get longer.
const SLOW: Duration = Duration::from_secs(1);

/// Maximum length of a client's request id.
///
/// Larger: a client can make log lines and headers longer. Smaller: ids of other systems are replaced.
const LONGEST_ID: usize = 128;

thread_local! {
    /// Makes the ids of one thread ascend. A single context for all threads, as in [`Uuid::now_v7`], is a lock that
    /// all requests contend for.
    static ASCENDING: ContextV7 = const { ContextV7::new() };
}

/// The id of a request: the client's own if it is valid, otherwise a new one.
#[derive(Debug)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let sane = |value: &&HeaderValue| {
            (1..=LONGEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        let new = || {
            let mut text = [0; Hyphenated::LENGTH];
            let id = ASCENDING.with(|context| Uuid::new_v7(Timestamp::now(context)));
            HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).expect("visible ASCII")
        };
        Self(headers.get(REQUEST_ID).filter(sane).cloned().unwrap_or_else(new))
    }
}

/// The id of the request that a response answers.
pub(super) fn id_of<B>(response: &Response<B>) -> &str {
    let id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    id.expect("every answer has one, of visible ASCII")
}

/// Answers up to this size are not reserved.
///
/// Larger: slow readers hold more uncounted memory, up to 100 answers per connection. Smaller: the shortest answers,
/// which are the most frequent, pay for counting.
const UNCOUNTED: usize = 4 * 1024;

/// An answer and its memory reservation, which is released when its last byte was handed to the socket.
struct ReservedBody {
    body: Bytes,
    _permit: MemoryPermit,
}

impl AsRef<[u8]> for ReservedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Reserves memory for an answer: its body and, until that is compressed, as much again; for a streamed one
/// [`STREAM_BYTES`]. What was reserved for the
/// rows that it was made of counts towards it.
///
/// # Errors
/// [`Refusal::MemorySpent`].
pub(super) fn reserve(mut reply: Reply, share: &MemoryShare, rows: &RowMemory) -> Result<Reply, Refusal> {
    if reply.body.len() > UNCOUNTED || reply.rest.is_some() {
        let bytes = match &mut reply.rest {
            Some(rest) => {
                rest.rows = Some(rows.clone());
                STREAM_BYTES
            }
            None => 2 * reply.body.len(),
        };
        reply.held = Some(match rows.take() {
            Some(mut held) => {
                held.resize(bytes)?;
                held
            }
            None => share.reserve(bytes)?,
        });
    }
    Ok(reply)
}

/// Builds the response of a reply, and notes which submissions it contains.
pub(super) async fn build(
    reply: Reply,
    head: &request::Parts,
    id: RequestId,
    budget: Option<Budget>,
    part_limit: Duration,
    read_by: Option<ReadBy>,
) -> Response<AnswerBody> {
    let Reply { status, content, mut headers, mut body, read, rest, held, rows: _ } = reply;
    let mut encoder = None;
    headers.insert(REQUEST_ID, id.0);
    // An answer without content has no type (RFC 9110, section 8.3).
    if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        headers.insert(CONTENT_TYPE, content.header());
    }
    // An account's data must not be stored by any cache on the path.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(budget) = budget {
        headers.insert(RATE_LIMIT, budget.limit.into());
        headers.insert(RATE_REMAINING, budget.remaining.into());
    }
    if body.len() >= SMALLEST && content.may_be_compressed() {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        let encoding = Encoding::accepted(&head.headers);
        if let (Some(encoding), Some(_)) = (encoding, &rest) {
            match encoding.encoder() {
                Ok(begun) => {
                    encoder = Some(begun);
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
                }
                Err(error) => tracing::error!(%error, encoding = encoding.name(), "an answer could not be compressed"),
            }
        } else if let Some(encoding) = encoding {
            match encoding.compress(body.clone()).await {
                Ok(compressed) => {
                    body = compressed;
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
                }
                Err(error) => tracing::error!(%error, encoding = encoding.name(), "an answer could not be compressed"),
            }
        }
    }
    // After a malformed head, the rest of the connection can't be parsed, and a stalled body may never end. `unread`
    // decides about answers to bodies that were not read completely.
    let is_last = matches!(status, StatusCode::BAD_REQUEST | StatusCode::REQUEST_TIMEOUT);
    if is_last && head.version <= Version::HTTP_11 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if head.version == Version::HTTP_2 {
        for name in NEVER_INDEXED {
            if let Some(value) = headers.get_mut(name) {
                // Marks it as never indexed, so it is always sent as a literal (RFC 7541, section 6.2.3).
                value.set_sensitive(true);
            }
        }
    }
    if let Some(read_by) = &read_by {
        read_by.note(&read);
    }
    if head.method == Method::HEAD {
        // For a body that is sent, hyper sets it. The length of a streamed one is unknown, and so is here that of one that
        // the client has.
        if rest.is_none() && status != StatusCode::NOT_MODIFIED {
            headers.insert(CONTENT_LENGTH, body.len().into());
        }
        body = Bytes::new();
    } else if let Some(rest) = rest {
        let mut response =
            Response::new(StreamedBody::new(body, rest.parts, encoder, part_limit, (held, rest.rows), read_by).into());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        return response;
    }
    if let Some(mut permit) = held {
        permit.shrink_to(body.len());
        body = Bytes::from_owner(ReservedBody { body, _permit: permit });
    }
    let mut response = Response::new(Full::new(body).into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Writes the access log line of a request, and the cause of a failure. A streamed answer writes its line at its end.
pub(super) fn log(
    connection: &Connection,
    head: &request::Parts,
    context: &RequestContext,
    response: &mut Response<AnswerBody>,
    refusal: Option<&Refusal>,
    took: Duration,
    metrics: &RequestMetrics,
) {
    let status = response.status().as_u16();
    if response.body_mut().streamed().is_some() {
        let record = StreamRecord {
            request_id: id_of(response).to_owned(),
            client: connection.client.clone(),
            tenant: context.tenant.clone(),
            token: context.token.clone(),
            method: abbreviate(head.method.as_str()).into(),
            route: context.route,
            status,
            began: Instant::now().checked_sub(took).unwrap_or_else(Instant::now),
            remaining: context.budget.map(|budget| budget.remaining),
            metrics: metrics.clone(),
        };
        if let Some(body) = response.body_mut().streamed() {
            body.record(record);
        }
        return;
    }
    let (id, tenant) = (id_of(response), context.tenant.as_ref().map(|tenant| &*tenant.slug));
    if let Some(refusal) = refusal.filter(|_| response.status().is_server_error()) {
        let cause = with_causes(refusal);
        if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(request_id = id, tenant, cause, "a request failed");
        } else if refusal.is_logged_elsewhere() {
            tracing::debug!(request_id = id, tenant, cause, "a request could not be served");
        } else {
            tracing::warn!(request_id = id, tenant, cause, "a request could not be served");
        }
    }
    let line = AccessLine {
        request_id: id,
        client: &connection.client,
        tenant,
        token: context.token.as_ref().map(|token| &*token.name),
        method: &abbreviate(head.method.as_str()),
        route: context.route,
        status,
        duration_ms: took.as_secs_f64() * 1000.0,
        bytes: response.body().size_hint().exact(),
        remaining: context.budget.map(|budget| budget.remaining),
        database_ms: (took >= SLOW).then(|| context.database.total().as_secs_f64() * 1000.0),
        cut: None,
    };
    line.log();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_request_id_of_the_client_is_used_and_any_other_is_replaced() {
        for (value, kept) in
            [("abc-1", true), ("", false), ("a b", false), (&*"x".repeat(128), true), (&*"x".repeat(129), false)]
        {
            let headers = HeaderMap::from_iter([(REQUEST_ID, value.parse().unwrap())]);
            assert_eq!(RequestId::of(&headers).0 == value, kept, "{value:?}");
        }
    }
}
