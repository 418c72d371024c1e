//! One tenant of ten breaks, in each way in which a database can: what the nine others notice.
//!
//! The real gateway, under a steady load that does not slow down when answers do: every tenant is asked so many times a
//! second, and an answer's time counts from when its request was due. The tenant that breaks has a Postgres server of
//! its own; the others share one, or have SQLite files. Turns without the trouble and with it alternate, and a ratio is
//! taken between neighbours.

#![expect(clippy::print_stdout, reason = "the tables are the result")]

mod load;
#[path = "../support/rounds.rs"]
mod rounds;
mod trouble;

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
use std::time::Duration;

use load::{Load, Turn};
use rounds::Rounds;
use support::client::Client;
use support::fixture::{Engine, Site};
use support::postgres::Postgres;
use trouble::{Broken, Trouble};

/// How long a turn is. Shorter, and a percentile is of few answers; longer, and the machine changes under it.
const TURN: Duration = Duration::from_secs(5);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 3;

/// How long after a trouble has ended the next turn begins: the broken tenant is back then.
const REST: Duration = Duration::from_millis(2500);

/// What was seen of one trouble, without it and with it.
#[derive(Default)]
struct Figures {
    /// Each tenant's answers, of all rounds.
    tenants: Vec<(Turn, Turn)>,
    /// The 99th percentile of all answers of the nine, once a round.
    without: Rounds,
    with: Rounds,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run());
}

async fn run() {
    let server = Postgres::start();
    let url = server.new_database();
    let site = Site::new().tenant_with("broken", Engine::Sqlite, |tenant| tenant.set("database", url));
    let site = (1..=6).fold(site, |site, n| site.tenant(&format!("postgres-{n}"), Engine::Postgres));
    let site = (1..=3).fold(site, |site, n| site.tenant(&format!("sqlite-{n}"), Engine::Sqlite));
    let site = site.requests_per_minute(100_000).write();
    site.migrate();
    let slugs: Vec<String> = std::iter::once("broken".to_owned())
        .chain((1..=6).map(|n| format!("postgres-{n}")))
        .chain((1..=3).map(|n| format!("sqlite-{n}")))
        .collect();
    for slug in &slugs {
        site.import(slug, include_str!("../../src/cli/demo/acme.ndjson"));
    }
    let node = site.start();
    let clients: Vec<Client> =
        slugs.iter().map(|slug| node.client().to(&site.host(slug)).with(&site.token(slug, "bench"))).collect();
    let mut broken = Broken::new(server, site.database_url("broken")).await;
    let load = Load::new(clients);
    // Not counted: it opens connections.
    load.turn(TURN / 2).await;
    // `cargo bench --bench isolation -- hangs` runs one of them.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for trouble in Trouble::ALL.into_iter().filter(|trouble| trouble.name().contains(&wanted)) {
        let mut figures = Figures { tenants: vec![Default::default(); slugs.len()], ..Figures::default() };
        for _ in 0..ROUNDS {
            let without = load.turn(TURN).await;
            broken.begin(trouble).await;
            let with = load.turn(TURN).await;
            broken.end(trouble).await;
            tokio::time::sleep(REST).await;
            figures.add(&without, &with);
        }
        print(trouble, &slugs, &figures);
    }
}

impl Figures {
    fn add(&mut self, without: &[Turn], with: &[Turn]) {
        let nine = |turns: &[Turn]| {
            let mut all = Turn::default();
            turns[1..].iter().for_each(|turn| all.add(turn));
            all.percentile(99)
        };
        self.without.push(nine(without));
        self.with.push(nine(with));
        for ((tenant, without), with) in self.tenants.iter_mut().zip(without).zip(with) {
            tenant.0.add(without);
            tenant.1.add(with);
        }
    }
}

fn print(trouble: Trouble, slugs: &[String], figures: &Figures) {
    println!("\n{}\n", trouble.name());
    println!("| tenant | p99 ms without | p99 ms with | ratio | answers with |\n| --- | ---: | ---: | ---: | --- |");
    for (slug, (without, with)) in slugs.iter().zip(&figures.tenants) {
        let mut statuses = BTreeMap::<u16, usize>::new();
        with.statuses().for_each(|status| *statuses.entry(status).or_default() += 1);
        let statuses: Vec<String> = statuses.iter().map(|(status, count)| format!("{count} x {status}")).collect();
        let (without, with) = (without.percentile(99), with.percentile(99));
        println!("| {slug} | {without:.1} | {with:.1} | {:.2} | {} |", with / without, statuses.join(", "));
    }
    let (without, with, ratio) =
        (figures.without.median(), figures.with.median(), figures.with.ratio_to(&figures.without));
    let spread = figures.with.spread();
    println!("| the nine together, median of rounds | {without:.1} | {with:.1} | {ratio:.2} | spread {spread:.0} % |");
}
