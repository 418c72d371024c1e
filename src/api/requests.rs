//! `GET /request`: the last requests of the account, the newest first.
//!
//! Owns the parameters, the text of a cursor and the JSON of a request. The store lists what is stored, together with what
//! this node has not written.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::json::Json;
use super::{Call, query};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::{LoggedRequest, RequestFilter, RequestKey};

/// How many requests a page has at most, and without `limit`.
///
/// Larger: an answer takes longer. Smaller: reading all takes more requests of the budget.
const MAX_LIMIT: u32 = 100;

/// A request as callers see it.
#[derive(Debug, Serialize)]
pub struct RequestJson<'r> {
    id: &'r str,
    at: Rfc3339Micros,
    token: Option<TokenJson<'r>>,
    /// Of what was refused as a token.
    prefix: Option<&'r str>,
    method: &'r str,
    route: Option<&'r str>,
    status: u16,
    duration_ms: u32,
    rows: Option<u32>,
    network: Option<&'r str>,
    agent: Option<&'r str>,
    reason: Option<&'r str>,
    count: u32,
}

#[derive(Debug, Serialize)]
struct TokenJson<'r> {
    id: i64,
    name: Option<&'r str>,
}

impl<'r> From<&'r LoggedRequest> for RequestJson<'r> {
    fn from(request: &'r LoggedRequest) -> Self {
        Self {
            id: &request.id,
            at: Rfc3339Micros(request.key.instant()),
            token: request.token.map(|id| TokenJson { id, name: request.token_name.as_deref() }),
            prefix: request.prefix.as_deref(),
            method: &request.method,
            route: request.route.as_deref(),
            status: request.status,
            duration_ms: request.duration_ms,
            rows: request.rows,
            network: request.network.as_deref(),
            agent: request.agent.as_deref(),
            reason: request.reason.as_deref(),
            count: request.counted.unwrap_or(1),
        }
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let (tenant, mut faults) = (admitted.tenant(), Faults::default());
    let mut filter = RequestFilter::default();
    if let Some(token) = query::value(call, "token", &mut faults) {
        filter.token = positive(&token);
        if filter.token.is_none() {
            faults.add("token", "The token must be the id of a token.");
        }
    }
    if let Some(status) = query::value(call, "status", &mut faults) {
        filter.statuses = RequestFilter::parse_statuses(&status);
        if filter.statuses.is_none() {
            faults.add("status", "The status must be a status such as 429, or a class such as 4xx.");
        }
    }
    if let Some(since) = query::value(call, "since", &mut faults) {
        filter.since = super::parse_range_start(&since, &tenant.timezone);
        if filter.since.is_none() {
            faults.add("since", "The since must be a date (YYYY-MM-DD) or an RFC 3339 date-time.");
        }
    }
    let limit = query::integer(call, "limit", 1..=MAX_LIMIT, &mut faults).unwrap_or(MAX_LIMIT);
    let mut after = None;
    if let Some(cursor) = query::value(call, "cursor", &mut faults) {
        after = read_cursor(&cursor);
        if after.is_none() {
            faults.add("cursor", "The cursor must be one that an answer had; leave it out to begin.");
        }
    }
    let (filter, after) = faults.into_result((filter, after))?;
    let store = call.store(admitted).await?;
    // Before what is stored is read.
    let held = tenant.tokens.requests.unwritten();
    let mut listed = store.list_requests(&filter, after, limit + 1, held, Timestamp::now()).await?;
    let has_more = listed.len() > limit as usize;
    listed.truncate(limit as usize);
    let cursor = listed.last().filter(|_| has_more).map(|last| cursor_text(last.key));
    let mut json = Json::with_capacity(512 * listed.len() + 128);
    json.raw("{\"data\":").list(&listed, |json, request| _ = json.value(&RequestJson::from(request)));
    json.raw(",\"meta\":").value(&json!({ "cursor": cursor, "has_more": has_more })).raw("}");
    Ok(json.reply(StatusCode::OK).with_rows(listed.len()))
}

fn positive(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number > 0)
}

/// The place in the list behind a request: its instant, its number, and a checksum.
fn cursor_text(RequestKey { at, number }: RequestKey) -> String {
    let mut bytes = [at.to_be_bytes(), number.to_be_bytes()].concat();
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read_cursor(text: &str) -> Option<RequestKey> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (rest, checksum) = bytes.split_last_chunk::<4>()?;
    let (at, number) = rest.split_first_chunk::<8>()?;
    let (at, number) = (i64::from_be_bytes(*at), i64::from_be_bytes(number.try_into().ok()?));
    let is_cursor = crc32fast::hash(rest) == u32::from_be_bytes(*checksum) && Timestamp::from_microsecond(at).is_ok();
    is_cursor.then_some(RequestKey { at, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_a_changed_one_is_none() {
        let key = RequestKey { at: 1_780_000_000_123_456, number: 7 << 30 };
        let text = cursor_text(key);
        assert_eq!(read_cursor(&text), Some(key));
        for other in ["", "x", &text[1..], &text[..text.len() - 1], &format!("{text}A"), &text.replacen('A', "B", 1)] {
            assert_eq!(read_cursor(other), None, "{other}");
        }
        assert_eq!(read_cursor(&cursor_text(RequestKey { at: i64::MAX, number: 0 })), None);
    }
}
