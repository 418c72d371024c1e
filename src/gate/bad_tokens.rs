//! Slows an address that tries tokens.
//!
//! A token with a right checksum that this node does not remember costs a look-up in the tenant's database, whoever
//! invents it, and an account's budget is not spent by tokens that are none of its own. So each address (IPv6: each /64)
//! has a bucket of attempts: one that fails is taken out of it, and while it is empty, whatever would be refused or looked
//! up gets 429 with `Retry-After`, without a look-up. All bad tokens still look the same, and a good one is told by 200 as
//! ever.
//!
//! Callers behind the same address as a flood (an office, a cloud's gateway) must not pay for it. A token that was good
//! on this node within the last day is looked up whatever its address did: a flood can't invent such tokens. What is left
//! is a token that this node meets for the first time while its address floods: its caller waits as `Retry-After` says.
//! Delaying bad answers instead would hold a request's place and memory for each of them.
//!
//! Buckets are kept for addresses that spoke badly within the last seconds, at most [`ADDRESSES`] of them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moka::sync::Cache;

use super::network::network_of;
use crate::error::Refusal;
use crate::metrics::GateMetrics;
use crate::tenant::Generation;
use crate::tenant::token::TokenDigest;

/// How many addresses have a bucket at once. A flood from more addresses than this is not slowed by this means.
///
/// Larger: about 100 bytes each. Smaller: fewer addresses hide one another.
const ADDRESSES: usize = 65_536;

/// How long a token is exempt after it was found good, and how many are.
///
/// Longer and more: a revoked token is looked up for longer. Shorter and fewer: a caller that calls once a day waits with
/// the flood that comes from its address.
const PROVEN_FOR: Duration = Duration::from_secs(24 * 60 * 60);
const PROVEN: u64 = 100_000;

/// The attempts of every address.
#[derive(Debug)]
pub struct BadTokens {
    state: Mutex<State>,
    /// How long one attempt takes to come back.
    interval: Duration,
    burst: u32,
    proven: Cache<Key, ()>,
    metrics: GateMetrics,
}

/// A token at a generation of a tenant.
type Key = (Generation, TokenDigest);

#[derive(Debug, Default)]
struct State {
    /// When each address has its whole burst again: the one number that a bucket needs.
    full_at: HashMap<IpAddr, Instant>,
    /// The tokens that are looked up now. A caller whose first requests come all at once tries one token, not hundreds.
    trying: HashSet<Key>,
}

/// A token that is looked up; dropping this ends that.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    of: &'a BadTokens,
    key: Key,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It was good lately, and takes nothing from its address.
    Proven,
    /// It was taken from the address' bucket.
    Paid(IpAddr),
    /// Another request pays for the same token, or nobody knows which address would.
    Free,
}

impl BadTokens {
    /// Full buckets of `burst` attempts, of which `rate` come back a second.
    #[must_use]
    pub fn new(burst: u32, rate: u32, metrics: GateMetrics) -> Self {
        Self {
            state: Mutex::default(),
            interval: Duration::from_secs(1) / rate,
            burst,
            proven: Cache::builder().max_capacity(PROVEN).time_to_live(PROVEN_FOR).build(),
            metrics,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an attempt out of an address' bucket, for what can't be a token.
    pub(super) fn take(&self, address: Option<IpAddr>) -> Result<(), Refusal> {
        address.map_or(Ok(()), |address| self.take_at(&mut self.state(), address, Instant::now()))
    }

    /// Begins the look-up of a token, at the cost of an attempt. It is taken before and not after, so that many at once
    /// get no more look-ups than one after the other.
    pub(super) fn attempt(
        &self,
        address: Option<IpAddr>,
        tenant: Generation,
        token: TokenDigest,
    ) -> Result<Attempt<'_>, Refusal> {
        let key = (tenant, token);
        let standing = match address {
            None => Standing::Free,
            Some(_) if self.proven.contains_key(&key) => Standing::Proven,
            Some(address) => {
                let mut state = self.state();
                if state.trying.contains(&key) {
                    Standing::Free
                } else {
                    self.take_at(&mut state, address, Instant::now())?;
                    state.trying.insert(key);
                    Standing::Paid(address)
                }
            }
        };
        Ok(Attempt { of: self, key, standing })
    }

    fn take_at(&self, state: &mut State, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let (address, full_at) = (network_of(address), &mut state.full_at);
        if full_at.len() >= ADDRESSES {
            full_at.retain(|_, full_at| *full_at > now);
        }
        let known = full_at.get(&address).copied().unwrap_or(now).max(now);
        let (taken, empty) = (known + self.interval, now + self.interval * self.burst);
        if taken > empty {
            self.metrics.refused.with_label_values(&["bad_tokens"]).inc();
            return Err(Refusal::TooManyBadTokens { wait: taken - empty });
        }
        if full_at.len() < ADDRESSES {
            full_at.insert(address, taken);
        }
        Ok(())
    }
}

impl Attempt<'_> {
    /// Notes that the token is good: the attempt is put back.
    pub(super) fn was_good(&self) {
        self.put_back();
        if let Standing::Paid(_) = self.standing {
            self.of.proven.insert(self.key, ());
        }
    }

