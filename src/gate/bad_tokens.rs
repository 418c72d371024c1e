//! Limits addresses that try tokens.
//!
//! A token with a valid checksum that is not cached on this node costs a look-up in the tenant's database, and
//! invented tokens don't spend any account's budget. So each address (IPv6: each /64) has a token bucket of attempts.
//! A failed attempt is taken from it. While it is empty, any request that would be refused or looked up gets 429 with
//! `Retry-After`, without a look-up. All bad tokens get the same response; a good one is not affected.
//!
//! Callers behind the same address as a flood (an office, a cloud's NAT gateway) must not suffer for it. A token that
//! was valid on this node within the last day is always looked up: a flood can't invent such
//! tokens. That leaves only a token's first use on this node, while its address floods: its caller waits as
//! `Retry-After` says. Delaying the responses to bad tokens instead would hold a permit and memory for each.
//!
//! Cookies and links of the administration area are looked up in the same way, and count in the same buckets.
//!
//! Buckets are kept for addresses with failed attempts within the last seconds, at most [`MAX_ADDRESSES`].

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

/// How many addresses have a bucket at once. A flood from more addresses is not limited here.
///
/// Larger: about 100 bytes each. Smaller: fewer addresses are enough to evade the limit.
const MAX_ADDRESSES: usize = 65_536;

/// How long a token is exempt after it was valid.
///
/// Larger: a revoked token is looked up for longer. Smaller: a caller with one request a day has to wait while
/// its address floods.
const PROVEN_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How many tokens are exempt at once.
///
/// Larger: more memory. Smaller: on a gateway with more tokens, some callers wait while their address floods.
const MAX_PROVEN: u64 = 100_000;

/// The attempts of every address.
#[derive(Debug)]
pub struct BadTokens {
    state: Mutex<BadTokensState>,
    /// How long one attempt takes to be refilled.
    interval: Duration,
    burst: u32,
    proven: Cache<Key, ()>,
    metrics: GateMetrics,
}

/// A token, and the generation of its tenant.
type Key = (Generation, TokenDigest);

#[derive(Debug, Default)]
struct BadTokensState {
    /// When each address's bucket will be full: the only number that a bucket needs.
    full_at: HashMap<IpAddr, Instant>,
    /// The tokens being looked up now. A client whose first requests come all at once tries one token, not hundreds.
    trying: HashSet<Key>,
}

/// A look-up of a token. Dropping it ends the attempt.
#[derive(Debug)]
pub struct Attempt<'a> {
    of: &'a BadTokens,
    key: Key,
    cost: AttemptCost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptCost {
    /// It was valid recently, and costs this address nothing.
    Proven(IpAddr),
    /// It was taken from the address's bucket.
    Paid(IpAddr),
    /// Another request pays for the same token, or the address is unknown.
    Free,
}

impl BadTokens {
    /// Full buckets of `burst` attempts, refilled at `rate` per second.
    #[must_use]
    pub fn new(burst: u32, rate: u32, metrics: GateMetrics) -> Self {
        Self {
            state: Mutex::default(),
            interval: Duration::from_secs(1) / rate,
            burst,
            proven: Cache::builder().max_capacity(MAX_PROVEN).time_to_live(PROVEN_TIME).build(),
            metrics,
        }
    }

    fn state(&self) -> MutexGuard<'_, BadTokensState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an attempt from an address's bucket, for a header that can't be a token.
    pub(super) fn take(&self, address: Option<IpAddr>) -> Result<(), Refusal> {
        address.map_or(Ok(()), |address| self.take_at(&mut self.state(), address, Instant::now()))
    }

