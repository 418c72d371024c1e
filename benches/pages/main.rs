//! Reads of submissions: what `fields` saves, and whether the last page by cursor costs what the first does. With `exports`
//! instead: exports of the whole account.
//!
//! `cargo bench --bench pages -- [exports] [sqlite | postgres] 100000` takes the number of submissions. Half of them have the same
//! instant of their last change, as an import gives them. One caller asks one request after another. In each round all take a
//! turn; a figure is a median over the rounds, and a ratio is taken within a round before its median. CPU is that of the node and of
//! the database's sessions.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod account;
mod exports;
mod figures;

/// The parts that the tests are built from.
#[path = "../../tests/it/support"]
#[allow(dead_code, unused_imports, unused_macros, reason = "the tests use all of it")]
mod support {
    pub(crate) mod answer;
    pub(crate) mod certificate;
    pub(crate) mod child;
    pub(crate) mod client;
    pub(crate) mod connection;
    pub(crate) mod database;
    pub(crate) mod description;
    pub(crate) mod fixture;
    pub(crate) mod folder;
    pub(crate) mod library;
    pub(crate) mod pgbouncer;
    pub(crate) mod postgres;
    pub(crate) mod process;
    pub(crate) mod redis;
}

use std::time::Instant;

use account::{fill, wait_for_search};
use figures::{cpu_of, middle};
use serde_json::{Value, json};
use support::answer::Answer;
use support::client::Client;
use support::database::Database;
use support::fixture::{Engine, Site};

/// How often all take a turn, and how many requests one has.
const ROUNDS: usize = 7;
const REQUESTS: usize = 40;

/// One kind of request.
struct Call {
    name: String,
    /// Without a body it is a GET.
    body: Option<Value>,
    path: String,
}

/// What a turn took a request: milliseconds, of CPU too, and bytes.
#[derive(Clone, Copy)]
struct Turn {
    took: f64,
    cpu: f64,
    bytes: f64,
}

struct World {
    client: Client,
    database: Database,
    node: u32,
}

#[tokio::main]
async fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let is_named = |name: &str| std::env::args().any(|argument| argument == name);
    let is_of_exports = is_named("exports");
    for (engine, other) in [(Engine::Sqlite, "postgres"), (Engine::Postgres, "sqlite")] {
        if is_named(other) {
            continue;
        }
        if is_of_exports {
            exports::measure(engine, number.unwrap_or(1_000_000)).await;
        } else {
            measure(engine, number.unwrap_or(100_000)).await;
        }
    }
}

async fn measure(engine: Engine, submissions: i64) {
    let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).write();
    let token = site.token("acme", "reader");
    let database = Database::connect(site.database_url("acme")).await;
    fill(&database, engine, 20, submissions, 1).await;
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let world = World { client, database, node: node.id() };
    wait_for_search(&world.client, &world.database, engine).await;

    println!("\n{engine:?}, {submissions} submissions: what `fields` saves, as ratios to the whole response");
    let two: Vec<String> = (1..=20).map(|form| format!("{form}01,{form}02")).collect();
    let fields = ["".to_owned(), "&fields=id,status,updated_at".to_owned(), format!("&fields=id,{}", two.join(","))];
    let names = ["everything", "id, status and instant", "id and two answers"];
    let get = |path: String| Call { name: path.clone(), body: None, path };
    let kinds: [&dyn Fn(&str) -> Call; 4] = [
        &|fields| Call::search("", &format!("page=1{fields}"), json!({})),
        &|fields| Call::search("", &format!("cursor=&limit=100{fields}"), json!({})),
        &|fields| get(format!("/api/v1/submission/7?x={fields}")),
        &|fields| get(format!("/api/v1/submission/changes?limit=500{fields}")),
    ];
    for kind in kinds {
        let figures = world.rounds(&fields.each_ref().map(|fields| kind(fields))).await;
        let whole = median(&figures[0], |turn| turn.took);
        println!("  {}: {whole:.2} ms, {:.0} bytes", kind("").name, median(&figures[0], |turn| turn.bytes));
        for (turns, name) in figures.iter().zip(names).skip(1) {
            let of = |figure: fn(&Turn) -> f64| ratio(turns, &figures[0], figure);
            let (took, cpu, bytes) = (of(|turn| turn.took), of(|turn| turn.cpu), of(|turn| turn.bytes));
            println!("    {name}: {took:.2} of the time, {cpu:.2} of the CPU, {bytes:.3} of the bytes");
        }
    }

    println!("{engine:?}, {submissions} submissions: pages by cursor, 20 each, in ms");
    let forms: Vec<i64> = (1..=20).collect();
    for (name, filter) in [
        ("all, by last change", json!({})),
        ("all, by last change, oldest first", json!({"sortDirection": "asc"})),
        ("all, by creation", json!({"sortBy": "created_at"})),
        ("one form of twenty", json!({"forms": [1]})),
        ("twenty forms", json!({ "forms": forms })),
        ("99 % by status", json!({"statuses": ["pending"]})),
        ("one label of twenty", json!({"labels": [1]})),
        ("a tenth by creation, by last change", json!({"start": "2024-01-01", "end": "2024-01-07"})),
        ("a keyword in 1 %", json!({"search": "rare"})),
        ("a keyword in all", json!({"search": "answer"})),
    ] {
        world.compare_pages(name, &filter).await;
    }
    world.database.close().await;
}

