//! What very many tenants cost a node, each with a certificate of its own: its start, its memory, a reload, a handshake.
//!
//! `cargo bench --bench tenants -- 10000 100000` takes the numbers of tenants; 1 and 10,000 is what it takes else. The node
//! is the real program; its callers are in this process and share the machine with it. `-- registry 100000` has them in a
//! registry, `-- domains 10000` hosts whose certificates were obtained; with `postgres` the registry is on Postgres.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod caller;
#[path = "../support/certified.rs"]
mod certified;
mod domains;
mod node;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/postgres.rs"]
mod postgres_server;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/process.rs"]
mod process;
mod registry;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caller::Caller;
use certified::Certified;
use node::Node;
use registry::RegistryKind;

/// How long handshakes are counted at a time, and how often both kinds take turns.
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 5;

/// Callers that go on while the node reloads.
const MEANWHILE: usize = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let (in_registry, are_domains) = (has("registry"), has("domains"));
    let kind = if has("postgres") { RegistryKind::Postgres } else { RegistryKind::Sqlite };
    for tenants in if numbers.is_empty() { vec![1, 10_000] } else { numbers } {
        if are_domains {
            domains::measure(tenants, kind).await?;
        } else if in_registry {
            registry::measure(tenants, kind).await?;
        } else {
            measure(tenants).await?;
        }
    }
    Ok(())
}

async fn measure(tenants: usize) -> anyhow::Result<()> {
    let world = Arc::new(Certified::new(tenants)?);
    println!("\n{tenants} tenants, {} KiB of configuration", world.config_size()? / 1024);

    let caller = Arc::new(Caller::new(&world)?);
    let mut node = Node::start(&world)?;
    let began = Instant::now();
    while caller.ask(&world.host(tenants / 2)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("  start to first answer   {:>9.1?}", began.elapsed());
    for n in 0..tenants.min(100) {
        caller.ask(&world.host(n * tenants / tenants.min(100))).await?;
    }
    println!("  resident, 100 asked     {:>6.1} MB, at most {:.1} MB", node.memory("VmRSS:")?, node.memory("VmHWM:")?);

    // The inspection is done when its processor time stands still.
    let settled = node.settle().await?;
    println!("  processor until quiet   {settled:>9.1?}");
    println!("  resident, inspected     {:>6.1} MB", node.memory("VmRSS:")?);
    for (change, what) in [(0, "nothing new"), (1, "one tenant more"), (2, "one name changed")] {
        reload(&mut node, &world, &caller, change, what).await?;
    }
    handshakes(&node, &world, &caller).await
}

async fn reload(
    node: &mut Node,
    world: &Arc<Certified>,
    caller: &Arc<Caller>,
    change: usize,
    what: &str,
) -> anyhow::Result<()> {
    let done = Arc::new(AtomicBool::new(false));
    let failed = Arc::new(AtomicU64::new(0));
    let ask = |n: usize| {
        let (done, failed, caller) = (Arc::clone(&done), Arc::clone(&failed), Arc::clone(caller));
        let host = world.host(n % world.tenants);
        tokio::spawn(async move {
            let (mut slowest, mut asked) = (Duration::ZERO, 0_u64);
            let mut open = caller.connect(&host).await.ok();
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                // Half of them ask on the connection they have, half with a handshake each.
                let answered = match &mut open {
                    Some(stream) if n.is_multiple_of(2) => caller.exchange(stream, &host).await,
                    _ => caller.ask(&host).await,
                };
                failed.fetch_add(u64::from(answered.is_err()), Ordering::Relaxed);
                (slowest, asked) = (slowest.max(began.elapsed()), asked + 1);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (slowest, asked)
        })
    };
    let callers: Vec<_> = (0..MEANWHILE).map(ask).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, processor) = (node.reloads().await?, node.processor()?);
    world.change(change)?;
    let began = Instant::now();
    node.hang_up()?;
    while node.reloads().await? == before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (took, spent) = (began.elapsed(), node.processor()? - processor);
    tokio::time::sleep(Duration::from_millis(300)).await;
    done.store(true, Ordering::Relaxed);
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    for caller in callers {
        let (slow, some) = caller.await?;
        (slowest, asked) = (slowest.max(slow), asked + some);
    }
    let failed = failed.load(Ordering::Relaxed);
    println!(
        "  reload, {what:<16}{took:>9.1?}, processor {spent:.0?} with the callers'; {asked} requests meanwhile, {failed} failed, slowest {slowest:.1?}; resident {:.1} MB",
        node.memory("VmRSS:")?
    );
    // The folder's own watch sees the change too.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

async fn handshakes(node: &Node, world: &Arc<Certified>, caller: &Arc<Caller>) -> anyhow::Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (among, rates) in [1, world.tenants].into_iter().zip(&mut rates) {
            rates.push(caller::handshakes_a_second(caller, world, among, TURN).await?);
        }
    }
    let [one, all] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("  handshakes/s            {one:.0} to one host, {all:.0} to all in turn: {:.2}", all / one);
    let (cached, bytes) =
        (node.metric("formgate_certificates_cached").await?, node.metric("formgate_certificate_cache_bytes").await?);
    println!(
        "  cached                  {cached} certificates, weighed {:.1} MB; resident {:.1} MB",
        bytes / 1e6,
        node.memory("VmRSS:")?
    );
    Ok(())
}
