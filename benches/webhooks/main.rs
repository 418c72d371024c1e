//! What webhooks and the feed of changes cost, next to the common design and to bare loops.
//!
//! `cargo bench --bench webhooks -- peer --events 20000` runs one part; without a name all parts run, in turn:
//!
//! - `peer`: deliveries per second and CPU per delivery, next to a Node worker with an outbox table, BullMQ and undici.
//! - `bare`: own CPU per delivery, next to a loop over the same HTTP client that sends the same body.
//! - `latency`: from the commit of a submission to the first byte at the receiver, with the default `settle_ms`.
//! - `idle`: CPU and connections of a node whose tenants all have a subscription and no traffic.
//! - `feed`: CPU of a page of 100 changes, next to five pages of `POST /submission` with the same submissions.
//! - `kills`: a sending node is killed again and again; what arrives never, and what arrives twice.
//! - `nodes`: 2 and 20 nodes of a registry; CPU of Postgres without traffic, and how late webhooks are after a restart of all,
//!   and after one of the nodes was killed or stopped.
//!
//! The node is the real program; receivers are TLS servers in this process that answer at once. Each part prints its goal
//! next to the ratio that it measured.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod accounts;
mod bare;
#[path = "../support/caller.rs"]
mod caller;
mod database;
mod drain;
mod feed;
mod idle;
mod kills;
mod latency;
#[expect(dead_code, reason = "shared with another bench")]
#[path = "../support/node.rs"]
mod node;
mod nodes;
mod peer;
#[path = "../support/postgres.rs"]
mod postgres_server;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/process.rs"]
mod process;
mod receiver;
#[path = "../support/redis.rs"]
mod redis_server;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/rounds.rs"]
mod rounds;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/world.rs"]
mod world;

use std::time::Duration;

use mimalloc::MiMalloc;
use tempfile::TempDir;

use postgres_server::Postgres;

/// As the program itself has: the bare loop runs here.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const PARTS: [&str; 7] = ["peer", "bare", "latency", "idle", "feed", "kills", "nodes"];

/// What the command line asks for.
struct Arguments {
    /// Deliveries of a round.
    events: usize,
    rounds: usize,
    /// Of `idle` and `nodes`.
    tenants: usize,
    /// How many nodes the larger group of `nodes` has.
    nodes: usize,
    /// How long `latency`, `idle` and `nodes` measure.
    length: Duration,
    /// Between two submissions of `latency`.
    pause: Duration,
    /// Of `kills`.
    kills: usize,
    parts: Vec<String>,
}

impl Arguments {
    fn read() -> anyhow::Result<Self> {
        let mut read = Self {
            events: 20_000,
            rounds: 3,
            tenants: 1000,
            nodes: 20,
            length: Duration::from_secs(60),
            pause: Duration::from_millis(700),
            kills: 50,
            parts: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} takes a number"));
            match argument.as_str() {
                "--events" => read.events = value()?.parse()?,
                "--rounds" => read.rounds = value()?.parse()?,
                "--tenants" => read.tenants = value()?.parse()?,
                "--seconds" => read.length = Duration::from_secs_f64(value()?.parse()?),
                "--pause-ms" => read.pause = Duration::from_millis(value()?.parse()?),
                "--kills" => read.kills = value()?.parse()?,
                "--nodes" => read.nodes = value()?.parse()?,
                part if PARTS.contains(&part) => read.parts.push(argument),
                _ => anyhow::bail!(
                    "{argument}: expected --events, --rounds, --tenants, --seconds, --pause-ms, --kills, --nodes, {}",
                    PARTS.join(", ")
                ),
            }
        }
        Ok(read)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|named| named == part)
    }
}

fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).is_some_and(|role| role == bare::ROLE) {
        return bare::run();
    }
    // One worker serves the receivers; the main thread may block on commands.
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    println!("load of the machine: {}", process::load());
    let folder = tempfile::tempdir()?;
    let server = start_postgres(&folder)?;
    if arguments.has("peer") {
        peer::measure(&server, &arguments).await?;
    }
    if arguments.has("bare") {
        bare::measure(&server, &arguments).await?;
    }
    if arguments.has("latency") {
        latency::measure(&server, &arguments).await?;
    }
    if arguments.has("idle") {
        idle::measure(&server, &arguments).await?;
    }
    if arguments.has("feed") {
        feed::measure(&server, &arguments).await?;
    }
    if arguments.has("kills") {
        kills::measure(&server, &arguments).await?;
    }
    if arguments.has("nodes") {
        nodes::measure(&server, &arguments).await?;
    }
    Ok(())
}

fn start_postgres(folder: &TempDir) -> anyhow::Result<Postgres> {
    // If this is root, the server runs as another user, and that one must be able to enter the folder.
    process::checked(std::process::Command::new("chmod").arg("755").arg(folder.path()))?;
    Postgres::start(folder.path())
}
