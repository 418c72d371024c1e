//! An import, beside the least that the same rows can be loaded for: into tables and indexes that are the same, and into
//! those that a team would have without a keyword search of its own.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::{Connection, Executor, SqliteConnection};

use crate::bench::{Bench, number};
use crate::data::{self, Engine};
use crate::postgres::Postgres;
use crate::process::checked;
use crate::report::{self, Goal};
use crate::rounds::Rounds;
use crate::site::Site;
use crate::{generate, process};

const SUBMISSIONS: i64 = 100_000;

/// So many rows stand in one statement of the bare inserts: what a statement costs by itself is spread over them.
const ROWS: usize = 50;

pub(super) fn measure(bench: &Bench, postgres: &Postgres) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let submissions = number("SUBMISSIONS", SUBMISSIONS)?;
    let site = Site::make(0)?;
    let (lines, rows) = (site.folder.path().join("lines"), tempfile::tempdir_in(site.folder.path())?);
    generate::write(&mut io::BufWriter::new(File::create(&lines)?), submissions)?;
    let read = |out: &mut io::BufWriter<_>| io::copy(&mut File::open(&lines)?, out).map(drop);
    let mut figures = [(); 2].map(|()| [(); 3].map(|()| Rounds::default()));
    for _ in 0..bench.rounds {
        for (engine, [ours, bare, plain]) in Engine::BOTH.into_iter().zip(&mut figures) {
            let url = engine.empty(postgres, &site, "load_ours")?;
            let config = data::migrated(&site, "importing", &url)?;
            ours.push(data::import(&config, "importing", read)?.as_secs_f64());
            let empty = |name| engine.empty(postgres, &site, name);
            let (into_same, into_plain) = match engine {
                Engine::Postgres => {
                    data::save(postgres, "load_ours", rows.path())?;
                    empty("load_bare")?;
                    let same = restore(postgres, &site, "load_ours", "load_bare")?;
                    empty("load_bare")?;
                    (same, data::copy(postgres, rows.path(), "load_bare")?)
                }
                Engine::Sqlite => {
                    let target = empty("load_bare")?;
                    data::migrated(&site, "bare", &target)?;
                    let same = runtime.block_on(insert_same(&url, &target))?;
                    (same, runtime.block_on(insert_plain(rows.path(), &empty("load_bare")?))?)
                }
            };
            bare.push(into_same.as_secs_f64());
            plain.push(into_plain.as_secs_f64());
        }
    }
    println!("\nImport of {submissions} submissions with 8 answers, seconds (load {})\n", process::load());
    println!("| database | formgate import | bare | speed to bare | spread | plain tables | speed to them |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for (name, [ours, bare, plain]) in ["Postgres: COPY and indexes", "SQLite: inserts"].into_iter().zip(&figures) {
        let (speed, spread) = (bare.ratio_to(ours), ours.spread());
        let (took, least, plainly) = (ours.median(), bare.median(), plain.median());
        println!(
            "| {name} | {took:.1} | {least:.1} | {speed:.2} | {spread:.0} % | {plainly:.1} | {:.2} |",
            plain.ratio_to(ours)
        );
        goals.push(Goal::at_least(0.5, format!("speed of import, {name}"), speed));
    }
    report::print_goals(&goals);
    Ok(())
}

/// Dumps a Postgres database and restores it into an empty one, which is `COPY` and then the building of each index and
/// foreign key; how long the restoring took.
fn restore(postgres: &Postgres, site: &Site, from: &str, to: &str) -> anyhow::Result<Duration> {
    let folder = tempfile::tempdir_in(site.folder.path())?;
    let dump = folder.path().join("dump");
    let mut command = postgres.program("pg_dump");
    command.args(["--format=directory", "--compress=0"]).arg("--file").arg(&dump);
    checked(command.arg("--dbname").arg(postgres.url(from)))?;
    let began = Instant::now();
    checked(postgres.program("pg_restore").arg("--dbname").arg(postgres.url(to)).arg(&dump))?;
    Ok(began.elapsed())
}

/// Inserts the rows of a gateway's SQLite file into another one, documents included, as they come: a statement a table, in
/// one transaction; how long that took.
async fn insert_same(from: &str, to: &str) -> anyhow::Result<Duration> {
    let mut connection = SqliteConnection::connect(to).await?;
    connection.execute("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536; PRAGMA foreign_keys = ON").await?;
    let from = from.trim_start_matches("sqlite:");
    sqlx::query("ATTACH $1 AS loaded").bind(from).execute(&mut connection).await?;
    let began = Instant::now();
    let mut all = connection.begin().await?;
    let derived = ["listed_submissions", "listed_documents", "listed_terms", "listed_by_label", "listed_counts"];
    for table in data::TABLES.map(|(table, _)| table).into_iter().chain(derived) {
        let text = format!("INSERT INTO main.{table} SELECT * FROM loaded.{table}");
        all.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text))).await?;
    }
    all.execute("INSERT INTO main.listed_trigrams (listed_trigrams) VALUES ('rebuild'); DELETE FROM main.intake")
        .await?;
    all.commit().await?;
    Ok(began.elapsed())
}

/// Inserts saved rows into a SQLite file whose tables have their keys and nothing else, in one transaction of prepared
/// statements; how long that took.
async fn insert_plain(rows: &Path, url: &str) -> anyhow::Result<Duration> {
    let mut connection = SqliteConnection::connect(&format!("{url}?mode=rwc")).await?;
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL").await?;
    let began = Instant::now();
    let mut all = connection.begin().await?;
    for (table, columns) in data::TABLES {
        let names: Vec<&str> = columns.split(", ").collect();
        // The tables of pairs are keyed by both.
        let key = if names[0] == "id" { "id INTEGER PRIMARY KEY, " } else { "" };
        let rest = if key.is_empty() { columns } else { columns.trim_start_matches("id, ") };
        let pair = if key.is_empty() { format!(", PRIMARY KEY ({}, {})", names[0], names[1]) } else { String::new() };
        let create = sqlx::AssertSqlSafe(format!("CREATE TABLE {table} ({key}{rest}{pair})"));
        all.execute(sqlx::raw_sql(create)).await?;
        let lines = BufReader::new(File::open(rows.join(table))?).lines().collect::<io::Result<Vec<_>>>()?;
        for lines in lines.chunks(ROWS) {
            let row = format!("({})", vec!["?"; names.len()].join(", "));
            let text = format!("INSERT INTO {table} ({columns}) VALUES {}", vec![row; lines.len()].join(", "));
            let values = lines.iter().flat_map(|line| line.split('\t'));
            let statement = sqlx::query(sqlx::AssertSqlSafe(text));
            values.fold(statement, sqlx::query::Query::bind).execute(&mut *all).await?;
        }
    }
    all.commit().await?;
    Ok(began.elapsed())
}
