//! `GET /v1/tenants/{slug}/usage`: the requests of each token of a tenant by the hour, as its charts count them.
//!
//! What is stored lacks the last hour or two of other nodes; what this node has not written yet is added.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use http::StatusCode;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::Call;
use super::body::Query;
use super::credentials::{OpenTenant, find, of_tenant, open_tenant};
use super::refusal::OperatorRefusal;
use crate::api::{parse_range_end, parse_range_start};
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::{RequestCounts, StoreError, TokenHour};

/// The longest range: a month, also one in which clocks are set back.
///
/// Larger: a call reads and returns more. Smaller: a month needs two calls.
const LONGEST: SignedDuration = SignedDuration::from_hours(32 * 24);

/// The range without `since`.
const DEFAULT: SignedDuration = SignedDuration::from_hours(24);

const HOUR: i64 = 3600;

pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let zone = find(call, call.slug()).await?.timezone.clone();
    let (since, until) = range(&query, &zone)?;
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let reading = async {
        let stored = store.list_token_hours(since);
        let served = call.api.directory.load().tenant(&tenant.slug).cloned();
        let (stored, unwritten) = match &served {
            Some(served) => served.tokens.usage.with_unwritten(stored).await,
            None => (stored.await, Vec::new()),
        };
        let hours = stored?.into_iter().chain(unwritten);
        let hours: Vec<_> = hours.filter(|of| of.hour >= since && of.hour <= until).collect();
        let tokens: BTreeSet<i64> = hours.iter().map(|of| of.token).collect();
        let names = store.list_token_names(&tokens.into_iter().collect::<Vec<_>>()).await?;
        Ok::<_, StoreError>((hours, names))
    };
    let read = reading.await;
    store.close().await;
    let (hours, names) = read.map_err(|error| of_tenant(&tenant, &error))?;
    let names: HashMap<i64, String> = names.into_iter().collect();
    let (mut by_hour, mut all) = (BTreeMap::<_, RequestCounts>::new(), RequestCounts::default());
    for TokenHour { hour, token, counts } in hours {
        by_hour.entry((hour, token)).or_default().add(counts);
        all.add(counts);
    }
    let rows = by_hour.into_iter().map(|((hour, token), counts)| {
        json!({
            "hour": Rfc3339Micros(hour),
            "token": { "id": token, "name": names.get(&token) },
            "admitted": counts.admitted,
            "refused": counts.refused,
        })
    });
    let meta = json!({
        "since": Rfc3339Micros(since),
        "until": Rfc3339Micros(until),
        "admitted": all.admitted,
        "refused": all.refused,
    });
    Ok(Reply::json(StatusCode::OK, &json!({ "data": rows.collect::<Vec<_>>(), "meta": meta })))
}

/// The hours that a caller asks for: from the one in which `since` is, to the one in which `until` is.
fn range(query: &Query, zone: &TimeZone) -> Result<(Timestamp, Timestamp), OperatorRefusal> {
    let bound = |key: &str, parse: fn(&str, &TimeZone) -> Option<Timestamp>| {
        let fault =
            || OperatorRefusal::of(key, format!("`{key}` must be a day such as 2026-05-01, or an RFC 3339 date-time"));
        query.text(key).map(|text| parse(text, zone).ok_or_else(fault)).transpose()
    };
    let (since, until) = (bound("since", parse_range_start)?, bound("until", parse_range_end)?);
    let is_until_now = until.is_none();
    let until = until.unwrap_or_else(Timestamp::now);
    let since = since.unwrap_or_else(|| until.saturating_sub(DEFAULT).unwrap_or(Timestamp::MIN));
    let since = Timestamp::from_second(since.as_second().div_euclid(HOUR) * HOUR).unwrap_or(since);
    if until < since {
        return Err(match is_until_now {
            true => OperatorRefusal::of("since", "`since` must not be in the future"),
            false => OperatorRefusal::of("until", "`until` must not be before `since`"),
        });
    }
    if until.duration_since(since) > LONGEST {
        let text = match is_until_now {
            true => "without `until`, `since` must be at most 32 days ago: give `until` for an earlier month",
            false => "`since` must be at most 32 days before `until`",
        };
        return Err(OperatorRefusal::of("since", text));
    }
    Ok((since, until))
}
