//! The shards of a Redis cluster, each with a circuit breaker: while one shard does not answer, accounts on the
//! others are limited as usual.
//!
//! A shard is a range of hash slots. Its breaker opens with the first failed call, so later calls don't wait, and
//! closes once a script that writes to one of its slots succeeds. The ranges are those at the time a connection was
//! opened. If slots move later, a breaker may also cover accounts of another master until the next connection is
//! opened.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};
use futures_util::future::join_all;
use redis::{RedisResult, Value};

use super::client::RedisConnection;
use super::connections::probe;
use crate::metrics::RedisMetrics;

/// How often a shard that does not answer is probed.
///
/// Larger: its accounts return to the shared window later. Smaller: a broken shard costs the client more reconnects.
const RETRY: Duration = Duration::from_millis(400);

/// How long a probe may take.
///
/// Larger: a shard that hangs delays opening a connection to the cluster. Smaller: a distant shard is never reached.
const LIMIT: Duration = Duration::from_millis(500);

/// The hash of keys (redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec, "Key distribution model").
const HASH: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots.
const SLOTS: u16 = 16384;

/// All shards of a cluster.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Vec<Shard>,
    metrics: RedisMetrics,
}

#[derive(Debug)]
struct Shard {
    slots: RangeInclusive<u16>,
    /// A key in one of the slots.
    probe: String,
    is_down: AtomicBool,
}

impl Shards {
    /// Reads the slot ranges of a cluster and probes each. Shards that fail are retried in the background.
    ///
    /// # Errors
    /// The error from Redis, or that of the last shard if none answers.
    pub(super) async fn find(mut connection: RedisConnection, metrics: RedisMetrics) -> RedisResult<Arc<Self>> {
        let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        let shards = ranges.iter().filter_map(|range| match range.as_slice() {
            [Value::Int(first), Value::Int(last), ..] => {
                Shard::new(u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?)
            }
            _ => None,
        });
        let shards = Arc::new(Self { shards: shards.collect(), metrics });
        let probes = join_all(shards.shards.iter().map(|shard| shard.probe_on(connection.clone()))).await;
        for (at, outcome) in probes.into_iter().enumerate() {
            let Err(failure) = outcome else { continue };
            if shards.open_breaker(at, &failure.to_string(), &connection) {
                return Err(failure);
            }
        }
        shards.publish();
        Ok(shards)
    }

    /// Whether the shard of a key does not answer.
    pub(super) fn is_down(&self, key: &str) -> bool {
        self.at(key).is_some_and(|at| self.shards[at].is_down())
    }

    /// Opens the breaker of a key's shard after a failed call. Returns whether no shard answers any more.
    pub(super) fn failed(self: &Arc<Self>, key: &str, failure: &str, connection: &RedisConnection) -> bool {
        self.at(key).is_none_or(|at| self.open_breaker(at, failure, connection))
    }

    fn open_breaker(self: &Arc<Self>, at: usize, failure: &str, connection: &RedisConnection) -> bool {
        let shard = &self.shards[at];
        if !shard.is_down.swap(true, Ordering::AcqRel) {
            tracing::warn!(slots = ?shard.slots, failure, "Redis shard unreachable; applying on_redis_failure to its accounts");
            self.publish();
            tokio::spawn(probe_until_up(Arc::downgrade(self), at, connection.clone()));
        }
        self.shards.iter().all(Shard::is_down)
    }

    fn at(&self, key: &str) -> Option<usize> {
        let slot = slot(key);
        self.shards.iter().position(|shard| shard.slots.contains(&slot))
    }

    fn publish(&self) {
        let down = self.shards.iter().filter(|shard| shard.is_down()).count();
        self.metrics.shards_down.set(i64::try_from(down).unwrap_or(i64::MAX));
    }
}

/// Probes a shard until it answers, or until these shards are replaced.
async fn probe_until_up(shards: Weak<Shards>, at: usize, connection: RedisConnection) {
    loop {
        tokio::time::sleep(RETRY).await;
        let Some(shards) = shards.upgrade() else { return };
        let shard = &shards.shards[at];
        if shard.probe_on(connection.clone()).await.is_ok() {
            shard.is_down.store(false, Ordering::Release);
            tracing::info!(slots = ?shard.slots, "Redis shard answers; budgets are shared");
            shards.publish();
            return;
        }
    }
}

impl Shard {
    fn new(slots: RangeInclusive<u16>) -> Option<Self> {
        // Each key hashes to a pseudorandom slot, so 16 times as many keys as slots hit nearly every single slot.
        let probe = (0..16 * u32::from(SLOTS)).map(|number| format!("formgate:probe:{number}"));
        let probe = probe.into_iter().find(|key| slots.contains(&slot(key)))?;
        Some(Self { slots, probe, is_down: AtomicBool::new(false) })
    }

    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    async fn probe_on(&self, mut connection: RedisConnection) -> RedisResult<()> {
        match tokio::time::timeout(LIMIT, probe(&mut connection, &self.probe)).await {
            Ok(outcome) => outcome,
            Err(_) => Err((redis::ErrorKind::Io, "no answer", format!("within {LIMIT:?}")).into()),
        }
    }
}

/// The slot of a key: hashes the text in its first braces, if there is any.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    HASH.checksum(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from `CLUSTER KEYSLOT`.
    #[test]
    fn keys_hash_to_the_same_slots_as_in_redis() {
        for (key, expected) in
            [("123456789", 12739), ("{acme}", 11304), ("formgate:window:{acme}:1", 11304), ("a{}b", 13694), ("", 0)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn every_range_has_a_key_to_probe_it_with() {
        for slots in [0..=0, 5461..=5461, 16383..=16383, 0..=5460] {
            let shard = Shard::new(slots.clone()).expect("there is one");
            assert!(slots.contains(&slot(&shard.probe)));
        }
    }
}