    /// Notes that the token is none, or no longer.
    pub(super) fn was_bad(&self) {
        if self.standing == Standing::Proven {
            self.of.proven.invalidate(&self.key);
        }
    }

    /// Puts the attempt back, for a token of which nothing could be learnt.
    pub(super) fn put_back(&self) {
        if let Standing::Paid(address) = self.standing
            && let Some(full_at) = self.of.state().full_at.get_mut(&network_of(address))
        {
            *full_at = full_at.checked_sub(self.of.interval).unwrap_or(*full_at);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Standing::Paid(_) = self.standing {
            self.of.state().trying.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::tenant::token::PresentedToken;

    fn address(last: u32) -> IpAddr {
        IpAddr::from(last.to_be_bytes())
    }

    fn attempts(burst: u32, rate: u32) -> BadTokens {
        BadTokens::new(burst, rate, Metrics::default().gate)
    }

    fn wait(outcome: Result<(), Refusal>) -> Option<u64> {
        match outcome {
            Ok(()) => None,
            Err(Refusal::TooManyBadTokens { wait }) => Some(u64::try_from(wait.as_millis()).unwrap()),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn an_address_has_its_burst_and_then_its_rate() {
        let attempts = attempts(3, 2);
        let now = Instant::now();
        let take_as = |last, after: u64| {
            wait(attempts.take_at(&mut attempts.state(), address(last), now + Duration::from_millis(after)))
        };
        assert_eq!([0; 4].map(|after| take_as(1, after)), [None, None, None, Some(500)]);
        assert_eq!([400, 500, 500].map(|after| take_as(1, after)), [Some(100), None, Some(500)]);
        assert_eq!([9000; 4].map(|after| take_as(1, after)), [None, None, None, Some(500)], "no more than the burst");
        assert_eq!(take_as(2, 0), None, "another address has its own");
    }

    #[test]
    fn a_good_token_costs_nothing_and_is_exempt_from_then_on() {
        let attempts = attempts(1, 1);
        let [acme, globex] = [Generation::begin(), Generation::begin()];
        let (good, bad) = (PresentedToken::generate().digest(), PresentedToken::generate().digest());
        for _ in 0..3 {
            attempts.attempt(Some(address(1)), acme, PresentedToken::generate().digest()).unwrap().put_back();
            attempts.attempt(Some(address(1)), acme, good).unwrap().was_good();
        }
        attempts.attempt(Some(address(1)), acme, bad).unwrap().was_bad();
        attempts.attempt(Some(address(1)), acme, bad).unwrap_err();
        attempts.attempt(Some(address(1)), acme, good).unwrap().was_good();
        attempts.attempt(Some(address(1)), globex, good).unwrap_err();
        attempts.attempt(Some(address(1)), acme, good).unwrap().was_bad();
        attempts.attempt(Some(address(1)), acme, good).unwrap_err();
    }

    #[test]
    fn one_token_that_is_tried_by_many_requests_at_once_is_one_attempt() {
        let attempts = attempts(1, 1);
        let (acme, token) = (Generation::begin(), PresentedToken::generate().digest());
        let at_once: Vec<_> = (0..100).map(|_| attempts.attempt(Some(address(1)), acme, token).unwrap()).collect();
        attempts.attempt(Some(address(1)), acme, PresentedToken::generate().digest()).unwrap_err();
        drop(at_once);
        attempts.attempt(Some(address(1)), acme, token).unwrap_err();
    }

    #[test]
    fn where_callers_have_no_addresses_none_is_limited() {
        let (attempts, acme) = (attempts(1, 1), Generation::begin());
        for _ in 0..10 {
            attempts.attempt(None, acme, PresentedToken::generate().digest()).unwrap().was_bad();
            attempts.take(None).unwrap();
        }
    }

    #[test]
    fn no_more_addresses_are_remembered_than_there_is_room_for() {
        let attempts = attempts(1, 1);
        let (mut state, now) = (State::default(), Instant::now());
        for last in 0..u32::try_from(ADDRESSES).unwrap() + 10 {
            attempts.take_at(&mut state, address(last), now).unwrap();
        }
        assert_eq!(state.full_at.len(), ADDRESSES);
        attempts.take_at(&mut state, address(0), now + Duration::from_secs(2)).unwrap();
        assert_eq!(state.full_at.len(), 1, "those that have their burst again are forgotten");
    }
}
