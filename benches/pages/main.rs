//! Reads of submissions: what `fields` saves, and whether the last page by cursor costs what the first does.
//!
//! `cargo bench --bench pages -- 100000` takes the number of submissions. Each has one answer, the first and the last thousand
//! have 12; half of them have the same instant of their last change, as an import gives them. One caller asks one request after another. In each round all take a
//! turn; a figure is a median over the rounds, and a ratio is taken within a round before its median. CPU is that of the node
//! and of the database's sessions.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

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

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::answer::Answer;
use support::client::Client;
use support::database::Database;
use support::fixture::{Engine, Site};

/// How often all take a turn, and how many requests one has.
const ROUNDS: usize = 7;
const REQUESTS: usize = 40;

/// The kernel counts CPU in these.
const TICKS_A_SECOND: f64 = 100.0;

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
    for engine in [Engine::Sqlite, Engine::Postgres] {
        measure(engine, number.unwrap_or(100_000)).await;
    }
}

async fn measure(engine: Engine, submissions: i64) {
    let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).write();
    let token = site.token("acme", "reader");
    let database = Database::connect(site.database_url("acme")).await;
    fill(&database, engine, submissions).await;
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let world = World { client, database, node: node.id() };
    let since = Instant::now();
    while world.ask(&Call::search("", "page=1", json!({}))).await.status != 200 {
        assert!(since.elapsed() < Duration::from_secs(900), "the search tables are derived from the background");
    }
    world.database.execute(if engine == Engine::Postgres { "VACUUM ANALYZE" } else { "ANALYZE" }).await;

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

fn cpu_of(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything: the fields 14 and 15 of all are those of user and system time.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) * 1000.0 / TICKS_A_SECOND
}

fn median(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(turns.iter().map(figure).collect())
}

fn ratio(turns: &[Turn], others: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    middle(turns.iter().zip(others).map(|(turn, other)| figure(turn) / figure(other)).collect())
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// 20 forms with 12 elements each, from 101 on for the first, 20 labels, and submissions a minute apart.
async fn fill(database: &Database, engine: Engine, submissions: i64) {
    let numbers = |name: &str, to: i64| match engine {
        Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {to}) AS {name} ({name})"),
        Engine::Sqlite => format!(
            "(WITH RECURSIVE r ({name}) AS (SELECT 1 UNION ALL SELECT {name} + 1 FROM r WHERE {name} < {to}) SELECT {name} FROM r)"
        ),
    };
    let at = |minutes: &str| match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            format!("timestamptz '2024-01-01T00:00:00Z' + ({minutes}) * interval '1 minute'")
        }
        Engine::Sqlite => format!("1704067200000000 + ({minutes}) * 60000000"),
    };
    let (created, updated) = (at("i"), at(&format!("CASE WHEN i < {} THEN 0 ELSE i END", submissions / 2)));
    for statement in [
        format!("INSERT INTO labels (id, name) SELECT i, 'Label ' || i FROM {}", numbers("i", 20)),
        format!("INSERT INTO forms (id, name) SELECT i, 'Form ' || i FROM {}", numbers("i", 20)),
        format!(
            "INSERT INTO elements (id, form_id, position, gid, name, type) \
             SELECT i * 100 + e, i, e, '00000000-0000-4000-8000-000000000001', 'Question number ' || e, 'text' FROM {}, {}",
            numbers("i", 20),
            numbers("e", 12)
        ),
        format!(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
             SELECT i, 1 + i % 20, CASE WHEN i % 100 = 0 THEN 'info' ELSE 'pending' END, {created}, {updated} FROM {}",
            numbers("i", submissions)
        ),
        format!(
            "INSERT INTO answers (submission_id, element_id, value, updated_at) \
             SELECT i, (1 + i % 20) * 100 + e, CASE WHEN e = 1 AND i % 100 = 3 THEN 'A rare answer ' ELSE 'The answer to it is this: ' END || i, {updated} FROM {}, {} \
             WHERE e = 1 OR i <= 1000 OR i > {}",
            numbers("i", submissions),
            numbers("e", 12),
            submissions - 1000
        ),
        format!(
            "INSERT INTO submission_labels (submission_id, label_id) SELECT i, 1 + i % 20 FROM {}",
            numbers("i", submissions)
        ),
    ] {
        database.execute(&statement).await;
    }
}
