//! What grows with what is stored: the lists of an account with few rows and of one with many, in turns, without the edge
//! and the gate.
//!
//! Next to each call stands what it did before: the statements that count rows and skip them one by one. `cargo bench
//! --bench growth -- /group` measures only the calls with this in their names.

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

use formgate::store::filter::SubmissionFilter;
use formgate::store::{self, DatabaseLocation, GroupFilter, PageRequest, Reach, Store, StoreError};
use rounds::Rounds;
use support::database::Database;
use support::fixture::Engine;

/// How long a call is repeated in a round, at least twice. Shorter, and one pause of the machine shows.
const TURN: Duration = Duration::from_millis(150);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 5;

/// How many forms and groups the accounts have, and how many sub-forms each of the first three; ten times as many users,
/// and half as many members in group 1.
const SIZES: [u64; 2] = [1_000, 100_000];

/// The forms with sub-forms: without submissions, with 50, and with one for each sub-form; and a form without sub-forms.
const NONE: i64 = 1;
const FEW: i64 = 2;
const EACH: i64 = 3;
const PLAIN: i64 = 4;

/// The built-in group.
const ALL_USERS: i64 = 9_007_199_254_740_991;

struct Account {
    store: Store,
    plain: Database,
    size: u64,
}

#[derive(Clone, Copy)]
enum Call {
    Forms(fn(u64) -> u64),
    Groups(fn(u64) -> u64),
    Members(i64, fn(u64) -> u64),
    /// A first page of a form and its sub-forms.
    Search(i64),
}

const CALLS: [(&str, Call); 10] = [
    ("GET /form, first page", Call::Forms(|_| 1)),
    ("GET /form, middle page", Call::Forms(|size| size / 200)),
    ("GET /group, first page", Call::Groups(|_| 1)),
    ("GET /group, last page", Call::Groups(|size| size / 100 + 1)),
    ("GET /group/{id}?page=1, built-in", Call::Members(ALL_USERS, |_| 1)),
    ("GET /group/{id}?page=1, an ordinary group", Call::Members(1, |_| 1)),
    ("POST /submission, a form without sub-forms", Call::Search(PLAIN)),
    ("POST /submission, a form with sub-forms and no submission", Call::Search(NONE)),
    ("POST /submission, with few submissions", Call::Search(FEW)),
    ("POST /submission, with submissions of each sub-form", Call::Search(EACH)),
];

impl Call {
    async fn run(self, account: &Account) -> anyhow::Result<()> {
        let (store, size) = (&account.store, account.size);
        let page = |number: u64, size| PageRequest { number: number.max(1).try_into().expect("not 0"), size };
        match self {
            Self::Forms(number) => drop(store.list_forms(page(number(size), 100)).await?),
            Self::Groups(number) => drop(store.list_groups(&GroupFilter::default(), page(number(size), 100)).await?),
            Self::Members(id, number) => drop(store.find_group_page(id, page(number(size), 1_000)).await?),
            Self::Search(form) => {
                let filter = SubmissionFilter { forms: vec![form], ..SubmissionFilter::default() };
                drop(store.search(&filter, page(1, 20)).await?);
            }
        }
        Ok(())
    }

    /// The statement that did the same before, or the greater part of it.
    async fn run_as_before(self, account: &Account) {
        let (size, database) = (account.size, &account.plain);
        let listed = "forms WHERE NOT disabled AND parent_id IS NULL";
        let statement = match self {
            Self::Forms(number) => format!(
                "SELECT (SELECT count(*) FROM {listed}), (SELECT max(id) FROM (SELECT id FROM {listed} ORDER BY id LIMIT 100 OFFSET {}) AS page)",
                (number(size).max(1) - 1) * 100
            ),
            Self::Groups(number) => format!(
                "SELECT (SELECT count(*) FROM groups), (SELECT max(n) FROM (SELECT CASE WHEN g.built_in THEN (SELECT count(*) FROM users) \
                 ELSE (SELECT count(*) FROM group_members m WHERE m.group_id = g.id) END AS n \
                 FROM (SELECT * FROM groups ORDER BY id LIMIT 100 OFFSET {}) AS g) AS page)",
                (number(size).max(1) - 1) * 100
            ),
            Self::Search(form) => format!(
                "SELECT count(*), CAST(coalesce(sum(listed), 0) AS bigint) FROM listed_counts WHERE counted = 'form' AND key IN \
                 (WITH RECURSIVE wanted (id) AS (SELECT id FROM forms WHERE id = {form} \
                 UNION SELECT f.id FROM forms f JOIN wanted ON f.parent_id = wanted.id) SELECT id FROM wanted)"
            ),
            Self::Members(..) => return,
        };
        database.integers::<2>(&statement).await;
    }

    fn was_different(self) -> bool {
        !matches!(self, Self::Members(..))
    }

