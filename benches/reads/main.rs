//! The ledger of reads: its size, and how long it takes to say who has read a submission.
//!
//! `cargo bench --bench reads -- 10000000` takes the number of reads. They are of ten tokens on 400 days: half of what a token
//! reads in a day has ids that follow each other, as in the change feed, the rest is scattered over a million, as in searches.

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

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use formgate::store::{
    DatabaseLocation, Day, KEPT_DAYS, NodeChange, ReadKey, ReadSet, Store, Unwritten, UnwrittenReads,
};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::database::Database;
use support::fixture::{Engine, Site};

const TOKENS: i64 = 10;
const SUBMISSIONS: i64 = 1_000_000;

/// How many submissions are asked for.
const ASKED: usize = 100;

#[tokio::main]
async fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let reads: i64 = number.unwrap_or(10_000_000);
    for engine in [Engine::Sqlite, Engine::Postgres] {
        measure(engine, reads).await;
    }
}

async fn measure(engine: Engine, reads: i64) {
    let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).write();
    let token = site.token("acme", "officer");
    let url = site.database_url("acme");
    let location = DatabaseLocation::parse(url, Path::new("/")).expect("a URL of the site");
    let store = Store::open(&location, 2).await.expect("it is migrated");
    let database = Database::connect(url).await;
    let before = size(&database).await;
    let began = Instant::now();
    let written = fill(&store, reads).await;
    let filled = began.elapsed();
    let bytes = size(&database).await - before;
    let [rows] = database.integers("SELECT count(*) FROM submission_reads").await;
    println!("\n{engine:?}: {written} reads in {rows} rows, written in {filled:.1?}");
    println!("  {} MB, {:.2} bytes for each read", bytes / 1_000_000, bytes as f64 / written as f64);

    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let mut random = StdRng::seed_from_u64(2);
    let mut times = Vec::with_capacity(ASKED);
    let mut readers = 0;
    while times.len() < ASKED {
        let path = format!("/api/v1/submission/{}/readers", random.random_range(0..SUBMISSIONS));
        let began = Instant::now();
        let answer = client.get(&path).send().await;
        if answer.status == 200 {
            times.push(began.elapsed());
            readers += answer.json()["data"].as_array().map_or(0, Vec::len);
        }
    }
    times.sort();
    let (median, slowest) = (times[ASKED / 2], times[ASKED - 1]);
    println!(
        "  GET /submission/{{id}}/readers: median {median:.1?}, slowest {slowest:.1?}; {readers} readers of {ASKED}"
    );

    let began = Instant::now();
    let of_token = store.count_token_reads(1, Vec::new()).await.expect("it can be read");
    println!("  the page of a token: {} submissions, {:.1?}", of_token.submissions, began.elapsed());
    let began = Instant::now();
    println!("  audit verify: {:?}, {:.1?}", store.verify_audit().await.expect("it can be read"), began.elapsed());
    assert!(slowest < Duration::from_secs(1), "the goal is a second");
    store.close().await;
    database.close().await;
}

/// Writes each day as a node would, in four parts. Returns how many reads there are.
async fn fill(store: &Store, reads: i64) -> u64 {
    let mut random = StdRng::seed_from_u64(1);
    let (mut written, now) = (0, Timestamp::now());
    let a_day = (reads / TOKENS / KEPT_DAYS).max(2);
    for age in (1..=KEPT_DAYS).rev() {
        let day = Day::of(now - SignedDuration::from_hours(24 * age), &TimeZone::UTC);
        let mut sets: BTreeMap<ReadKey, ReadSet> = BTreeMap::new();
        for token in 1..=TOKENS {
            let first = (KEPT_DAYS - age) * SUBMISSIONS / KEPT_DAYS;
            let following = (first..first + a_day / 2).map(|id| id % SUBMISSIONS);
            let scattered: Vec<i64> = (0..a_day / 2).map(|_| random.random_range(0..SUBMISSIONS)).collect();
            for id in following.chain(scattered) {
                sets.entry(ReadKey::new(day, token, id)).or_default().insert(id, Some(1 + id % 20));
            }
        }
        written += sets.values().map(ReadSet::len).sum::<u64>();
        let tomorrow = Day::of(now - SignedDuration::from_hours(24 * (age - 1)), &TimeZone::UTC);
        let reads: Vec<_> = sets.into_iter().collect();
        for part in reads.chunks(reads.len().div_ceil(4)) {
            let unwritten = UnwrittenReads {
                reads: part.to_vec(),
                node: "bench".to_owned(),
                change: NodeChange::Touch,
                lost: None,
                today: day,
                over_before: if age == 1 { tomorrow } else { day },
            };
            let unwritten = Unwritten { reads: Some(unwritten), ..Unwritten::default() };
            store.write_behind(&unwritten, Timestamp::now()).await.expect("it can be written");
        }
    }
    written
}

/// The bytes that the ledger takes, with its indexes; on SQLite those of the whole file.
async fn size(database: &Database) -> i64 {
    let query = match database {
        Database::Postgres(_) => "SELECT pg_total_relation_size('submission_reads')",
        Database::Sqlite(_) => {
            "SELECT (SELECT page_count FROM pragma_page_count()) * (SELECT page_size FROM pragma_page_size())"
        }
    };
    let [bytes] = database.integers(query).await;
    bytes
}
