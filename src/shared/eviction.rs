//! Whether a Redis may evict keys. An evicted window starts again empty, and admits up to the limit once more.

use redis::{RedisResult, Value};

use super::client::RedisConnection;

/// The policy that never evicts.
const NO_EVICTION: &str = "noeviction";

/// The server's `maxmemory-policy` if it evicts keys. `None` if it doesn't, or if the answer doesn't contain it.
///
/// # Errors
/// The error from Redis; an ACL may forbid the command.
pub(super) async fn policy(connection: &mut RedisConnection) -> RedisResult<Option<String>> {
    let answer: Value = redis::cmd("INFO").arg("memory").query_async(connection).await?;
    Ok(texts(&answer).into_iter().find_map(evicting_policy))
}

/// Every text in an answer; a cluster answers with one per master.
fn texts(answer: &Value) -> Vec<&str> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).into_iter().collect(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => vec![text],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Map(entries) => entries.iter().flat_map(|(_, value)| texts(value)).collect(),
        _ => Vec::new(),
    }
}

fn evicting_policy(info: &str) -> Option<String> {
    let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?.trim();
    (policy != NO_EVICTION).then(|| policy.to_owned())
}