    /// Begins the look-up of a token, and takes an attempt for it. It is taken before the look-up, so that concurrent
    /// requests get no more look-ups than consecutive ones.
    pub(super) fn attempt(
        &self,
        address: Option<IpAddr>,
        tenant: Generation,
        token: TokenDigest,
    ) -> Result<Attempt<'_>, Refusal> {
        match address {
            Some(address) if self.proven.contains_key(&(tenant, token)) => {
                Ok(Attempt { of: self, key: (tenant, token), cost: AttemptCost::Proven(address) })
            }
            address => self.attempt_unproven(address, tenant, token),
        }
    }

    /// The same for a token that is known to be used from a wrong network: that it is valid elsewhere doesn't exempt it.
    pub(super) fn attempt_unproven(
        &self,
        address: Option<IpAddr>,
        tenant: Generation,
        token: TokenDigest,
    ) -> Result<Attempt<'_>, Refusal> {
        let key = (tenant, token);
        let mut cost = AttemptCost::Free;
        if let Some(address) = address {
            let mut state = self.state();
            if !state.trying.contains(&key) {
                self.take_at(&mut state, address, Instant::now())?;
                state.trying.insert(key);
                cost = AttemptCost::Paid(address);
            }
        }
        Ok(Attempt { of: self, key, cost })
    }

    fn take_at(&self, state: &mut BadTokensState, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let (address, full_at) = (network_of(address), &mut state.full_at);
        if full_at.len() >= MAX_ADDRESSES {
            full_at.retain(|_, full_at| *full_at > now);
        }
        let known = full_at.get(&address).copied().unwrap_or(now).max(now);
        let (taken, empty) = (known + self.interval, now + self.interval * self.burst);
        if taken > empty {
            self.metrics.refused.with_label_values(&["bad_tokens"]).inc();
            return Err(Refusal::TooManyBadTokens { wait: taken - empty });
        }
        if full_at.len() < MAX_ADDRESSES {
            full_at.insert(address, taken);
        }
        Ok(())
    }
}

impl Attempt<'_> {
    /// The token is valid: the attempt is put back.
    pub fn succeeded(&self) {
        self.put_back();
        if let AttemptCost::Paid(_) = self.cost {
            self.of.proven.insert(self.key, ());
        }
    }

    /// The token is unknown or revoked.
    pub fn failed(&self) {
        if let AttemptCost::Proven(_) = self.cost {
            self.of.proven.invalidate(&self.key);
        }
    }

    /// The token is used from a wrong network, and stays exempt elsewhere.
    pub(super) fn misplaced(&self) -> Result<(), Refusal> {
        if let AttemptCost::Proven(address) = self.cost { self.of.take(Some(address)) } else { Ok(()) }
    }

    /// Puts the attempt back if the look-up failed.
    pub fn put_back(&self) {
        if let AttemptCost::Paid(address) = self.cost
            && let Some(full_at) = self.of.state().full_at.get_mut(&network_of(address))
        {
            *full_at = full_at.checked_sub(self.of.interval).unwrap_or(*full_at);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let AttemptCost::Paid(_) = self.cost {
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
        assert_eq!(take_as(2, 0), None, "another address has its own bucket");
    }

    #[test]
    fn a_good_token_costs_nothing_and_is_exempt_from_then_on() {
        let attempts = attempts(1, 1);
        let [acme, globex] = [Generation::begin(), Generation::begin()];
        let (good, bad) = (PresentedToken::generate().digest(), PresentedToken::generate().digest());
        for _ in 0..3 {
            attempts.attempt(Some(address(1)), acme, PresentedToken::generate().digest()).unwrap().put_back();
            attempts.attempt(Some(address(1)), acme, good).unwrap().succeeded();
        }
        attempts.attempt(Some(address(1)), acme, bad).unwrap().failed();
        attempts.attempt(Some(address(1)), acme, bad).unwrap_err();
        attempts.attempt(Some(address(1)), acme, good).unwrap().succeeded();
        attempts.attempt(Some(address(1)), globex, good).unwrap_err();
        attempts.attempt(Some(address(1)), acme, good).unwrap().failed();
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
    fn clients_without_an_address_are_not_limited() {
        let (attempts, acme) = (attempts(1, 1), Generation::begin());
        for _ in 0..10 {
            attempts.attempt(None, acme, PresentedToken::generate().digest()).unwrap().failed();
            attempts.take(None).unwrap();
        }
    }

    #[test]
    fn no_more_addresses_are_remembered_than_there_is_room_for() {
        let attempts = attempts(1, 1);
        let (mut state, now) = (BadTokensState::default(), Instant::now());
        for last in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 10 {
            attempts.take_at(&mut state, address(last), now).unwrap();
        }
        assert_eq!(state.full_at.len(), MAX_ADDRESSES);
        attempts.take_at(&mut state, address(0), now + Duration::from_secs(2)).unwrap();
        assert_eq!(state.full_at.len(), 1, "full buckets are forgotten");
    }
}
