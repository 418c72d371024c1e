//! What a page of the administration area costs a node that has much to show.
//!
//! `cargo bench --bench administration -- --tokens 10000 --days 365 --audit 100000 --pages 100` fills an account on SQLite
//! and one on Postgres: tokens, hours of usage with 50 active tokens each, rows of the audit log. Then it opens each page
//! as several administrators and prints the CPU of the node's process for a page, next to the goal. On Postgres, that of
//! the server comes on top, and is printed too.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod account;
#[path = "../support/caller.rs"]
mod caller;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/node.rs"]
mod node;
#[path = "../support/postgres.rs"]
mod postgres_server;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/process.rs"]
mod process;
#[expect(dead_code, reason = "shared with other benches")]
#[path = "../support/world.rs"]
mod world;

use std::time::{Duration, Instant};

use anyhow::ensure;

use account::SESSIONS;
use caller::Caller;
use node::Node;
use postgres_server::Postgres;
use world::World;

/// CPU of the node for a page.
const GOAL: Duration = Duration::from_millis(10);

const PAGES: [&str; 4] = ["/admin", "/admin/tokens", "/admin/tokens/100", "/admin/audit"];

/// Pages that are opened before those that count, so that caches are filled.
const BEFORE: usize = 5;

/// What the command line asks for.
pub(crate) struct Sizes {
    tokens: usize,
    days: usize,
    audit: usize,
    pages: usize,
}

impl Sizes {
    fn read() -> anyhow::Result<Self> {
        let mut read = Self { tokens: 10_000, days: 365, audit: 100_000, pages: 100 };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let field = match argument.as_str() {
                "--tokens" => &mut read.tokens,
                "--days" => &mut read.days,
                "--audit" => &mut read.audit,
                "--pages" => &mut read.pages,
                _ => anyhow::bail!("{argument}: expected --tokens, --days, --audit, --pages"),
            };
            *field = arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} takes a number"))?.parse()?;
        }
        ensure!(read.tokens >= 100, "one page is that of token 100");
        Ok(read)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let sizes = Sizes::read()?;
    println!("load of the machine: {}", process::load());
    measure(&World::on_sqlite()?, &sizes, None).await?;
    let folder = tempfile::tempdir()?;
    // If this is root, the server runs as another user, and that one must be able to enter the folder.
    process::checked(std::process::Command::new("chmod").arg("755").arg(folder.path()))?;
    let server = Postgres::start(folder.path())?;
    measure(&World::on_postgres(&server)?, &sizes, Some(&server)).await
}

async fn measure(world: &World, sizes: &Sizes, server: Option<&Postgres>) -> anyhow::Result<()> {
    world.fill(sizes).await?;
    let node = Node::start(world, &[])?;
    println!("\n{}: {} tokens, {} days of usage, {} audit rows", world.name(), sizes.tokens, sizes.days, sizes.audit);
    println!("| page | own CPU | Postgres | latency |\n| --- | ---: | ---: | ---: |");
    let mut session = 0;
    for page in PAGES {
        let mut caller = Caller::connect(node.address).await?;
        let mut open = async |count: usize| -> anyhow::Result<()> {
            for _ in 0..count {
                // A session may open no more than 120 pages a minute.
                session = (session + 1) % SESSIONS;
                let status = caller.call(&world.request(page, session)).await?;
                ensure!(status == 200, "{page} answers {status}");
            }
            Ok(())
        };
        open(BEFORE).await?;
        let of_server = || server.map_or(Ok(Duration::ZERO), |server| server.process.cpu());
        let (own, database, began) = (node.process.cpu()?, of_server()?, Instant::now());
        open(sizes.pages).await?;
        let each = |all: Duration| all / u32::try_from(sizes.pages).unwrap_or(u32::MAX);
        let (own, database) = (each(node.process.cpu()? - own), each(of_server()? - database));
        let verdict = if own <= GOAL { "" } else { ": more than the goal" };
        println!("| {page} | {own:.1?}{verdict} | {database:.1?} | {:.1?} |", each(began.elapsed()));
    }
    println!("goal: {GOAL:?} of own CPU");
    Ok(())
}
