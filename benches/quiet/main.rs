//! Very many accounts that each call seldom: what an answer costs, and how long it takes.
//!
//! `cargo bench --bench quiet -- --accounts 10000 --rate 500 --seconds 60` takes those numbers; they are also what it
//! takes without any. All accounts are copies of one migrated file with rows. The node is the real program; calls are
//! distributed as by Zipf and cut to the budget of 60 a minute, and arrive as a Poisson process. Each is timed from the
//! instant at which it was due, so that a node that falls behind shows it.
//!
//! Parts, in turn: `postgres` with a database or a schema each, `pgbouncer` between the node and Postgres, `fastify` as a
//! peer, `load` with all files open and with a fifth of them, `closed` against a bare loop of the same library, `memory` of
//! open files, and `sync`, in which each sync of the disk takes 100 ms. Naming parts runs only those. `period` runs only if
//! it is named: a load for more than an hour, after which the times of last use of all accounts are due to be written.
//!
//! `--before PROGRAM` names the program of another version. `closed` and `memory` then compare the two, in turn, each with
//! files that it made itself.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod accounts;
mod bare;
#[path = "../support/caller.rs"]
mod caller;
mod calls;
mod fastify;
mod load;
#[path = "../support/node.rs"]
mod node;
mod peers;
mod pgbouncer;
mod postgres;
#[path = "../support/postgres.rs"]
mod postgres_server;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/process.rs"]
mod process;
mod slow_sync;
#[path = "../support/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use load::{Load, Outcome};
use node::{Measured, Node};
use world::World;

const PARTS: [&str; 8] = ["postgres", "pgbouncer", "fastify", "load", "closed", "memory", "sync", PERIOD];

/// The parts that need SQLite files.
const ON_SQLITE: [&str; 5] = ["load", "closed", "memory", "sync", PERIOD];

/// The part that takes longer than all others.
const PERIOD: &str = "period";

/// What the command line asks for.
struct Arguments {
    accounts: usize,
    rate: f64,
    length: Duration,
    parts: Vec<String>,
    before: Option<PathBuf>,
}

impl Arguments {
    fn read() -> anyhow::Result<Self> {
        let mut read =
            Self { accounts: 10_000, rate: 500.0, length: Duration::from_secs(60), parts: Vec::new(), before: None };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} takes a value"));
            match argument.as_str() {
                "--before" => read.before = Some(value()?.into()),
                "--accounts" => read.accounts = value()?.parse()?,
                "--rate" => read.rate = value()?.parse()?,
                "--seconds" => read.length = Duration::from_secs_f64(value()?.parse()?),
                part if PARTS.contains(&part) => read.parts.push(argument),
                _ => {
                    anyhow::bail!("{argument}: expected --accounts, --rate, --seconds, --before, {}", PARTS.join(", "))
                }
            }
        }
        Ok(read)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() && part != PERIOD || self.parts.iter().any(|named| named == part)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    if arguments.has("postgres") {
        postgres::measure(arguments.accounts).await?;
    }
    if ["pgbouncer", "fastify"].iter().any(|part| arguments.has(part)) {
        peers::measure(&arguments).await?;
    }
    if !ON_SQLITE.iter().any(|part| arguments.has(part)) {
        return Ok(());
    }
    let world = World::of_files(arguments.accounts, Path::new(world::PROGRAM))?;
    let before = arguments.before.as_ref().map(|program| World::of_files(arguments.accounts, program)).transpose()?;
    let versions: Vec<&World> = std::iter::once(&world).chain(&before).collect();
    println!(
        "{} accounts, {} KiB each, {:.0} calls a second for {:?}; load of the machine {}",
        arguments.accounts,
        world.file_size()? / 1024,
        arguments.rate,
        arguments.length,
        process::load()
    );
    if arguments.has("load") {
        let all = load_with(&world, &arguments, arguments.accounts, "all open").await?;
        let fifth = load_with(&world, &arguments, arguments.accounts / 5, "a fifth open").await?;
        let ratio = |of: fn(&Outcome) -> f64| of(&fifth) / of(&all);
        println!("  p99 with a fifth open / all open: {:.2}", ratio(|outcome| outcome.percentile(0.99)));
    }
    if arguments.has("closed") {
        closed(&versions).await?;
    }
    if arguments.has("memory") {
        for version in &versions {
            memory(version).await?;
        }
    }
    if arguments.has("sync") {
        slow_sync::measure(&world).await?;
    }
    if arguments.has(PERIOD) {
        period(&world, arguments.rate).await?;
    }
    Ok(())
}

