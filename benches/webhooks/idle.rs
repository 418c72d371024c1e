//! Tenants that have a subscription and no traffic: what they cost a node all day.
//!
//! A node asks all databases for subscriptions when it starts. Once it watches the tenants that have any,
//! it is measured, and so is a node that does not deliver, after the same time: the inspections cost both the same.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::time::sleep;

use crate::Arguments;
use crate::accounts::On;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::receiver::Receiver;
use crate::world::World;

/// How many databases at most: each takes the server 8 MB.
const MAX_DATABASES: usize = 200;

/// The goal: less than this percentage of a core ...
const GOAL: f64 = 1.0;
/// ... for this many tenants.
const GOAL_TENANTS: f64 = 10_000.0;

/// How long the inspection of a database may take on average.
const INSPECTION_LIMIT: Duration = Duration::from_secs(2);

/// How long a node looks more often at a tenant that it has just begun to watch, and a little more.
const CALMED: Duration = Duration::from_secs(20);

/// Client connections to all databases of a server.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
    AND pid <> pg_backend_pid()";

/// What a node took for a while.
struct Taken {
    /// Percent of a core.
    cpu: f64,
    /// The same, of the database server.
    server: f64,
    /// Open files, or connections to the server: the most at once.
    connections: usize,
}

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\nidle tenants with a subscription each, for {:?}; CPU in percent of a core", arguments.length);
    println!(
        "{:<10} {:>8} {:>12} {:>10} {:>8} {:>12} {:>10} {:>12} {:>12}",
        "", "tenants", "all watched", "CPU until", "node", "not watching", "Postgres", "connections", "for 10,000"
    );
    for on in [On::Sqlite, On::Postgres(server)] {
        let tenants = if let On::Sqlite = on { arguments.tenants } else { arguments.tenants.min(MAX_DATABASES) };
        // Nothing is sent to it, but the configuration names its certificate.
        let receiver = Receiver::start(1).await?;
        let world = tenants_with_a_subscription(on, tenants, &receiver).await?;
        let node = Node::start(&world, &[])?;
        let began = Instant::now();
        until_watched(&node, tenants).await?;
        let (until_all, cpu_until_all) = (began.elapsed(), node.process.cpu()?);
        sleep(CALMED).await;
        let watching = take(on, &node, arguments.length).await?;
        drop(node);
        world.configure(tenants, false, &receiver)?;
        let node = Node::start(&world, &[])?;
        sleep(until_all + CALMED).await;
        let control = take(on, &node, arguments.length).await?;
        let share = (watching.cpu - control.cpu).max(0.0) * GOAL_TENANTS / tenants as f64;
        println!(
            "{:<10} {tenants:>8} {:>10.0} s {:>8.1} s {:>8.2} {:>12.2} {:>10.2} {:>12} {share:>12.2} (goal: below {GOAL})",
            on.name(),
            until_all.as_secs_f64(),
            cpu_until_all.as_secs_f64(),
            watching.cpu,
            control.cpu,
            watching.server - control.server,
            watching.connections,
        );
    }
    Ok(())
}

/// Copies of one account.
async fn tenants_with_a_subscription(on: On<'_>, tenants: usize, receiver: &Receiver) -> anyhow::Result<World> {
    let world = World::with_forms(on, "idle", receiver).await?;
    {
        let node = Node::start(&world, &[])?;
        world.subscribe(&node, receiver, 1).await?;
    }
    for n in 1..tenants {
        match on {
            On::Sqlite => world.copy_first_to(n)?,
            On::Postgres(server) => {
                let copy = format!("CREATE DATABASE idle_{n} TEMPLATE idle_0 STRATEGY file_copy");
                server.execute("postgres", &[&copy])?;
            }
        }
    }
    world.configure(tenants, true, receiver)?;
    Ok(world)
}

async fn until_watched(node: &Node, tenants: usize) -> anyhow::Result<()> {
    let limit = Duration::from_secs(60) + INSPECTION_LIMIT * u32::try_from(tenants)?;
    let began = Instant::now();
    loop {
        let metrics = node.metrics().await?;
        let watched = metrics.lines().find_map(|line| line.strip_prefix("formgate_webhook_tenants_watched "));
        let watched: usize = watched.context("the metric is there")?.parse()?;
        if watched == tenants {
            return Ok(());
        }
        ensure!(began.elapsed() < limit, "{watched} of {tenants} tenants are watched");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Watches a node for a while.
async fn take(on: On<'_>, node: &Node, length: Duration) -> anyhow::Result<Taken> {
    let server_cpu = || match on {
        On::Sqlite => Ok(Duration::ZERO),
        On::Postgres(server) => server.process.cpu(),
    };
    let (own, server, began) = (node.process.cpu()?, server_cpu()?, Instant::now());
    let mut connections = 0;
    while began.elapsed() < length {
        sleep(Duration::from_secs(1).min(length)).await;
        connections = connections.max(open(on, node)?);
    }
    let percent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / began.elapsed().as_secs_f64();
    Ok(Taken { cpu: percent(node.process.cpu()? - own), server: percent(server_cpu()? - server), connections })
}

/// Open connections to databases, without asking the node, which would cost it.
fn open(on: On<'_>, node: &Node) -> anyhow::Result<usize> {
    if let On::Postgres(server) = on {
        return Ok(server.execute("postgres", &[CONNECTIONS])?.parse()?);
    }
    let files = fs::read_dir(format!("/proc/{}/fd", node.process.id()))?.flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    Ok(targets.filter(|target| target.extension().is_some_and(|extension| extension == "db")).count())
}
