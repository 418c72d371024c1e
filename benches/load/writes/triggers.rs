//! What the triggers of the schema, which note what was written, cost a program that writes by SQL.
//!
//! Two databases take turns: without triggers, and with them. Figures are CPU time of the database: on Postgres that of the
//! backend, on SQLite that of the thread on which sqlx runs SQLite. The kernel counts both in nanoseconds.

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use crate::bench::Bench;
use crate::data::{self, Engine};
use crate::postgres::Postgres;
use crate::process;
use crate::report::{self, Goal};
use crate::rounds::Rounds;
use crate::site::Site;

/// How often a statement runs before the other database has its turn.
///
/// Larger: the machine changes between the turns of a round. Smaller: the kernel's count of CPU time lags behind by more
/// of a turn.
const STATEMENTS: i64 = 100;

/// The number of the first submission. Each round writes the next ones.
const FIRST: i64 = 1_000;

/// A form with a field, and a label.
const ROWS: &str = "INSERT INTO forms (id, name) VALUES (1, 'Holidays'); INSERT INTO labels (id, name) VALUES (1, 'Urgent'); \
    INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (1, 1, 1, 'gid 1', 'Which week?', 'text')";

/// In a statement, `{now}` is an instant, and `{second}` an interval. The first one shows what a round trip costs in the
/// other rows.
const COMPARED: [(&str, &str); 6] = [
    ("`SELECT` of a number", "SELECT $1"),
    (
        "`INSERT` of a submission",
        "INSERT INTO submissions (id, form_id, status, created_at, updated_at) SELECT $1, 1, 'pending', {now}, {now}",
    ),
    (
        "`INSERT` of an answer",
        "INSERT INTO answers (submission_id, element_id, value, updated_at) \
         SELECT $1, 1, 'Please book the second week of July for the team of ' || ($1 * 7919 % 10007), {now}",
    ),
    ("`INSERT` of a label", "INSERT INTO submission_labels (submission_id, label_id) SELECT $1, 1"),
    (
        "`UPDATE` of a submission",
        "UPDATE submissions SET status = 'approved', updated_at = updated_at + {second} WHERE id = $1",
    ),
    (
        "`UPDATE` of an answer",
        "UPDATE answers SET value = value || ', or the third', updated_at = updated_at + {second} \
         WHERE submission_id = $1 AND element_id = 1",
    ),
];

/// Statements that return those that drop all triggers except those of foreign keys.
const DROPS: [&str; 2] = [
    "SELECT string_agg(format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass), ';') FROM pg_trigger WHERE NOT tgisinternal",
    "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_schema WHERE type = 'trigger'",
];

pub(super) fn measure(bench: &Bench, postgres: &Postgres) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    println!("\nOne statement, µs of CPU of the database (load {})\n", process::load());
    println!("| database | statement | without triggers | with them | ratio | spread |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for (engine, drop) in Engine::BOTH.into_iter().zip(DROPS) {
        let (site, name) = (Site::make(0)?, engine.name());
        let mut writers = Vec::new();
        for database in ["load_bare", "load_noted"] {
            let url = engine.empty(postgres, &site, database)?;
            data::migrated(&site, "writing", &url)?;
            writers.push(runtime.block_on(Writer::connect(&url, database))?);
        }
        let figures = runtime.block_on(compare(engine, &mut writers, drop, bench.rounds))?;
        for ((statement, _), [bare, noted]) in COMPARED.iter().zip(&figures) {
            let (least, took, ratio, spread) = (bare.median(), noted.median(), noted.ratio_to(bare), noted.spread());
            println!("| {name} | {statement} | {least:.0} | {took:.0} | {ratio:.2} | {spread:.0} % |");
        }
        let [bare, noted] = &figures[2];
        goals.push(Goal::at_most(
            2.0,
            format!("INSERT of an answer, with triggers : without, {name}"),
            noted.ratio_to(bare),
        ));
    }
    report::print_goals(&goals);
    Ok(())
}

