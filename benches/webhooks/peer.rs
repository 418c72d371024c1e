//! The common design: an outbox table, a queue in Redis and a worker. `peer/worker.js` is installed by `npm`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::Arguments;
use crate::accounts::{AT_ONCE, FORMS, On};
use crate::database::Database;
use crate::drain::{Backlog, Spent};
use crate::postgres_server::Postgres;
use crate::process::{Process, bound_to_us, checked};
use crate::receiver::{Receiver, span};
use crate::redis_server::Server;
use crate::rounds::Rounds;

/// What is installed, and run.
const FILES: [(&str, &str); 2] =
    [("package.json", include_str!("peer/package.json")), ("worker.js", include_str!("peer/worker.js"))];

const DATABASE: &str = "outbox_of_the_peer";

/// How many times as many deliveries for the same CPU are the goal.
const GOAL: f64 = 5.0;

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    let mut ours = Backlog::make(On::Postgres(server), "peer").await?;
    let mut peer = None;
    let mut sides = [Figures::default(), Figures::default()];
    for _ in 0..arguments.rounds {
        let (spent, request) = ours.deliver(arguments.events).await?;
        sides[0].push(&spent);
        if peer.is_none() {
            // The peer's rows have the bodies that formgate sends.
            peer = Some(Peer::make(server, String::from_utf8(request.body)?).await?);
        }
        let peer = peer.as_mut().expect("it was made");
        sides[1].push(&peer.deliver(server, arguments.events).await?);
    }
    println!("\n{} deliveries to {FORMS} receivers, {AT_ONCE} at once; CPU in µs each", arguments.events);
    println!("{:<22} {:>10} {:>10} {:>10} {:>8}", "", "a second", "own CPU", "Postgres", "Redis");
    for (name, side) in ["formgate", "Node, BullMQ, undici"].iter().zip(&sides) {
        let [rate, own, postgres, redis] = [&side.rate, &side.own, &side.postgres, &side.redis].map(Rounds::median);
        println!("{name:<22} {rate:>10.0} {own:>10.0} {postgres:>10.0} {redis:>8.0}");
    }
    let [ours, peer] = &sides;
    println!("deliveries a second: {:.2} times the peer's", ours.rate.ratio_to(&peer.rate));
    println!("deliveries per core, own CPU: {:.2} times (goal: at least {GOAL})", peer.own.ratio_to(&ours.own));
    println!("the same with Postgres and Redis: {:.2} times", peer.all.ratio_to(&ours.all));
    Ok(())
}

/// Rates, and CPU in microseconds for each delivery.
#[derive(Default)]
struct Figures {
    rate: Rounds,
    own: Rounds,
    postgres: Rounds,
    redis: Rounds,
    all: Rounds,
}

impl Figures {
    fn push(&mut self, spent: &Spent) {
        self.rate.push(spent.per_second());
        self.own.push(spent.each(spent.own));
        self.postgres.push(spent.each(spent.postgres));
        self.redis.push(spent.each(spent.redis));
        self.all.push(spent.each(spent.own + spent.postgres + spent.redis));
    }
}

struct Peer {
    folder: TempDir,
    receiver: Receiver,
    redis: Server,
    database: Database,
    url: String,
    body: String,
}

impl Peer {
    async fn make(server: &Postgres, body: String) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        install(folder.path())?;
        server.execute("postgres", &[&format!("CREATE DATABASE {DATABASE}")])?;
        let url = server.url(DATABASE);
        let mut database = Database::postgres(&url).await?;
        database.execute(include_str!("peer/outbox.sql")).await?;
        let receiver = Receiver::start(FORMS).await?;
        // BullMQ requires it: a job that is evicted is lost.
        let redis = Server::start(&["--maxmemory-policy", "noeviction"])?;
        Ok(Self { folder, receiver, redis, database, url, body })
    }

    /// Inserts rows, starts a worker, and waits until all are delivered.
    async fn deliver(&mut self, server: &Postgres, events: usize) -> anyhow::Result<Spent> {
        let body = self.body.replace('\'', "''");
        let insert = format!(
            "INSERT INTO outbox (target, body) SELECT n % {FORMS}, '{body}' FROM generate_series(1, {events}) AS n"
        );
        self.database.execute(&insert).await?;
        self.database.analyze().await?;
        let worker = self.start()?;
        let before = (worker.cpu()?, server.process.cpu()?, self.redis.cpu()?);
        let arrivals = self.receiver.take(events).await?;
        let after = (worker.cpu()?, server.process.cpu()?, self.redis.cpu()?);
        Ok(Spent {
            deliveries: events,
            span: span(&arrivals),
            own: after.0 - before.0,
            postgres: after.1 - before.1,
            redis: after.2 - before.2,
            settling: Duration::ZERO,
        })
    }

    /// Starts a worker; returns once its packages are loaded.
    fn start(&self) -> anyhow::Result<Process> {
        let mut command = bound_to_us("node", "TERM");
        command.arg("worker.js").current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let targets: Vec<_> = self.receiver.urls().collect();
        command.env("NODE_ENV", "production").env("TARGETS", targets.join(","));
        command.env("DATABASE", &self.url).env("REDIS_PORT", self.redis.port());
        command.env("CONCURRENCY", AT_ONCE.to_string()).env("AUTHORITY", self.receiver.authority());
        let mut process = Process::start(command, "TERM")?;
        let mut line = String::new();
        BufReader::new(process.pipes().stdout.take().context("it is piped")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "the worker does not start");
        Ok(process)
    }
}

fn install(folder: &Path) -> anyhow::Result<()> {
    for (name, text) in FILES {
        fs::write(folder.join(name), text)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder);
    checked(&mut npm).context("this part needs `node` and `npm` in the PATH (Debian: apt-get install npm)")?;
    Ok(())
}