    /// Adds what only this call needs, because others would cost more with it.
    async fn prepare(self, account: &Account, engine: Engine) -> anyhow::Result<()> {
        let each = match self {
            Self::Search(FEW) => "id % (SELECT count(*) / 50 FROM forms WHERE parent_id = 2) = 0 AND parent_id = 2",
            Self::Search(EACH) => "parent_id = 3",
            _ => return Ok(()),
        };
        let at = if engine == Engine::Sqlite { "1704067200000000 + id" } else { "now() - id * interval '1 second'" };
        let columns = "form_id, status, created_at, updated_at";
        let insert =
            format!("INSERT INTO submissions ({columns}) SELECT id, 'pending', {at}, {at} FROM forms WHERE {each}");
        account.plain.execute(&insert).await;
        let page = PageRequest { number: 1.try_into()?, size: 1 };
        while let Err(error) = account.store.search(&SubmissionFilter::default(), page).await {
            anyhow::ensure!(matches!(error, StoreError::Unsettled), error);
        }
        account.plain.execute(analyze(engine)).await;
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        println!("| call | engine | small ms | large ms | large : small | before, large : small | spread |");
        println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
        for engine in [Engine::Sqlite, Engine::Postgres] {
            compare(engine).await?;
        }
        Ok(())
    })
}

async fn compare(engine: Engine) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let [small, large] = SIZES;
    let (small, large) = (filled(engine, folder.path(), small).await?, filled(engine, folder.path(), large).await?);
    let named: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_named = |name: &str| named.is_empty() || named.iter().any(|part| name.contains(part));
    for (name, call) in CALLS.into_iter().filter(|(name, _)| is_named(name)) {
        call.prepare(&small, engine).await?;
        call.prepare(&large, engine).await?;
        let [mut at_small, mut at_large, mut before_small, mut before_large] = [(); 4].map(|()| Rounds::default());
        // The first round opens connections, and reads what no cache has yet.
        for round in 0..=ROUNDS {
            for (account, now, before) in
                [(&small, &mut at_small, &mut before_small), (&large, &mut at_large, &mut before_large)]
            {
                let took = turn(async || call.run(account).await).await?;
                let took_before = turn(async || {
                    call.run_as_before(account).await;
                    Ok(())
                })
                .await?;
                if round > 0 {
                    now.push(took);
                    before.push(took_before);
                }
            }
        }
        let before =
            if call.was_different() { format!("{:.1}", before_large.ratio_to(&before_small)) } else { "-".into() };
        let (few, many, ratio) = (at_small.median(), at_large.median(), at_large.ratio_to(&at_small));
        println!("| {name} | {engine:?} | {few:.2} | {many:.2} | {ratio:.2} | {before} | {:.0} % |", at_large.spread());
    }
    small.store.close().await;
    large.store.close().await;
    Ok(())
}

/// Milliseconds a call.
async fn turn(mut call: impl AsyncFnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let (start, mut runs) = (Instant::now(), 0);
    while runs < 2 || (start.elapsed() < TURN && runs < 1000) {
        call().await?;
        runs += 1;
    }
    Ok(start.elapsed().as_secs_f64() * 1000.0 / f64::from(runs))
}

async fn filled(engine: Engine, folder: &Path, size: u64) -> anyhow::Result<Account> {
    let url = engine.database(folder, &format!("of-{size}"));
    let location = DatabaseLocation::parse(&url, folder)?;
    store::migrate(&location, Reach::Newest).await?;
    let plain = Database::connect(&url).await;
    let numbers = |to: u64| match engine {
        Engine::Sqlite => {
            format!(
                "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {to}) SELECT i FROM n) AS n"
            )
        }
        Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {to}::bigint) AS n (i)"),
    };
    for statement in [
        format!("INSERT INTO forms (id, name) SELECT i, 'Form ' || i FROM {}", numbers(size)),
        format!(
            "INSERT INTO forms (id, name, parent_id) SELECT {size} + i, 'Below ' || i, 1 + i % 3 FROM {}",
            numbers(3 * size)
        ),
        format!("INSERT INTO groups (id, name, managed) SELECT i, 'Group ' || i, i % 2 = 0 FROM {}", numbers(size)),
        format!(
            "INSERT INTO users (id, email) SELECT i, 'u' || (i * 7919 % 10000019) || '@x.example' FROM {}",
            numbers(10 * size)
        ),
        format!("INSERT INTO group_members (group_id, user_id) SELECT 1, 2 * i FROM {}", numbers(size / 2)),
        format!(
            "INSERT INTO group_members (group_id, user_id) SELECT 2 + i % ({size} - 1), 1 + i FROM {}",
            numbers(size)
        ),
    ] {
        plain.execute(&statement).await;
    }
    let store = Store::open(&location, 2).await?;
    // As in a database that has been in use: all is counted, and the planner knows how many there are.
    while plain.integers("SELECT count(*) FROM stale_counts").await != [0] {
        drop(store.list_groups(&GroupFilter::default(), PageRequest { number: 1.try_into()?, size: 1 }).await?);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    plain.execute(analyze(engine)).await;
    Ok(Account { store, plain, size })
}

fn analyze(engine: Engine) -> &'static str {
    if engine == Engine::Sqlite { "PRAGMA analysis_limit = 1000; ANALYZE" } else { "VACUUM ANALYZE" }
}
