//! What the window's script costs Redis: the packed log that the gateway runs and the usual sorted set, both compared
//! with a plain `INCR`.
//!
//! Prints four Markdown tables: the cost of a decision at the default limit, how it changes with the length of the log,
//! what is sent to a replica, and what the largest limit costs. `-- long` prints only the last. NOTEBOOK.md explains the columns, and what a list and a ring cost.

mod candidate;
mod long;
mod measure;
#[path = "../support/redis.rs"]
mod redis_server;
mod report;
#[path = "../support/rounds.rs"]
mod rounds;

use candidate::{EMPTY_SCRIPT, FLOOR, WINDOWS};
use measure::{Fill, Template};
use redis_server::Server;
use report::Figures;

/// The default limit in an account that used it up, and in one that calls now and then; then larger limits that an
/// operator may set.
const FILLS: [Fill; 6] = [
    Fill { held: 60, limit: 60 },
    Fill { held: 6, limit: 60 },
    Fill { held: 120, limit: 120 },
    Fill { held: 240, limit: 240 },
    Fill { held: 600, limit: 600 },
    Fill { held: 6000, limit: 6000 },
];

/// Requests in all accounts together: as much memory whatever they hold.
const REQUESTS: u32 = 1_200_000;

/// No more accounts than this. With the default limit they fill more than a cache.
const ACCOUNTS: u32 = 20_000;

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<()> {
    let server = Server::start(&[])?;
    if std::env::args().any(|argument| argument == "long") {
        report::long(&long::measure(&server)?);
        return Ok(());
    }
    for candidate in WINDOWS {
        candidate.check(&mut server.connect()?)?;
    }
    let figures = FILLS.iter().map(|fill| measure(&server, *fill)).collect::<anyhow::Result<Vec<_>>>()?;
    report::cost(&figures[0]);
    report::fills(&FILLS, &figures);
    report::replication(&replication()?);
    report::long(&long::measure(&server)?);
    Ok(())
}

/// Takes turns: each round has a pass of each candidate.
fn measure(server: &Server, fill: Fill) -> anyhow::Result<Vec<Figures>> {
    let candidates: Vec<_> = [FLOOR, EMPTY_SCRIPT].into_iter().chain(WINDOWS).collect();
    let templates = Template::make(server, &candidates, fill)?;
    let figures = templates.iter().map(|template| Ok(Figures::new(template.candidate, template.memory(server)?)));
    let mut figures = figures.collect::<anyhow::Result<Vec<_>>>()?;
    let accounts = (REQUESTS / fill.held).min(ACCOUNTS) as usize;
    // The first round is not counted: it grows the server's tables and buffers.
    for round in 0..=ROUNDS {
        for (template, figures) in templates.iter().zip(&mut figures) {
            let (admit, refuse) = template.pass(server, accounts)?;
            if round > 0 {
                figures.push(admit, refuse);
            }
        }
    }
    Ok(figures)
}

/// What reaches a replica, at the default limit and at the largest.
fn replication() -> anyhow::Result<Vec<report::Replication>> {
    let server = Server::start(&["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"])?;
    let replica = Server::start(&["--replicaof", "127.0.0.1", server.port()])?;
    let mut rows = Vec::new();
    for fill in [FILLS[0], FILLS[5]] {
        for template in Template::make(&server, &WINDOWS, fill)? {
            let (writes, bytes) = template.replication(&server, &replica)?;
            rows.push(report::Replication { limit: fill.limit, name: template.candidate.name, writes, bytes });
        }
    }
    Ok(rows)
}
