//! Which script keeps a window of requests in Redis at the least cost: a sorted set, a list, a ring, or the packed log
//! that the gateway runs, beside a plain `INCR`.
//!
//! Prints three Markdown tables: CPU and decisions a second at the default limit, what an account weighs and replicates,
//! and how that changes with the limit. README.md says how to read them.

mod candidate;
mod measure;
#[path = "../support/redis.rs"]
mod redis_server;
mod report;
#[path = "../support/rounds.rs"]
mod rounds;

use candidate::{EMPTY_SCRIPT, FLOOR, WINDOWS};
use measure::Template;
use redis_server::Server;
use report::Figures;

/// The default limit, and larger ones that an operator may set.
const LIMITS: [u32; 3] = [60, 600, 6000];

/// Requests in all accounts together: the same memory at every limit, and at the default one more than caches hold.
const REQUESTS: u32 = 1_200_000;

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<()> {
    let server = Server::start(&[])?;
    for candidate in WINDOWS {
        candidate.check(&mut server.connect()?)?;
    }
    let figures = LIMITS.map(|limit| measure(&server, limit)).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    report::cost(&figures[0]);
    report::limits(&LIMITS, &figures);
    report::replication(&replication()?);
    Ok(())
}

/// Takes turns: each round has a pass of each candidate.
fn measure(server: &Server, limit: u32) -> anyhow::Result<Vec<Figures>> {
    let candidates: Vec<_> = [FLOOR, EMPTY_SCRIPT].into_iter().chain(WINDOWS).collect();
    let templates = Template::make(server, &candidates, limit)?;
    let figures = templates.iter().map(|template| Ok(Figures::new(template.candidate, template.memory(server)?)));
    let mut figures = figures.collect::<anyhow::Result<Vec<_>>>()?;
    // The first round is not counted: it grows the server's tables and buffers.
    for round in 0..=ROUNDS {
        for (template, figures) in templates.iter().zip(&mut figures) {
            let (admit, refuse) = template.pass(server, (REQUESTS / limit) as usize)?;
            if round > 0 {
                figures.push(admit, refuse);
            }
        }
    }
    redis::cmd("FLUSHALL").exec(&mut server.connect()?)?;
    Ok(figures)
}

/// What reaches a replica, at the default limit and at the largest.
fn replication() -> anyhow::Result<Vec<report::Replication>> {
    let server = Server::start(&["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"])?;
    let replica = Server::start(&["--replicaof", "127.0.0.1", server.port()])?;
    let mut rows = Vec::new();
    for limit in [LIMITS[0], LIMITS[2]] {
        for template in Template::make(&server, &WINDOWS, limit)? {
            let (writes, bytes) = template.replication(&server, &replica)?;
            rows.push(report::Replication { limit, name: template.candidate.name, writes, bytes });
        }
    }
    Ok(rows)
}
