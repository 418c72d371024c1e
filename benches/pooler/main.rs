//! What a PgBouncer between a node and Postgres costs a call of the store, in both of its modes, next to a direct
//! connection.
//!
//! All ways lead to one database and take turns within a round. Without the edge and the gate.

#![expect(clippy::print_stdout, reason = "the table is the result")]

#[path = "../support/rounds.rs"]
mod rounds;

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

use std::path::Path;
use std::time::{Duration, Instant};

use formgate::store::filter::{Keyword, SubmissionFilter};
use formgate::store::{DatabaseLocation, PageRequest, Store};
use futures_util::future::try_join_all;
use rounds::Rounds;
use support::fixture::{Engine, Site};
use support::pgbouncer::{PgBouncer, REFUSES};
use support::postgres::Postgres;

/// How long a call is repeated in a round. Shorter, and opening connections shows; longer, and the machine changes.
const TURN: Duration = Duration::from_millis(400);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 7;

/// How many callers there are at once: as many as one, and more than connections.
const CONCURRENCIES: [usize; 2] = [1, 16];

#[derive(Clone, Copy, Debug)]
enum Call {
    FindToken,
    ListForms,
    Search,
}

impl Call {
    async fn run(self, store: &Store) -> anyhow::Result<()> {
        let page = PageRequest { number: 1.try_into()?, size: 20 };
        match self {
            Self::FindToken => drop(store.find_token(&[7; 32], jiff::Timestamp::now()).await?),
            Self::ListForms => drop(store.list_forms(page).await?),
            Self::Search => {
                let filter = SubmissionFilter { search: Keyword::new("holiday"), ..SubmissionFilter::default() };
                store.search(&filter, page).await?.submissions.read()?;
            }
        }
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare())
}

async fn compare() -> anyhow::Result<()> {
    let database = Postgres::database();
    let site =
        Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", database.as_str())).write();
    site.migrate();
    site.import("acme", include_str!("../../src/cli/demo/acme.ndjson"));
    let (session, transaction) = (PgBouncer::start("session", REFUSES), PgBouncer::start("transaction", REFUSES));
    let urls = [
        ("direct", database.clone()),
        ("direct, as through transaction mode", format!("{database}?pooler=transaction")),
        ("PgBouncer, session mode", session.url(&database, "?pooler=session")),
        ("PgBouncer, transaction mode", transaction.url(&database, "?pooler=transaction")),
    ];
    let mut ways = Vec::new();
    for (name, url) in urls {
        // As many connections as the pooler has to the server.
        ways.push((name, Store::open(&DatabaseLocation::parse(&url, Path::new("."))?, 3).await?));
    }
    println!("| call | callers | way | µs a call | x direct | spread |");
    println!("| --- | ---: | --- | ---: | ---: | ---: |");
    for call in [Call::FindToken, Call::ListForms, Call::Search] {
        for callers in CONCURRENCIES {
            let mut figures: Vec<_> = ways.iter().map(|_| Rounds::default()).collect();
            // The first round opens connections.
            for round in 0..=ROUNDS {
                for ((_, store), figures) in ways.iter().zip(&mut figures) {
                    let took = turn(store, call, callers).await?;
                    if round > 0 {
                        figures.push(took);
                    }
                }
            }
            for ((name, _), took) in ways.iter().zip(&figures) {
                let (median, ratio, spread) = (took.median(), took.ratio_to(&figures[0]), took.spread());
                println!("| {call:?} | {callers} | {name} | {median:.0} | {ratio:.2} | {spread:.0} % |");
            }
        }
    }
    Ok(())
}

/// Microseconds a call: of the time of all callers together.
async fn turn(store: &Store, call: Call, callers: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let calls = (0..callers).map(async |_| {
        let mut calls = 0;
        while began.elapsed() < TURN {
            call.run(store).await?;
            calls += 1;
        }
        anyhow::Ok(calls)
    });
    let calls: u32 = try_join_all(calls).await?.into_iter().sum();
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}
