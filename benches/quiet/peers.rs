//! The mix on accounts with a Postgres database each, more than connections to the server: the node with connections of
//! its own, then what the parts name: through a PgBouncer, and a Fastify peer.
//!
//! Each has at most the same number of connections to the server. Through PgBouncer, the node keeps one to the pooler
//! for each account.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Arguments;
use crate::fastify::Fastify;
use crate::load::{self, Load, Outcome};
use crate::node::Node;
use crate::pgbouncer::PgBouncer;
use crate::postgres::{CONNECTIONS, databases};
use crate::postgres_server::Postgres;
use crate::process::{Process, checked};
use crate::world::World;

/// How many databases at most: each takes 8 MB, and the peer as many again.
const MAX_DATABASES: usize = 200;

/// The most calls a second for each account: it may call once a second.
const RATE: f64 = 0.5;

/// The processes that serve the mix.
struct Side<'s> {
    what: &'static str,
    address: SocketAddr,
    own: &'s Process,
    pooler: Option<&'s Process>,
    server: &'s Postgres,
}

pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    // If this is root, the server runs as another user, and that one must be able to enter the folder.
    checked(std::process::Command::new("chmod").arg("755").arg(folder.path()))?;
    let server = Postgres::start(folder.path())?;
    let world = databases(&server, "ours", arguments.accounts.min(MAX_DATABASES))?;
    let accounts = world.accounts;
    let load = Load { rate: arguments.rate.min(RATE * accounts as f64), length: arguments.length };
    println!("{accounts} databases, {CONNECTIONS} connections to the server, {:.0} calls a second", load.rate);
    let direct = {
        world.configure(CONNECTIONS)?;
        let node = Node::start(&world, &[])?;
        let (what, address, own) = ("direct", node.address, &node.process);
        Side { what, address, own, pooler: None, server: &server }.measure(&world, &load).await?
    };
    if arguments.has("pgbouncer") {
        let pooler = PgBouncer::start(&server, folder.path(), CONNECTIONS)?;
        let [before, after] = pooler.urls("ours");
        let world = world.with_urls([&before, &after])?;
        world.configure(accounts)?;
        let node = Node::start(&world, &[])?;
        let (what, address, own) = ("through PgBouncer", node.address, &node.process);
        let side = Side { what, address, own, pooler: Some(&pooler.process), server: &server };
        let pooled = side.measure(&world, &load).await?;
        println!("  p99 through PgBouncer / direct: {:.2}", pooled.percentile(0.99) / direct.percentile(0.99));
    }
    if arguments.has("fastify") {
        let peer = Fastify::start(&server, &world, "ours", CONNECTIONS)?;
        let (what, address, own) = ("Fastify", peer.address, &peer.process);
        let side = Side { what, address, own, pooler: None, server: &server };
        let peer = side.measure(&world, &load).await?;
        println!("  p99 of Fastify / direct: {:.2}", peer.percentile(0.99) / direct.percentile(0.99));
    }
    Ok(())
}

impl Side<'_> {
    async fn measure(&self, world: &World, load: &Load) -> anyhow::Result<Outcome> {
        // Each account is called once, so that what can be open is.
        load::call_each(self.address, world).await?;
        let (before, opened) = (self.cpu()?, self.sessions()?);
        let outcome = load::run(self.address, world, load).await?;
        let (after, opened) = (self.cpu()?, self.sessions()? - opened);
        let answers = outcome.times.len() as f64;
        let [own, pooler, server] = [0, 1, 2].map(|at| (after[at] - before[at]).as_secs_f64() * 1e3 / answers);
        let (pooler, held) = (self.pooler.map(|_| format!("PgBouncer {pooler:.2}, ")), self.own.held());
        println!(
            "  {}: CPU of an answer: own {own:.2}, {}Postgres {server:.2} ms; {:.2} connections opened for each; \
             p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms; answers {:?}; {:.0} MB, {} descriptors",
            self.what,
            pooler.unwrap_or_default(),
            opened as f64 / answers,
            outcome.percentile(0.5),
            outcome.percentile(0.99),
            outcome.percentile(0.999),
            outcome.statuses,
            held.bytes / 1e6,
            held.files
        );
        Ok(outcome)
    }

    /// How many connections to the server were opened since it runs.
    fn sessions(&self) -> anyhow::Result<u64> {
        let sessions = "SELECT sum(sessions)::bigint FROM pg_stat_database";
        Ok(self.server.execute("postgres", &[sessions])?.trim().parse()?)
    }

    /// Of the node or peer, the pooler and the server.
    fn cpu(&self) -> anyhow::Result<[Duration; 3]> {
        let pooler = self.pooler.map(Process::cpu).transpose()?.unwrap_or_default();
        Ok([self.own.cpu()?, pooler, self.server.process.cpu()?])
    }
}
