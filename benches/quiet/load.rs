//! Sends calls: as a Poisson process over many connections, or one after another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::{LocalSet, spawn_local};

use crate::caller::Caller;
use crate::calls::{Accounts, Call};
use crate::world::World;

/// As many connections as calls may be under way at once.
///
/// Larger: a node that falls behind has more to do at once. Smaller: calls wait for a connection, which counts as their
/// time.
const CONNECTIONS: usize = 256;

/// The same calls in each run.
const SEED: u64 = 41;

pub(crate) struct Load {
    /// Calls a second.
    pub(crate) rate: f64,
    pub(crate) length: Duration,
}

/// What became of the calls.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// From the instant when each was due to its answer, in milliseconds; sorted.
    pub(crate) times: Vec<f64>,
    pub(crate) statuses: BTreeMap<u16, usize>,
}

impl Outcome {
    pub(crate) fn percentile(&self, part: f64) -> f64 {
        let last = self.times.len().saturating_sub(1);
        self.times.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
    }

    fn note(&mut self, due: Instant, status: u16) {
        self.times.push(due.elapsed().as_secs_f64() * 1e3);
        *self.statuses.entry(status).or_default() += 1;
    }
}

/// Runs the mix.
pub(crate) async fn run(address: SocketAddr, world: &World, load: &Load) -> anyhow::Result<Outcome> {
    let (calls, outcome) = (Rc::new(RefCell::new(arrivals(world, load))), Rc::<RefCell<Outcome>>::default());
    let began = Instant::now();
    let callers = async {
        let callers: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (calls, outcome) = (Rc::clone(&calls), Rc::clone(&outcome));
                spawn_local(async move {
                    let mut caller = Caller::connect(address).await?;
                    loop {
                        let Some((after, request)) = calls.borrow_mut().next() else { return anyhow::Ok(()) };
                        let due = began + after;
                        tokio::time::sleep_until(due.into()).await;
                        let status = caller.call(&request).await?;
                        outcome.borrow_mut().note(due, status);
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await??;
        }
        anyhow::Ok(())
    };
    LocalSet::new().run_until(callers).await?;
    let mut outcome = outcome.take();
    outcome.times.sort_by(f64::total_cmp);
    Ok(outcome)
}

/// When each call is due after the beginning, and its request.
fn arrivals(world: &World, load: &Load) -> impl Iterator<Item = (Duration, String)> + use<> {
    let (mut random, mut accounts) = (SmallRng::seed_from_u64(SEED), Accounts::new(world.accounts));
    let (token, &Load { rate, length }) = (world.token.clone(), load);
    let (began, mut after) = (Instant::now(), Duration::ZERO);
    std::iter::from_fn(move || {
        let pause = -random.random_range(f64::MIN_POSITIVE..1.0).ln() / rate;
        after += Duration::from_secs_f64(pause);
        let account = accounts.choose(&mut random, began + after);
        let request = Call::of_the_mix(&mut random).request(&token, account, &mut random);
        (after < length).then_some((after, request))
    })
}

/// Calls every account once, in the order in which they are called seldom.
pub(crate) async fn call_each(address: SocketAddr, world: &World) -> anyhow::Result<()> {
    calls(address, world, (0..world.accounts).rev().map(|account| (account, Call::Forms))).await
}

/// Lists the forms of accounts in turn, none twice in a row.
pub(crate) async fn forms_in_turn(address: SocketAddr, world: &World, count: usize) -> anyhow::Result<()> {
    calls(address, world, (0..count).map(|n| (n % world.accounts, Call::Forms))).await
}

/// Every call of the mix for each account of a range.
pub(crate) async fn every_call_of(address: SocketAddr, world: &World, accounts: Range<usize>) -> anyhow::Result<()> {
    calls(address, world, accounts.flat_map(|account| Call::ALL.map(|call| (account, call)))).await
}

async fn calls(address: SocketAddr, world: &World, calls: impl Iterator<Item = (usize, Call)>) -> anyhow::Result<()> {
    let (mut caller, mut random) = (Caller::connect(address).await?, SmallRng::seed_from_u64(SEED));
    for (account, call) in calls {
        let status = caller.call(&call.request(&world.token, account, &mut random)).await?;
        anyhow::ensure!(matches!(status, 200 | 201), "{call:?} of account {account}: {status}");
    }
    Ok(())
}