impl Call {
    fn search(name: &str, query: &str, filter: Value) -> Self {
        let path = format!("/api/v1/submission?{query}");
        Self { name: if name.is_empty() { path.clone() } else { name.to_owned() }, body: Some(filter), path }
    }
}

impl World {
    async fn ask(&self, call: &Call) -> Answer {
        match &call.body {
            None => self.client.get(&call.path).send().await,
            Some(body) => self.client.post(&call.path).json(body).send().await,
        }
    }

    /// CPU of the node and of the database's sessions so far, in milliseconds.
    async fn cpu(&self) -> f64 {
        let sessions = match &self.database {
            Database::Postgres(_) => {
                let of_database = "SELECT pid::text FROM pg_stat_activity WHERE datname = current_database()";
                self.database.texts(of_database).await
            }
            Database::Sqlite(_) => Vec::new(),
        };
        sessions.iter().map(String::as_str).chain([self.node.to_string().as_str()]).map(cpu_of).sum()
    }

    async fn turn(&self, call: &Call) -> Turn {
        let (before, began, mut bytes) = (self.cpu().await, Instant::now(), 0);
        for _ in 0..REQUESTS {
            let answer = self.ask(call).await;
            assert_eq!(answer.status, 200, "{}: {answer:?}", call.path);
            bytes += answer.body.len();
        }
        let took = began.elapsed().as_secs_f64() * 1000.0;
        let requests = REQUESTS as f64;
        Turn { took: took / requests, cpu: (self.cpu().await - before) / requests, bytes: bytes as f64 / requests }
    }

    async fn rounds(&self, calls: &[Call]) -> Vec<Vec<Turn>> {
        let mut turns = vec![Vec::new(); calls.len()];
        for call in calls {
            self.turn(call).await;
        }
        for round in 0..ROUNDS {
            for at in 0..calls.len() {
                let at = (round + at) % calls.len();
                turns[at].push(self.turn(&calls[at]).await);
            }
        }
        turns
    }

    /// The first page by cursor, one in the middle and the last one, and the last by number.
    async fn compare_pages(&self, name: &str, filter: &Value) {
        let (mut cursors, mut cursor) = (vec![String::new()], String::new());
        let mut total = 0;
        loop {
            let query = format!("cursor={cursor}&limit=100&fields=id");
            let page = self.ask(&Call::search("", &query, filter.clone())).await.json();
            total = page["meta"]["total"].as_u64().unwrap_or(total);
            let Some(next) = page["meta"]["cursor"].as_str() else { break };
            cursor = next.to_owned();
            cursors.push(cursor.clone());
        }
        let by_cursor = |at: usize| Call::search("", &format!("cursor={}&fields=id", cursors[at]), filter.clone());
        let by_number = |page: u64| Call::search("", &format!("page={page}&fields=id"), filter.clone());
        let last = total.div_ceil(20).max(1);
        let calls = [
            by_cursor(0),
            by_cursor(cursors.len() / 2),
            by_cursor(cursors.len() - 1),
            by_number(1),
            by_number(last / 2 + 1),
            by_number(last),
        ];
        let figures = self.rounds(&calls).await;
        let took: Vec<String> = figures.iter().map(|turns| format!("{:.2}", median(turns, |turn| turn.took))).collect();
        let last_to_first = ratio(&figures[2], &figures[0], |turn| turn.took);
        println!(
            "  {name}, {total}: first {}, middle {}, last {} ({last_to_first:.2} of the first); by number {}",
            took[0],
            took[1],
            took[2],
            took[3..].join(", "),
        );
    }
}

fn median(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(turns.iter().map(figure).collect())
}

fn ratio(turns: &[Turn], others: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(turns.iter().zip(others).map(|(turn, other)| figure(turn) / figure(other)).collect())
}
