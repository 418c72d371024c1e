//! The nodes, and waiting until all of them serve a change.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::reply::Reply;
use crate::store::registry::NodeRecord;
use crate::store::{Registry, StoreError};

/// How often it is looked how far the nodes are.
///
/// Larger: callers wait longer than they have to. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// `GET /v1/nodes`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query(&[])?;
    let registry = call.api.registry().await?;
    let (nodes, head) = (registry.nodes().await?, registry.head("").await?);
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
        "started_at": node.started_at,
        "seen_at": node.seen_at,
    })
}

/// Waits until every live node serves changes up to a revision. Returns those that do not, and why; none if the caller
/// does not wait.
pub(super) async fn wait_for(
    registry: &Registry,
    revision: i64,
    slugs: &[&str],
    wait: Option<Duration>,
) -> Result<Vec<Value>, StoreError> {
    let Some(wait) = wait else { return Ok(Vec::new()) };
    let deadline = Instant::now() + wait;
    loop {
        let nodes = registry.nodes().await?;
        let behind: Vec<_> = nodes.iter().filter_map(|node| Some((node, why_not(node, revision, slugs)?))).collect();
        // A node that can't read a tenant will not learn it by waiting.
        let is_final = behind.iter().all(|(node, _)| node.revision >= revision);
        if is_final || Instant::now() >= deadline {
            return Ok(behind
                .iter()
                .map(|(node, why)| json!({ "id": node.id, "name": node.name, "reason": why }))
                .collect());
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn why_not(node: &NodeRecord, revision: i64, slugs: &[&str]) -> Option<String> {
    if !node.is_live {
        return None;
    }
    if node.revision < revision {
        return Some(format!("it is at revision {}", node.revision));
    }
    let refused = slugs.iter().find(|slug| node.refused.iter().any(|refused| refused == *slug))?;
    Some(format!("it can't serve `{refused}` as it stands in the registry; its log says why"))
}