async fn compare(
    engine: Engine,
    writers: &mut [Writer],
    drop: &'static str,
    rounds: usize,
) -> anyhow::Result<[[Rounds; 2]; COMPARED.len()]> {
    let drop = writers[0].text(drop).await?;
    writers[0].execute(&drop).await?;
    for writer in &mut *writers {
        writer.execute(ROWS).await?;
    }
    let (now, second) = match engine {
        Engine::Postgres => ("timestamptz '2026-01-01 00:00:00Z'", "interval '1 second'"),
        Engine::Sqlite => ("1767225600000000", "1000000"),
    };
    let mut figures = COMPARED.map(|_| [(); 2].map(|()| Rounds::default()));
    let mut first = FIRST;
    // The first round prepares the statements.
    for round in 0..=rounds {
        for ((_, statement), figures) in COMPARED.iter().zip(&mut figures) {
            // A parameter has one type only.
            let number = if engine.name() == "postgres" { "$1::bigint" } else { "$1" };
            let statement = statement.replace("$1", number).replace("{now}", now).replace("{second}", second);
            for (writer, figures) in writers.iter_mut().zip(figures) {
                let began = writer.cpu()?;
                for row in first..first + STATEMENTS {
                    writer.execute_prepared(&statement, row).await?;
                }
                let took = writer.cpu()?.saturating_sub(began);
                if round > 0 {
                    figures.push(took.as_secs_f64() * 1e6 / STATEMENTS as f64);
                }
            }
        }
        first += STATEMENTS;
    }
    Ok(figures)
}

/// A connection, and where the kernel counts the CPU time that the database spends on it.
struct Writer {
    connection: Connection,
    schedstat: PathBuf,
}

enum Connection {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Writer {
    async fn connect(url: &str, thread: &'static str) -> anyhow::Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            // As formgate opens it.
            let options = SqliteConnectOptions::new()
                .filename(path)
                .foreign_keys(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Normal)
                .thread_name(move |_| thread.to_owned());
            let connection = SqliteConnection::connect_with(&options).await?;
            return Ok(Self { connection: Connection::Sqlite(connection), schedstat: schedstat_of_thread(thread)? });
        }
        let mut connection = PgConnection::connect(url).await?;
        let id: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        Ok(Self { connection: Connection::Postgres(connection), schedstat: format!("/proc/{id}/schedstat").into() })
    }

    /// The CPU time so far.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let text =
            fs::read_to_string(&self.schedstat).context("the kernel does not count the CPU time of processes")?;
        let run = text.split(' ').next().context("the first number is the time on a CPU")?;
        Ok(Duration::from_nanos(run.parse()?))
    }

    /// Runs statements without parameters.
    async fn execute(&mut self, statements: &str) -> sqlx::Result<()> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        match &mut self.connection {
            Connection::Postgres(connection) => statements.execute(connection).await.map(drop),
            Connection::Sqlite(connection) => statements.execute(connection).await.map(drop),
        }
    }

    /// Runs a statement that stays prepared, in a transaction of its own.
    async fn execute_prepared(&mut self, statement: &str, parameter: i64) -> sqlx::Result<()> {
        let statement = AssertSqlSafe(statement.to_owned());
        match &mut self.connection {
            Connection::Postgres(connection) => {
                sqlx::query(statement).bind(parameter).execute(connection).await.map(drop)
            }
            Connection::Sqlite(connection) => {
                sqlx::query(statement).bind(parameter).execute(connection).await.map(drop)
            }
        }
    }

    /// The text that a query returns.
    async fn text(&mut self, query: &'static str) -> sqlx::Result<String> {
        match &mut self.connection {
            Connection::Postgres(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
            Connection::Sqlite(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
        }
    }
}

fn schedstat_of_thread(name: &str) -> anyhow::Result<PathBuf> {
    let threads = fs::read_dir("/proc/self/task")?.collect::<io::Result<Vec<_>>>()?;
    let is_named = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim_end() == name);
    let thread = threads.iter().map(fs::DirEntry::path).find(is_named).context("sqlx names the thread of SQLite")?;
    Ok(thread.join("schedstat"))
}
