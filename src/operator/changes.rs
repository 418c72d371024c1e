//! `GET /v1/changes`: which tenants changed, each once, at its last change; and what happened to domains. All in the
//! order of the revisions.
//!
//! `after` is `meta.next` of the page before, a revision with its stamp: with it, a caller notices that the registry was
//! restored even if it has passed that revision since. A plain revision is accepted too.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::domains::describe_event;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::registry::{Feed, InvalidMark, RegistryMark, RegistryRow};

/// The largest and the default number of changes in a response.
const MAX_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 100;

/// How often a waiting call polls for changes.
///
/// Larger: changes arrive later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let fault = || OperatorRefusal::of("after", "`after` must be `meta.next` of a page, or a revision");
    let (after, stamp) = match query.text("after").filter(|text| text.contains('.')).map(str::parse) {
        Some(Ok(RegistryMark { revision, stamp })) => (revision, Some(stamp)),
        Some(Err(InvalidMark)) => return Err(fault()),
        None => (query.number("after").map_err(|_| fault())?, None),
    };
    let wait = query.wait()?.unwrap_or_default();
    let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let registry = call.api.registry().await?;
    let _waiting = match wait.is_zero() {
        true => None,
        false => Some(call.api.waits.begin(&call.caller.name).ok_or(OperatorRefusal::TooManyWait)?),
    };
    let deadline = Instant::now() + wait;
    let (head, changes) = loop {
        let feed = registry.feed(after, stamp, limit + 1).await?;
        if !feed.has_history {
            return Err(OperatorRefusal::OtherHistory { after, head: feed.head.revision });
        }
        let changes = merged(&feed, limit as usize + 1);
        if !changes.is_empty() || Instant::now() >= deadline || call.is_head() {
            break (feed.head, changes);
        }
        sleep(LOOK_INTERVAL).await;
    };
    let has_more = changes.len() > limit as usize;
    let shown = &changes[..changes.len().min(limit as usize)];
    let data: Vec<_> = shown.iter().map(|(_, change)| change).collect();
    let revision = shown.last().map_or(after, |(revision, _)| *revision);
    // Everything up to the head was read, also what is no change here, such as certificates.
    let next = if has_more { registry.mark(revision).await? } else { head };
    let meta = json!({ "revision": revision, "next": next.to_string(), "has_more": has_more });
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": meta })))
}

/// The first changes of both kinds, in the order of their revisions.
fn merged(feed: &Feed, limit: usize) -> Vec<(i64, Value)> {
    let tenants = feed.tenants.iter().map(|row| (row.revision, describe_row(row)));
    let events = feed.events.iter().map(|event| (event.revision, describe_event(event)));
    let mut changes: Vec<_> = tenants.chain(events).collect();
    changes.sort_by_key(|(revision, _)| *revision);
    changes.truncate(limit);
    changes
}

fn describe_row(row: &RegistryRow) -> Value {
    json!({
        "revision": row.revision,
        "slug": row.slug,
        "type": if row.text.is_some() { "put" } else { "removed" },
        "at": Rfc3339Micros(row.changed_at),
        "by": row.changed_by,
    })
}
