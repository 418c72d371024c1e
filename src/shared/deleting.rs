//! Deletes keys, for an account of which nothing is to be kept.

use std::time::Duration;

use redis::Pipeline;

use super::client::{RedisClient, cause_of};

/// How many keys are deleted in one command.
///
/// Larger: one command blocks Redis for longer. Smaller: more commands.
const AT_ONCE: usize = 500;

/// How long all of it may take.
///
/// Larger: a caller waits longer for a Redis that hangs. Smaller: the keys of an account with many tokens stay.
const LIMIT: Duration = Duration::from_secs(5);

/// Deletes keys, which are in one slot of a cluster. Returns how many there were. By a lifetime of nothing, since the ACL of
/// formgate's user has that command.
///
/// # Errors
/// Why, in the words of operators.
pub async fn delete(client: &RedisClient, keys: &[String]) -> Result<u64, String> {
    let deleting = async {
        let mut redis = client.connect().await?;
        let mut deleted = 0;
        for keys in keys.chunks(AT_ONCE) {
            let mut commands = Pipeline::new();
            for key in keys {
                commands.cmd("PEXPIRE").arg(key).arg(0);
            }
            deleted += commands.query_async::<Vec<u64>>(&mut redis).await?.into_iter().sum::<u64>();
        }
        Ok(deleted)
    };
    match tokio::time::timeout(LIMIT, deleting).await {
        Ok(outcome) => outcome.map_err(|error: redis::RedisError| cause_of(&error)),
        Err(_) => Err("no response in time".to_owned()),
    }
}
