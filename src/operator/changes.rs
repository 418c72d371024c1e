//! `GET /v1/changes`: which tenants changed, in the order of the revisions; each tenant once, at its last change.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::reply::Reply;

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
    let deadline = Instant::now() + wait;
    let rows = loop {
        let rows = registry.changes_after(after, limit + 1).await?;
        if !rows.is_empty() || Instant::now() >= deadline || call.is_head() {
            break rows;
        }
        sleep(LOOK_INTERVAL).await;
    };
    if rows.is_empty() {
        // A follower of a registry that was restored would miss changes until the numbers are used again.
        let head = registry.head("").await?.revision;
        if after > head {
            let text =
                format!("`after` is {after}, and the registry is at revision {head}: it was restored; begin with 0");
            return Err(OperatorRefusal::of("after", text));
        }
    }
    let has_more = rows.len() > limit as usize;
    let shown = &rows[..rows.len().min(limit as usize)];
    let data: Vec<_> = shown
        .iter()
        .map(|row| {
            json!({
                "revision": row.revision,
                "slug": row.slug,
                "type": if row.text.is_some() { "put" } else { "removed" },
                "at": row.changed_at,
                "by": row.changed_by,
            })
        })
        .collect();
    let revision = shown.last().map_or(after, |row| row.revision);
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "revision": revision, "has_more": has_more } })))
}
