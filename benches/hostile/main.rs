//! What each kind of hostile caller costs the others: the p99 of normal traffic without and with each flood in turn.
//!
//! The gateway is the real program with its default limits, on SQLite. Hostile callers with a token have another tenant's. Normal traffic comes from 127.0.0.1 at a fixed
//! rate over kept connections of both protocols; an answer that is late counts from when its request was due. Floods come
//! from 127.0.0.2 as quickly as one thread makes them.

#![expect(clippy::print_stdout, reason = "the table is the result")]

mod caller;
mod flood;
mod gateway;
#[path = "../support/rounds.rs"]
mod rounds;

use std::time::Duration;

use flood::Flood;
use gateway::Gateway;
use rounds::Rounds;

/// How long each phase lasts. Shorter, and a p99 is the worst of a few; longer, and the machine changes under it.
const PHASE: Duration = Duration::from_secs(3);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 3;

/// The requests a second of normal traffic: well below what a core serves, so that what is measured is waiting.
const RATE: u32 = 200;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let gateway = Gateway::start()?;
    println!(
        "| flood | p99 ms without | p99 ms with | x without | spread | failed | sent/s | gateway CPU % | RSS MiB |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for flood in Flood::ALL {
        let (mut without, mut with) = (Rounds::default(), Rounds::default());
        let (mut cpu, mut sent, mut failed) = (Rounds::default(), Rounds::default(), 0);
        for _ in 0..ROUNDS {
            let quiet = runtime.block_on(caller::measure(&gateway.reach, RATE, PHASE))?;
            let flooding = flood.start(&gateway.reach);
            let began = gateway.cpu()?;
            let loud = runtime.block_on(caller::measure(&gateway.reach, RATE, PHASE))?;
            cpu.push((gateway.cpu()? - began).as_secs_f64() / PHASE.as_secs_f64() * 100.0);
            sent.push(flooding.stop() / PHASE.as_secs_f64());
            without.push(quiet.p99.as_secs_f64() * 1000.0);
            with.push(loud.p99.as_secs_f64() * 1000.0);
            failed += quiet.failed + loud.failed;
        }
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.0} % | {failed} | {:.0} | {:.0} | {:.0} |",
            flood.name(),
            without.median(),
            with.median(),
            with.ratio_to(&without),
            with.spread(),
            sent.median(),
            cpu.median(),
            gateway.resident_mib()?,
        );
    }
    Ok(())
}
