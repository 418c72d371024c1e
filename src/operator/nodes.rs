//! The nodes, and waiting until all of them serve a change.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::reply::Reply;
use crate::store::Registry;
use crate::store::registry::{NodeBehind, NodeRecord};

/// `GET /v1/nodes`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query(&[])?;
    let registry = call.api.registry().await?;
    let (nodes, head) = (registry.nodes().await?, registry.head().await?);
    let data: Vec<_> = nodes.iter().map(as_json).collect();
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "revision": head.revision } })))
}

fn as_json(node: &NodeRecord) -> Value {
    json!({
        "id": node.id,
        "name": node.name,
        "version": node.version,
        "revision": node.revision,
        "live": node.is_live,
        "refused": node.refused,
        "refused_count": node.refused_count,
        "started_at": node.started_at,
        "seen_at": node.seen_at,
    })
}

/// The nodes that do not serve a change within the time that the caller waits.
pub(super) async fn wait_for(
    call: &Call<'_>,
    registry: &Registry,
    revision: i64,
    slugs: &[&str],
    wait: Option<Duration>,
) -> Result<Vec<Value>, OperatorRefusal> {
    let Some(wait) = wait else { return Ok(Vec::new()) };
    let (wait, _waiting) = call.begin_to_wait(wait);
    let following = call.api.following()?;
    let behind = registry.wait_for_nodes(revision, slugs, wait, |node| following.is_running(node)).await?;
    let as_json = |node: &NodeBehind| json!({ "id": node.id, "name": node.name, "reason": node.reason });
    Ok(behind.iter().map(as_json).collect())
}