/// The mix of calls with a fifth of the files open, before and after the times of last use become due. They are written once an
/// hour, and each account is called within the first minute.
async fn period(world: &World, rate: f64) -> anyhow::Result<()> {
    world.configure(world.accounts / 5)?;
    let node = Node::start(world, &[])?;
    load::call_each(node.address, world).await?;
    for (what, minutes) in [("at first", 10), ("then", 49), ("when times are due", 10)] {
        let length = Duration::from_secs(60 * minutes);
        let before = node.measure().await?;
        let outcome = load::run(node.address, world, &Load { rate, length }).await?;
        let after = node.measure().await?;
        println!("  {what}, {minutes} minutes: {}", figures(&before, &after, &outcome, length));
    }
    Ok(())
}

/// The mix of calls, with at most `open` files open at once.
async fn load_with(world: &World, arguments: &Arguments, open: usize, what: &str) -> anyhow::Result<Outcome> {
    world.configure(open)?;
    let node = Node::start(world, &[])?;
    let load = Load { rate: arguments.rate, length: arguments.length };
    // Each account is called once, so that all that can be open are.
    load::call_each(node.address, world).await?;
    let before = node.measure().await?;
    let outcome = load::run(node.address, world, &load).await?;
    let after = node.measure().await?;
    println!("  {what}: {}", figures(&before, &after, &outcome, arguments.length));
    Ok(outcome)
}

fn figures(before: &Measured, after: &Measured, outcome: &Outcome, length: Duration) -> String {
    let answers = outcome.times.len() as f64;
    format!(
        "own CPU {:.3} ms an answer; {:.1} connections opened a second; p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms; \
         answers {:?}; {:.0} MB, {} threads, {} descriptors",
        (after.cpu - before.cpu).as_secs_f64() * 1e3 / answers,
        (after.opened - before.opened) / length.as_secs_f64(),
        outcome.percentile(0.5),
        outcome.percentile(0.99),
        outcome.percentile(0.999),
        outcome.statuses,
        after.resident,
        after.threads,
        after.files
    )
}

/// Requests of accounts whose files are closed, against opening, asking and closing by the library; of each version.
async fn closed(versions: &[&World]) -> anyhow::Result<()> {
    /// How often both take turns, since a shared machine is not steady.
    const TURNS: usize = 5;
    const CALLS: usize = 500;
    let mut turns = Vec::new();
    for world in versions {
        world.configure(accounts::FEWEST_OPEN)?;
        let node = Node::start(world, &[])?;
        load::call_each(node.address, world).await?;
        turns.push((world, node, bare::Bare::build(world)?, [Vec::new(), Vec::new()]));
    }
    for _ in 0..TURNS {
        for (world, node, bare, [requests, loops]) in &mut turns {
            let before = node.measure().await?;
            load::forms_in_turn(node.address, world, CALLS).await?;
            let after = node.measure().await?;
            anyhow::ensure!(after.opened - before.opened > 0.9 * CALLS as f64, "files were open");
            requests.push((after.cpu - before.cpu).as_secs_f64() * 1e3 / CALLS as f64);
            loops.push(bare.run(CALLS)?);
        }
    }
    let mut loops_of_all = Vec::new();
    for (world, .., times) in turns {
        let [request, bare] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "  closed: a request {request:.2} ms of CPU, the bare loop {bare:.2} ms: {:.2} times; {}",
            request / bare,
            world.program.display()
        );
        loops_of_all.push(bare);
    }
    if let [now, before] = loops_of_all[..] {
        println!("  closed: the bare loop now / before: {:.2}", now / before);
    }
    Ok(())
}

/// What open files take, after each account was called with every call of the mix.
async fn memory(world: &World) -> anyhow::Result<()> {
    let accounts = world.accounts.min(1000);
    world.configure(world.accounts)?;
    let node = Node::start(world, &[])?;
    // What the node takes for its first requests is not an account's.
    load::every_call_of(node.address, world, 0..accounts / 10).await?;
    let before = node.measure().await?;
    load::every_call_of(node.address, world, accounts / 10..accounts).await?;
    let after = node.measure().await?;
    let open = after.open - before.open;
    println!(
        "  memory: {open} more open connections, {:.0} KiB, {:.1} descriptors and {:.1} threads each",
        (after.resident - before.resident) * 1e6 / 1024.0 / open,
        (after.files as f64 - before.files as f64) / open,
        (after.threads as f64 - before.threads as f64) / open
    );
    Ok(())
}
