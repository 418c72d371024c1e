//! The whole program under load, beside what else could do its work, in turns of one run: ratios, and goals for them.
//!
//! `cargo bench --profile release --bench load -- me flood` runs some of the scenarios, without a name all but `long`.
//! The profile is that of the program as it is shipped, and builds this bench, which the limits are part of, the same
//! way. `ROUNDS` (5) and `TURN` (3 seconds) in the environment say how long it takes.
//!
//! Every server is a process of its own, and so is the generator of the load; they share the machine. What each of them
//! spends is read from the kernel.

#![expect(clippy::print_stdout, reason = "the tables are the result")]

mod connections;
mod data;
mod fastify;
mod flood;
mod gateway;
#[path = "../search/generate.rs"]
mod generate;
mod generator;
mod long;
mod me;
mod order;
mod pgbench;
mod plain;
mod postgres;
#[path = "../support/process.rs"]
mod process;
mod reads;
#[path = "../support/redis.rs"]
mod redis_server;
mod report;
#[path = "../support/rounds.rs"]
mod rounds;
mod site;
mod target;
mod turns;
/// Tenants with a certificate each.
#[path = "../tenants/world.rs"]
#[allow(dead_code, reason = "the other bench changes it")]
mod world;
mod writes;

use std::str::FromStr;

use anyhow::Context;
use order::{Order, Pace, Protocol, Request};
use target::Target;

/// What this program is told to be in place of the bench.
const GENERATOR: &str = "be-the-generator";
const PLAIN: &str = "be-plain-hyper";
const BARE: &str = "be-bare-statements";

/// Seconds before the clock begins: connections are made and tokens verified.
const WARM_UP: f64 = 1.0;

type Scenario = fn(&Bench) -> anyhow::Result<()>;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("me", me::run),
    ("flood", flood::run),
    ("connections", connections::run),
    ("reads", reads::run),
    ("writes", writes::run),
    ("long", long::run),
];

/// How long everything takes.
struct Bench {
    rounds: usize,
    /// Seconds.
    turn: f64,
}

impl Bench {
    /// A turn of 32 connections over HTTP/1.1, as quick as answers come.
    fn order(&self, target: &Target, requests: Vec<Request>) -> Order {
        Order {
            address: target.address,
            protocol: Protocol::Http1,
            connections: 32,
            streams: 1,
            pace: Pace::Answered,
            fresh: false,
            warm_up: WARM_UP,
            turn: self.turn,
            requests,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    match arguments.first().map(String::as_str) {
        Some(GENERATOR) => return generator::run(),
        Some(PLAIN) => return plain::run(),
        Some(BARE) => return reads::run_bare(),
        _ => {}
    }
    let bench = Bench { rounds: number("ROUNDS", 5)?, turn: number("TURN", 3.0)? };
    for name in &arguments {
        anyhow::ensure!(SCENARIOS.iter().any(|(known, _)| known == name), "there is no scenario `{name}`");
    }
    for (name, run) in SCENARIOS {
        if arguments.is_empty() && name != "long" || arguments.iter().any(|argument| argument == name) {
            println!("\n## {name}");
            run(&bench).context(name)?;
        }
    }
    Ok(())
}

/// A number in the environment.
fn number<T: FromStr<Err: Into<anyhow::Error>>>(name: &str, default: T) -> anyhow::Result<T> {
    std::env::var(name).map_or(Ok(default), |value| value.parse().map_err(Into::into).context(name.to_owned()))
}
