//! A map by text, in shards that its copies share: a changed copy costs the shards with changes, and not the whole map.
//!
//! A directory of 100,000 tenants changes by one tenant at a time, on every node. Copying one map of that size takes
//! 20 ms and twice the memory; of 256 shards, some microseconds for each shard with a change.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// How many shards there are.
///
/// Larger: a small map takes more memory, and a copy copies more pointers. Smaller: a change copies more entries.
const SHARDS: usize = 256;

/// The map. Cloning shares all shards.
#[derive(Debug)]
pub(super) struct Shards<K, V> {
    shards: Box<[Arc<HashMap<K, V>>]>,
}

impl<K, V> Clone for Shards<K, V> {
    fn clone(&self) -> Self {
        Self { shards: self.shards.clone() }
    }
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Arc::default()).collect() }
    }
}

impl<K: Borrow<str> + Clone + Eq + Hash, V: Clone> Shards<K, V> {
    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.shards[shard_of(key)].get(key)
    }

    pub(super) fn get_key(&self, key: &str) -> Option<&K> {
        self.shards[shard_of(key)].get_key_value(key).map(|(key, _)| key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let shard = shard_of(key.borrow());
        Arc::make_mut(&mut self.shards[shard]).insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &str) {
        Arc::make_mut(&mut self.shards[shard_of(key)]).remove(key);
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.shards.iter().flat_map(|shard| shard.keys())
    }

    /// Whether one of the two maps was derived from the other by changes. Not after changes of every shard.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        self.shards.iter().zip(&other.shards).any(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// The keys of the shards that this map does not share with another one.
    pub(super) fn keys_apart<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = &'s K> {
        let shards = self.shards.iter().zip(&other.shards).filter(|(one, other)| !Arc::ptr_eq(one, other));
        shards.flat_map(|(shard, _)| shard.keys())
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }
}

/// FNV-1a: keys that collide on purpose make one shard larger, whose own hashing they don't know.
fn shard_of(key: &str) -> usize {
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // Of FNV, the low bits are the even ones.
    (hash ^ (hash >> 32)) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_copy_shares_the_shards_without_changes() {
        let mut before = Shards::<String, usize>::default();
        for number in 0..10_000 {
            before.insert(format!("tenant-{number}"), number);
        }
        let largest = before.shards.iter().map(|shard| shard.len()).max().unwrap();
        assert!(largest < 100, "they are even: {largest}");
        let mut after = before.clone();
        after.insert("tenant-7".to_owned(), 0);
        after.remove("tenant-8");
        assert!(after.shares_with(&before) && !before.shares_with(&Shards::default()));
        let apart = after.keys_apart(&before).count();
        assert!((1..200).contains(&apart), "{apart}");
        let shared = before.shards.iter().zip(&after.shards).filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert!(shared >= SHARDS - 2, "{shared}");
        assert_eq!((before.get("tenant-7"), before.get("tenant-8"), before.len()), (Some(&7), Some(&8), 10_000));
        assert_eq!((after.get("tenant-7"), after.get("tenant-8"), after.len()), (Some(&0), None, 9_999));
    }
}
