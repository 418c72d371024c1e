//! `GET /v1/changes`: which tenants changed, each once, at its last change; and what happened to domains. All in the
//! order of the revisions.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::domains::describe_event;
use crate::reply::Reply;
use crate::store::registry::RegistryRow;
use crate::store::{Registry, StoreError};

/// The largest and the default number of changes in an answer.
const MAX_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 100;

/// How often a waiting call looks for changes.
///
/// Larger: changes arrive later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query(&["after", "limit", "wait"])?;
    let (after, wait) = (query.number("after")?, query.wait()?.unwrap_or_default());
    let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let registry = call.api.registry().await?;
    let _waiting = match wait.is_zero() {
        true => None,
        false => Some(call.api.waits.begin(&call.caller.name).ok_or(OperatorRefusal::TooManyWait)?),
    };
    let deadline = Instant::now() + wait;
    let (head, changes) = loop {
        let (head, changes) = changes_after(registry, after, limit + 1).await?;
        if !changes.is_empty() || Instant::now() >= deadline || call.is_head() {
            break (head, changes);
        }
        sleep(LOOK_INTERVAL).await;
    };
    // A follower of a registry that was restored would miss changes until the numbers are used again.
    if changes.is_empty() && after > head {
        let text = format!("`after` is {after}, and the registry is at revision {head}: it was restored; begin with 0");
        return Err(OperatorRefusal::of("after", text));
    }
    let has_more = changes.len() > limit as usize;
    let shown = &changes[..changes.len().min(limit as usize)];
    let data: Vec<_> = shown.iter().map(|(_, change)| change).collect();
    let revision = shown.last().map_or(after, |(revision, _)| *revision);
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "revision": revision, "has_more": has_more } })))
}

/// The revision of the registry, and the first changes after another one.
async fn changes_after(registry: &Registry, after: i64, limit: u32) -> Result<(i64, Vec<(i64, Value)>), StoreError> {
    // First: two statements may see different revisions, and what one of them missed must not be passed over.
    let head = registry.head().await?.revision;
    if head <= after {
        return Ok((head, Vec::new()));
    }
    let tenants = registry.changes_after(after, limit).await?;
    let events = registry.events_after(after, limit).await?;
    let tenants = tenants.iter().map(|row| (row.revision, describe_row(row)));
    let events = events.iter().map(|event| (event.revision, describe_event(event)));
    let mut changes: Vec<_> = tenants.chain(events).filter(|(revision, _)| *revision <= head).collect();
    changes.sort_by_key(|(revision, _)| *revision);
    changes.truncate(limit as usize);
    Ok((head, changes))
}

fn describe_row(row: &RegistryRow) -> Value {
    json!({
        "revision": row.revision,
        "slug": row.slug,
        "type": if row.text.is_some() { "put" } else { "removed" },
        "at": row.changed_at,
        "by": row.changed_by,
    })
}
