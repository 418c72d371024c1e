//! Nodes of a registry that divide the accounts: a few, and many, on one machine.
//!
//! Each account is a Postgres database with a subscription. Without traffic, many nodes are to cost the server no more than a
//! few. Then all of them are started again, one is killed, and one is stopped without ending: after each, a submission is
//! inserted into every database, and the receiver notes how late its webhook is.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::Arguments;
use crate::accounts::{FORMS, On};
use crate::postgres_server::Postgres;
use crate::process::{Process, START_LIMIT, bound_to_us};
use crate::receiver::Receiver;
use crate::world::World;

/// How many nodes the smaller group has.
const FEW: usize = 2;

/// How many times the CPU of the server that few nodes cause many may cause.
const GOAL_CPU: f64 = 1.3;

/// The most that a webhook may be late after a restart, and after a node died or hangs.
const GOAL_RESTART: Duration = Duration::from_secs(5);
const GOAL_TAKEOVER: Duration = Duration::from_secs(20);

/// How long nodes look more often at accounts that they have just begun to watch, and a little more.
const CALMED: Duration = Duration::from_secs(20);

/// The pause between two inspections of all nodes together, and between two rounds of them.
const BETWEEN_DATABASES: Duration = Duration::from_millis(100);
const BETWEEN_ROUNDS: Duration = Duration::from_secs(60);

/// How long dividing the accounts may take on a loaded machine.
const DIVIDED_LIMIT: Duration = Duration::from_secs(600);

struct Member {
    process: Process,
    operator: SocketAddr,
}

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    let accounts = arguments.tenants;
    println!("\nnodes of a registry with {accounts} accounts on Postgres; webhooks: seconds from commit to receiver");
    println!(
        "{:>6} {:>16} {:>10} {:>26} {:>12} {:>12}",
        "nodes", "Postgres, % core", "ratio", "restart of all: p99, last", "one killed", "one stopped"
    );
    let receiver = Receiver::start(1).await?;
    let world = World::with_forms(On::Postgres(server), "nodes", &receiver).await?;
    {
        let node = crate::node::Node::start(&world, &[])?;
        world.subscribe(&node, &receiver, 1).await?;
    }
    for n in 1..accounts {
        let copy = format!("CREATE DATABASE nodes_{n} TEMPLATE nodes_0 STRATEGY file_copy");
        server.execute("postgres", &[&copy])?;
    }
    server.execute("postgres", &["CREATE DATABASE nodes_registry"])?;
    world.configure_nodes(FEW.max(arguments.nodes), &server.url("nodes_registry"), accounts, &receiver)?;
    let (mut of_few, mut next) = (None, 1);
    for count in [FEW, arguments.nodes] {
        let mut nodes = start(&world, count).await?;
        until_divided(&nodes, accounts).await?;
        // Most of what idle nodes cost are inspections. The first round counts rows, which is not done again for a day.
        let round = BETWEEN_DATABASES * u32::try_from(accounts)? + BETWEEN_ROUNDS;
        sleep(round.max(CALMED)).await;
        let (before, began) = (server.process.cpu()?, Instant::now());
        sleep(round.max(arguments.length)).await;
        let cpu = (server.process.cpu()? - before).as_secs_f64() * 100.0 / began.elapsed().as_secs_f64();
        let ratio = cpu / *of_few.get_or_insert(cpu);
        drop(nodes);
        nodes = start(&world, count).await?;
        let after_restart = lateness(&world, &receiver, accounts, &mut next).await?;
        until_divided(&nodes, accounts).await?;
        let killed = nodes.remove(0);
        killed.process.signal("KILL")?;
        let after_kill = lateness(&world, &receiver, accounts, &mut next).await?;
        until_divided(&nodes, accounts).await?;
        let takeover = if nodes.len() > 1 {
            nodes[0].process.signal("STOP")?;
            let late = lateness(&world, &receiver, accounts, &mut next).await;
            nodes[0].process.signal("CONT")?;
            Some(late?)
        } else {
            None
        };
        let last = |late: &[Duration]| late.last().copied().unwrap_or_default().as_secs_f64();
        let p99 = after_restart[(after_restart.len() - 1) * 99 / 100].as_secs_f64();
        println!(
            "{count:>6} {cpu:>16.1} {ratio:>10.2} {:>18.1} {:>7.1} {:>12.1} {:>12}",
            p99,
            last(&after_restart),
            last(&after_kill),
            takeover.map_or_else(|| "-".to_owned(), |late| format!("{:.1}", last(&late))),
        );
        drop(killed);
    }
    println!(
        "(goals: ratio {GOAL_CPU}, restart {} s, killed and stopped {} s)",
        GOAL_RESTART.as_secs(),
        GOAL_TAKEOVER.as_secs()
    );
    Ok(())
}

