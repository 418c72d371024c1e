//! The whole program under load, compared with the alternatives: rates and CPU time, ratios of them, and goals for these.
//!
//! `cargo bench --profile dist --bench load -- me flood` runs some of the scenarios; without names, all but `long` run.
//! The profile `dist` also builds plain hyper, which is part of this bench, like the program that is shipped. `ROUNDS` (5)
//! and `TURN` (3 seconds) in the environment set how long a scenario takes.
//!
//! Every server is a process of its own, and so is the load generator; they share the machine. Their CPU time is read from
//! the kernel.
//!
//! A run adds what it measured to `load.json` in Cargo's folder for temporary files (`target/tmp`) and draws `load.svg`
//! next to it; `-- chart benches/load.json` draws a file of results that is there.

#![expect(clippy::print_stdout, reason = "the tables are the result")]

mod account;
mod bench;
#[expect(dead_code, reason = "shared with another bench")]
#[path = "../support/certified.rs"]
mod certified;
mod chart;
mod connections;
mod data;
mod fastify;
mod flood;
mod folder;
mod gateway;
mod generate;
mod generator;
mod long;
mod me;
mod nginx;
mod order;
mod pgbench;
mod plain;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/process.rs"]
mod process;
mod reads;
#[path = "../support/redis.rs"]
mod redis_server;
mod report;
mod results;
#[path = "../support/rounds.rs"]
mod rounds;
mod site;
mod target;
mod turns;
/// Accounts of the other benches.
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/world.rs"]
mod world;
mod writes;

use std::cell::RefCell;
use std::path::Path;

use anyhow::Context;
use bench::{Bench, number};
use results::Source;

type Scenario = fn(&Bench) -> anyhow::Result<()>;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("me", me::run),
    ("flood", flood::run),
    ("connections", connections::run),
    ("reads", reads::run),
    ("writes", writes::run),
    ("long", long::run),
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    match arguments.first().map(String::as_str) {
        Some(generator::ROLE) => return generator::run(),
        Some(plain::ROLE) => return plain::run(),
        Some(reads::BARE_ROLE) => return reads::run_bare(),
        Some("chart") => {
            for file in &arguments[1..] {
                println!("{}", chart::draw(Path::new(file))?.display());
            }
            return Ok(());
        }
        _ => {}
    }
    let (rounds, turn) = (number("ROUNDS", 5)?, number("TURN", 3.0)?);
    let source = Source::now(rounds, turn, &arguments)?;
    let bench = Bench { rounds, turn, source, results: RefCell::default() };
    for name in &arguments {
        anyhow::ensure!(SCENARIOS.iter().any(|(known, _)| known == name), "there is no scenario `{name}`");
    }
    for (name, run) in SCENARIOS {
        if arguments.is_empty() && name != "long" || arguments.iter().any(|argument| argument == name) {
            println!("\n## {name}");
            run(&bench).context(name)?;
        }
    }
    let results = bench.results.into_inner();
    if !results.is_empty() {
        println!("\n{}", chart::draw(&results::add(results)?)?.display());
    }
    Ok(())
}
