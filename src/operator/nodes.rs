//! The nodes, and waiting until all of them serve a change.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::Registry;
use crate::store::registry::NodeRecord;

/// `GET /v1/nodes`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
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
        "started_at": Rfc3339Micros(node.started_at),
        "seen_at": Rfc3339Micros(node.seen_at),
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
    await_nodes(call, registry, revision, slugs, wait).await
}

/// The same for a call that has its share of the waiting calls.
pub(super) async fn await_nodes(
    call: &Call<'_>,
    registry: &Registry,
    revision: i64,
    slugs: &[&str],
    wait: Duration,
) -> Result<Vec<Value>, OperatorRefusal> {
    let following = call.api.following()?;
    let behind = registry.wait_for_nodes(revision, slugs, wait, |node| following.is_running(node)).await?;
    Ok(behind.iter().map(|node| behind_as_json(&node.id, &node.name, &node.reason)).collect())
}

/// Why this node does not serve a change, unless `behind` lists it.
pub(super) fn add_this_node(call: &Call<'_>, behind: &mut Vec<Value>, reason: &str) -> Result<(), OperatorRefusal> {
    let node = call.api.following()?.node();
    if !behind.iter().any(|other| other["id"] == node.id()) {
        behind.push(behind_as_json(node.id(), node.name(), reason));
    }
    Ok(())
}

pub(super) fn behind_as_json(id: &str, name: &str, reason: &str) -> Value {
    json!({ "id": id, "name": name, "reason": reason })
}
