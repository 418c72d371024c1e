//! Tenants in a registry: a start, memory, one change, and ten changes a second next to requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::caller::Caller;
use crate::certified::Certified;
use crate::node::Node;
use crate::postgres_server::Postgres;

/// Changes whose CPU is measured one after the other.
const CHANGES: u32 = 40;

/// How long requests are timed with changes and without, and how often both take turns.
const TURN: Duration = Duration::from_secs(10);
const TURNS: usize = 3;

/// Changes a second meanwhile.
const RATE: u32 = 10;

/// Where the registry is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegistryKind {
    Sqlite,
    Postgres,
}

impl RegistryKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "Postgres",
        }
    }

    /// The server, if one is needed, and the URL of an empty registry.
    pub(crate) fn open(self) -> anyhow::Result<(Option<(Postgres, TempDir)>, String)> {
        match self {
            Self::Sqlite => Ok((None, "sqlite:registry.db".to_owned())),
            Self::Postgres => {
                let folder = tempfile::tempdir()?;
                let server = Postgres::start(folder.path())?;
                server.execute("postgres", &["CREATE DATABASE registry"])?;
                let url = server.url("registry");
                Ok((Some((server, folder)), url))
            }
        }
    }
}

pub(crate) async fn measure(tenants: usize, kind: RegistryKind) -> anyhow::Result<()> {
    let (_server, url) = kind.open()?;
    let world = Arc::new(Certified::in_registry(tenants, &url)?);
    println!("\n{tenants} tenants in a registry on {}", kind.name());
    let began = Instant::now();
    world.import()?;
    println!("  import                  {:>9.1?}", began.elapsed());
    let caller = Arc::new(Caller::new(&world)?);
    for what in ["with no snapshot", "again"] {
        let began = Instant::now();
        let node = Node::start(&world)?;
        while caller.ask(&world.host(tenants / 2)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("  start, {what:<17}{:>9.1?}, resident {:.1} MB", began.elapsed(), node.memory("VmRSS:")?);
    }
    let node = Node::start(&world)?;
    while caller.ask(&world.host(tenants / 2)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("  resident                {:>6.1} MB, at most {:.1} MB", node.memory("VmRSS:")?, node.memory("VmHWM:")?);
    // A node without changes looks at the registry, and inspects databases.
    let (before, began) = (node.processor()?, Instant::now());
    tokio::time::sleep(TURN).await;
    let idle = (node.processor()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("  without changes         {:>9.2} % of a core", idle * 100.0);

    let (before, began) = (node.processor()?, Instant::now());
    for number in 0..CHANGES {
        change(&world, number).await?;
    }
    let spent = (node.processor()? - before).as_secs_f64() - idle * began.elapsed().as_secs_f64();
    println!(
        "  one change              {:>9.1} ms of CPU, served after {:.1?}",
        spent * 1e3 / f64::from(CHANGES),
        began.elapsed() / CHANGES
    );

    let mut percentiles = Meanwhile::ALL.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (meanwhile, percentiles) in Meanwhile::ALL.into_iter().zip(&mut percentiles) {
            percentiles.push(ninety_ninth(&world, &caller, meanwhile).await?);
        }
    }
    let [nothing, reads, changes] = percentiles.map(|mut percentiles| {
        percentiles.sort();
        percentiles[TURNS / 2]
    });
    for (what, p99) in [("reads", reads), ("changes", changes)] {
        let ratio = p99.as_secs_f64() / nothing.as_secs_f64();
        println!("  {RATE} {what:<7} a second     p99 of requests {p99:.1?} next to {nothing:.1?} without: {ratio:.2}");
    }
    Ok(())
}

/// What the operator does while requests are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// Reads tenants: calls of the operator API and their caller take time of the machine too.
    Reads,
    Changes,
}

impl Meanwhile {
    const ALL: [Self; 3] = [Self::Nothing, Self::Reads, Self::Changes];
}

/// The 99th percentile of requests to tenants that do not change.
async fn ninety_ninth(world: &Arc<Certified>, caller: &Arc<Caller>, meanwhile: Meanwhile) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let changing = tokio::spawn({
        let world = Arc::clone(world);
        async move {
            let mut number = 0;
            while meanwhile != Meanwhile::Nothing && began.elapsed() < TURN {
                match meanwhile {
                    Meanwhile::Changes => change(&world, number).await?,
                    _ => call(&world, &format!("GET /v1/tenants/t{number}"), "").await?,
                }
                number += 1;
                tokio::time::sleep((Duration::from_secs(1) / RATE * number).saturating_sub(began.elapsed())).await;
            }
            anyhow::Ok(())
        }
    });
    let host = world.host(world.tenants / 2);
    let mut open = caller.connect(&host).await?;
    let mut took = Vec::new();
    while began.elapsed() < TURN {
        let asked = Instant::now();
        caller.exchange(&mut open, &host).await?;
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    changing.await??;
    took.sort();
    Ok(took[took.len() * 99 / 100])
}

/// Changes the name of a tenant, and waits until the node serves it. By a batch, which opens no database: there is none.
async fn change(world: &Certified, number: u32) -> anyhow::Result<()> {
    let slug = format!("t{number}");
    let name = format!("Name {:?}", Instant::now());
    let tenant = serde_json::json!({
        "name": name, "address": format!("{slug}.example.com"), "database": Certified::database(number as usize),
    });
    let body = serde_json::json!({ "operations": [{ "put": slug, "tenant": tenant }] });
    call(world, "POST /v1/batch?wait=30", &body.to_string()).await
}

/// Calls the operator API.
async fn call(world: &Certified, what: &str, body: &str) -> anyhow::Result<()> {
    let socket: PathBuf = world.folder().join("operator.sock");
    let mut stream = UnixStream::connect(socket).await?;
    let head = format!("{what} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{}", answer.lines().next().context("an answer")?);
    Ok(())
}
