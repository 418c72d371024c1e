//! Exports of an account: how long, how much memory of the node, how many requests of the budget, and what the callers of
//! another account notice; beside the feed of changes and the database's own program, which writes the same tables.
//!
//! All take a turn in each round. Between two turns the other account is called alone for as long as [`ALONE`]: the p99 during
//! an export is compared with that of the pauses before and after it. `curl` receives, and throws away what it gets.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::account::{fill, wait_for_search};
use crate::figures::middle;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::postgres::find_client;
use crate::support::process::Node;

/// How often all take a turn, unless the variable `ROUNDS` says so.
const ROUNDS: usize = 3;

/// How long the other account is called alone before and after each turn.
const ALONE: Duration = Duration::from_secs(10);

/// How often the other account is called: a page of its submissions, for its callers wait for those.
const EVERY: Duration = Duration::from_millis(5);

/// How many answers the submissions have that are neither the first nor the last.
const ANSWERS: u32 = 3;

/// How many entries a page of the feed has.
const PAGE_OF_FEED: usize = 500;

/// What takes a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A response of the gateway.
    Export(&'static str),
    /// The same to a client that receives 100 megabits a second.
    ExportOver(&'static str),
    /// All pages of the feed, one after another.
    Feed,
    /// `pg_dump` or `.dump` of the tables of submissions and answers.
    Dump,
    /// A program that only computes, for [`ALONE`]: what any other one would do to the callers on this machine.
    Computing,
}

/// What a turn took.
struct Turn {
    seconds: f64,
    bytes: f64,
    /// Of the node, how much more than before, in megabytes.
    memory: f64,
    /// Requests of the budget.
    cost: f64,
    /// Of the other account, in milliseconds: the pauses around it, and during it.
    alone: f64,
    beside: f64,
}

struct World {
    site: Site,
    node: Node,
    client: Client,
    token: String,
    other: Client,
    engine: Engine,
}

pub(crate) async fn measure(engine: Engine, submissions: i64) {
    let site = Site::new().tenant("acme", engine).tenant("other", engine).requests_per_minute(100_000).write();
    let (token, others_token) = (site.token("acme", "reader"), site.token("other", "reader"));
    let database = Database::connect(site.database_url("acme")).await;
    fill(&database, engine, 1, submissions, ANSWERS).await;
    let other = Database::connect(site.database_url("other")).await;
    fill(&other, engine, 20, 2000, ANSWERS).await;
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let other_client = node.client().to(&site.host("other")).with(&others_token);
    wait_for_search(&client, &database, engine).await;
    wait_for_search(&other_client, &other, engine).await;
    let world = World { site, node, client, token, other: other_client, engine };
    world.take_turn(Way::Feed).await;

    let rounds = std::env::var("ROUNDS").map_or(ROUNDS, |number| number.parse().expect("a number of rounds"));
    println!("\n{engine:?}, {submissions} submissions with {ANSWERS} answers, medians of {rounds} rounds");
    println!("| | seconds | MB | MB of memory | requests | p99 of another account, ms | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let ways = [
        ("NDJSON", Way::Export("format=ndjson")),
        ("NDJSON at 100 Mbit/s", Way::ExportOver("format=ndjson")),
        ("CSV", Way::Export("format=csv&form=1")),
        ("Parquet", Way::Export("format=parquet&form=1")),
        ("the feed", Way::Feed),
        ("the database's own dump", Way::Dump),
        ("a program that computes", Way::Computing),
    ];
    let mut turns: [Vec<Turn>; 7] = Default::default();
    for round in 0..rounds {
        for at in 0..ways.len() {
            let at = (round + at) % ways.len();
            turns[at].push(world.take_turn(ways[at].1).await);
        }
    }
    for ((name, _), turns) in ways.iter().zip(&turns) {
        let of = |figure: fn(&Turn) -> f64| middle(turns.iter().map(figure).collect());
        println!(
            "| {name} | {:.1} | {:.0} | {:.0} | {:.0} | {:.1} | {:.2} |",
            of(|turn| turn.seconds),
            of(|turn| turn.bytes / 1e6),
            of(|turn| turn.memory),
            of(|turn| turn.cost),
            of(|turn| turn.beside),
            of(|turn| turn.beside / turn.alone),
        );
    }
    database.close().await;
    other.close().await;
}

impl World {
    async fn take_turn(&self, way: Way) -> Turn {
        let before = self.p99_during(tokio::time::sleep(ALONE)).await.0;
        // A "5" makes the kernel count the most memory anew.
        fs::write(format!("/proc/{}/clear_refs", self.node.id()), "5").expect("Linux takes it");
        let memory = self.memory("VmRSS");
        let began = Instant::now();
        let (beside, (bytes, cost)) = self.p99_during(self.read(way)).await;
        let seconds = began.elapsed().as_secs_f64();
        let memory = self.memory("VmHWM") - memory;
        let after = self.p99_during(tokio::time::sleep(ALONE)).await.0;
        Turn { seconds, bytes, memory, cost, alone: before.max(after), beside }
    }

    /// Reads everything in one way: the bytes, and the requests that it cost.
    async fn read(&self, way: Way) -> (f64, f64) {
        match way {
            Way::Export(query) => self.export(query, &[]).await,
            Way::ExportOver(query) => self.export(query, &["--limit-rate", "12500k"]).await,
            Way::Feed => self.follow().await,
            Way::Dump => (self.dump().await, 0.0),
            Way::Computing => {
                let mut command = Command::new("timeout");
                command.args([&ALONE.as_secs().to_string(), "sha256sum", "/dev/zero"]);
                run(command).await;
                (0.0, 0.0)
            }
        }
    }

    async fn export(&self, query: &str, options: &[&str]) -> (f64, f64) {
        let (host, address) = (self.site.host("acme"), self.node.address);
        let url = format!("https://{host}:{}/api/v1/submission/export?{query}", address.port());
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--insecure", "--output", "/dev/null"])
            .args(["--resolve", &format!("{host}:{}:{}", address.port(), address.ip())])
            .args(["--header", &format!("authorization: Bearer {}", self.token)])
            .args(options)
            .args(["--write-out", "%{size_download} %header{formgate-cost}", &url]);
        let output = run(curl).await;
        assert!(output.status.success(), "{query}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut figures = text.split(' ').map(|figure| figure.parse().expect("a number"));
        let mut next = || figures.next().expect("two figures");
        (next(), next())
    }

    async fn follow(&self) -> (f64, f64) {
        let (mut cursor, mut bytes, mut requests) = (String::new(), 0, 0);
        loop {
            let from = if cursor.is_empty() { String::new() } else { format!("&cursor={cursor}") };
            let path = format!("/api/v1/submission/changes?limit={PAGE_OF_FEED}{from}");
            let answer = self.client.get(&path).send().await;
            assert_eq!(answer.status, 200, "{answer:?}");
            (bytes, requests) = (bytes + answer.body.len(), requests + 1);
            let page = answer.json();
            if page["meta"]["has_more"] == json!(false) {
                return (bytes as f64, f64::from(requests));
            }
            page["meta"]["cursor"].as_str().expect("a cursor").clone_into(&mut cursor);
        }
    }

    async fn dump(&self) -> f64 {
        let url = self.site.database_url("acme");
        let mut command = if self.engine == Engine::Sqlite {
            let mut command = Command::new("sqlite3");
            command.args([url.trim_start_matches("sqlite:"), ".dump submissions answers"]);
            command
        } else {
            let mut command = Command::new(find_client("pg_dump"));
            command.args(["--format=plain", "--data-only", "--table=submissions", "--table=answers", "--dbname", url]);
            command
        };
        let file = self.site.folder().join("dump");
        let output = fs::File::create(&file).expect("a file");
        command.stdout(Stdio::from(output));
        let done = run(command).await;
        assert!(done.status.success(), "{done:?}");
        size_and_remove(&file)
    }

    /// The p99 of the other account's calls while something goes on, in milliseconds, and its outcome.
    async fn p99_during<T>(&self, work: impl Future<Output = T>) -> (f64, T) {
        let (end, ended) = watch::channel(());
        let client = self.other.clone();
        let calls = tokio::spawn(async move {
            let (mut took, mut ticks) = (Vec::new(), interval(EVERY));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while ended.has_changed().is_ok() {
                ticks.tick().await;
                let began = Instant::now();
                let answer = client.post("/api/v1/submission").json(&json!({"page": 1})).send().await;
                assert_eq!(answer.status, 200, "{answer:?}");
                took.push(began.elapsed().as_secs_f64() * 1000.0);
            }
            took
        });
        let outcome = work.await;
        drop(end);
        let mut took = calls.await.expect("the calls ended");
        took.sort_by(f64::total_cmp);
        (took[took.len() * 99 / 100], outcome)
    }

    /// A figure of the node's memory, in megabytes.
    fn memory(&self, name: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.node.id())).expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("Linux says so");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
    }
}

fn size_and_remove(file: &Path) -> f64 {
    let bytes = fs::metadata(file).expect("it was written").len();
    fs::remove_file(file).expect("it is removed");
    bytes as f64
}

/// The outcome of a program, which is waited for by a thread of its own.
async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("the program starts")
}
