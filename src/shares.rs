//! Shares of what is limited: how much may run at once for each of many, and for all together.
//!
//! The fuller it gets, the smaller a share is, so that a few who use all of theirs leave something to those who come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What runs at once, counted for each key.
#[derive(Debug)]
pub struct Shares {
    each: usize,
    all: usize,
    running: Mutex<HashMap<Arc<str>, usize>>,
}

/// A part of a share, which is given back when this is dropped.
#[derive(Debug)]
pub struct Share<'s> {
    of: &'s Shares,
    key: Arc<str>,
}

impl Shares {
    /// At most `each` for a key, and `all` together.
    #[must_use]
    pub fn new(each: usize, all: usize) -> Self {
        Self { each, all, running: Mutex::default() }
    }

    /// Begins one more, unless the share of the key is in use, or as much runs for the key as is left for all.
    #[must_use]
    pub fn begin(&self, key: &str) -> Option<Share<'_>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.all.saturating_sub(running.values().sum());
        if running.get(key).copied().unwrap_or_default() >= self.each.min(left) {
            return None;
        }
        let key: Arc<str> = key.into();
        *running.entry(Arc::clone(&key)).or_default() += 1;
        Some(Share { of: self, key })
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut running = self.of.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_back_and_one_in_use_takes_nothing_from_others() {
        let shares = Shares::new(2, 3);
        let held = [shares.begin("a"), shares.begin("a")];
        assert!(held.iter().all(Option::is_some));
        assert!(shares.begin("a").is_none(), "its share is in use");
        let other = shares.begin("b");
        assert!(other.is_some());
        assert!(shares.begin("c").is_none(), "all are in use");
        drop(held);
        assert!(shares.begin("a").is_some() && shares.begin("c").is_some());
        drop(other);
        assert!(shares.running.lock().unwrap().is_empty(), "keys are forgotten");
    }

    #[test]
    fn those_who_come_later_find_something_left() {
        let shares = Shares::new(16, 48);
        let keys = ["a", "b", "c", "d", "e", "f", "g"];
        let held = keys.map(|key| std::iter::from_fn(|| shares.begin(key)).collect::<Vec<_>>());
        assert_eq!(held.each_ref().map(Vec::len), [16, 16, 8, 4, 2, 1, 1]);
        assert!(shares.begin("h").is_none(), "all are in use");
    }
}
