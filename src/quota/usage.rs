//! Which tokens used a window: how many of its requests each token made.

use std::sync::Arc;

use smallvec::SmallVec;

/// The shares of an account's tokens in its window, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage(Shares);

/// Shares of tokens, stored inline for up to two: most accounts use no more.
pub(super) type Shares = SmallVec<[Share; 2]>;

/// One token's share of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The token's number, as the log holds it ([`LogEntry::short`]).
    pub token: u32,
    /// Requests in the window.
    pub requests: u32,
}

/// One token's share of a budget, as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NamedShare {
    /// The token's name.
    pub token: Arc<str>,
    /// Requests in the current window.
    pub requests: u32,
}

impl Usage {
    /// Counts a window's requests by token. Most accounts have few tokens, so requests of one token form long runs.
    pub(super) fn of(tokens: impl IntoIterator<Item = u32>) -> Self {
        let mut runs: SmallVec<[(u32, i32); 2]> = SmallVec::new();
        tokens.into_iter().for_each(|token| match runs.last_mut() {
            Some((last, requests)) if *last == token => *requests += 1,
            _ => runs.push((token, 1)),
        });
        Self::added_up(runs)
    }

    /// Adds up numbers of requests by token. Numbers may be negative, sums are not.
    pub(super) fn added_up(shares: impl IntoIterator<Item = (u32, i32)>) -> Self {
        let mut shares: SmallVec<[(u32, i32); 4]> = shares.into_iter().collect();
        shares.sort_unstable_by_key(|(token, _)| *token);
        shares.dedup_by(|(token, requests), (before, sum)| {
            let is_same = token == before;
            *sum = sum.saturating_add(if is_same { *requests } else { 0 });
            is_same
        });
        let positive = |(token, requests)| Some(Share { token, requests: u32::try_from(requests).ok()? });
        Self::counted(shares.into_iter().filter_map(positive).filter(|share| share.requests > 0).collect())
    }

    /// Shares that are already counted, sorted.
    pub(super) fn counted(mut shares: Shares) -> Self {
        shares.sort_unstable_by_key(|share| (std::cmp::Reverse(share.requests), share.token));
        Self(shares)
    }

    /// The shares, largest first.
    pub fn shares(&self) -> impl Iterator<Item = Share> {
        self.0.iter().copied()
    }
}

/// Bytes of one entry in the shared log.
pub(super) const ENTRY: usize = 8;

/// What a window's log holds of a request.
pub struct LogEntry;

impl LogEntry {
    /// A token's number in 4 bytes. Two tokens of an account collide only after 2^32 tokens, and would then share a
    /// row in a report.
    #[must_use]
    pub fn short(token: i64) -> u32 {
        u32::try_from(token.rem_euclid(1 << 32)).expect("less than 2^32")
    }

    /// The token of an entry in the shared log.
    pub(super) fn token_of(entry: [u8; ENTRY]) -> u32 {
        let [_, _, _, _, token @ ..] = entry;
        u32::from_be_bytes(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_comes_first() {
        let usage = Usage::of([7, 3, 7, 9, 7, 3]);
        let shares: Vec<_> = usage.shares().map(|share| (share.token, share.requests)).collect();
        assert_eq!(shares, [(7, 3), (3, 2), (9, 1)]);
    }
}