/// Starts nodes, all at once.
async fn start(world: &World, count: usize) -> anyhow::Result<Vec<Member>> {
    let mut starting = Vec::new();
    for node in 0..count {
        let log = world.path(&format!("log-{node}"));
        let mut command = bound_to_us(&world.program, "TERM");
        command.args(["serve", "--config"]).arg(world.config_of(node));
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        starting.push((Process::start(command, "TERM")?, log));
    }
    let listening = |(mut process, log): (Process, PathBuf)| -> anyhow::Result<Member> {
        let operator = process.until(START_LIMIT, || address(&log).ok())?;
        Ok(Member { process, operator })
    };
    starting.into_iter().map(listening).collect()
}

/// Where a node listens for its operator, by its log.
fn address(log: &Path) -> anyhow::Result<SocketAddr> {
    let text = fs::read_to_string(log)?;
    let line = text.lines().find(|line| line.contains("\"message\":\"admin listening\""));
    let line: serde_json::Value = serde_json::from_str(line.context("it does not listen yet")?)?;
    Ok(line["address"].as_str().context("an address")?.parse()?)
}

/// The value of a series.
async fn metric(node: &Member, series: &str) -> anyhow::Result<usize> {
    let mut stream = TcpStream::connect(node.operator).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.map(str::parse).transpose()?.unwrap_or_default())
}

/// Waits until each account has a keeper and a deputy, and both watch it.
async fn until_divided(nodes: &[Member], accounts: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let wanted = [accounts, if nodes.len() > 1 { accounts } else { 0 }];
    loop {
        let mut sums = [0; 3];
        for node in nodes {
            for (sum, series) in sums.iter_mut().zip([
                r#"formgate_tenants_looked_after{as="keeper"}"#,
                r#"formgate_tenants_looked_after{as="deputy"}"#,
                "formgate_webhook_tenants_watched",
            ]) {
                *sum += metric(node, series).await?;
            }
        }
        if sums == [wanted[0], wanted[1], wanted[0] + wanted[1]] {
            return Ok(());
        }
        ensure!(
            began.elapsed() < DIVIDED_LIMIT,
            "of {accounts} accounts, {sums:?} have a keeper, a deputy, are watched"
        );
        sleep(Duration::from_millis(500)).await;
    }
}

/// Inserts a submission for each account, and returns how late its webhook was, the latest last.
async fn lateness(
    world: &World,
    receiver: &Receiver,
    accounts: usize,
    next: &mut usize,
) -> anyhow::Result<Vec<Duration>> {
    // Of the first form, which has the subscription.
    let id = *next * FORMS;
    *next += 1;
    let mut committed = HashMap::new();
    for n in 0..accounts {
        world.database_of(n).await?.insert(id..id + 1).await?;
        committed.insert(format!("t{n}"), Instant::now());
    }
    let mut late = HashMap::new();
    while late.len() < accounts {
        for arrival in receiver.take(1).await? {
            let body: serde_json::Value = serde_json::from_slice(&arrival.body)?;
            let account = body["account"].as_str().context("a slug")?;
            if body["data"]["id"] == format!("sub_{id}") {
                late.entry(account.to_owned()).or_insert(arrival.at.saturating_duration_since(committed[account]));
            }
        }
    }
    let mut late: Vec<Duration> = late.into_values().collect();
    late.sort_unstable();
    Ok(late)
}
