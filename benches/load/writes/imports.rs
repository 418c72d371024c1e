//! An import, beside the least that the same rows can be loaded for.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::{Connection, Executor, SqliteConnection};

use crate::data::{self, Engine};
use crate::postgres::Postgres;
use crate::report::{self, Goal};
use crate::rounds::Rounds;
use crate::site::Site;
use crate::{Bench, generate, number, process};

const SUBMISSIONS: i64 = 100_000;

/// So many rows stand in one statement of the bare inserts: what a statement costs by itself is spread over them.
const ROWS: usize = 50;

pub(super) fn measure(bench: &Bench, postgres: &Postgres) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let submissions = number("SUBMISSIONS", SUBMISSIONS)?;
    let site = Site::make(0)?;
    let (lines, rows) = (site.folder().join("lines"), tempfile::tempdir_in(site.folder())?);
    generate::write(&mut io::BufWriter::new(File::create(&lines)?), submissions)?;
    let read = |out: &mut io::BufWriter<_>| io::copy(&mut File::open(&lines)?, out).map(drop);
    let mut figures = [(); 4].map(|()| Rounds::default());
    for round in 0..bench.rounds {
        for (engine, figures) in Engine::BOTH.into_iter().zip(figures.chunks_mut(2)) {
            let ours = engine.empty(postgres, &site, "load_ours")?;
            let config = data::migrated(&site, "importing", &ours)?;
            figures[0].push(data::import(&config, "importing", read)?.as_secs_f64());
            let bare = engine.empty(postgres, &site, "load_bare")?;
            figures[1].push(match engine {
                Engine::Postgres => {
                    if round == 0 {
                        data::save(postgres, "load_ours", rows.path())?;
                    }
                    data::copy(postgres, rows.path(), "load_bare")?.as_secs_f64()
                }
                Engine::Sqlite => runtime.block_on(insert(rows.path(), &bare))?.as_secs_f64(),
            });
        }
    }
    let [ours, copied, ours_sqlite, inserted] = &figures;
    println!("\nImport of {submissions} submissions with 8 answers, seconds (load {})\n", process::load());
    println!("| database | formgate import | bare | speed to bare | spread |\n| --- | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for (name, ours, bare) in [("Postgres: COPY and indexes", ours, copied), ("SQLite: inserts", ours_sqlite, inserted)]
    {
        let (speed, spread) = (bare.ratio_to(ours), ours.spread());
        println!("| {name} | {:.1} | {:.1} | {speed:.2} | {spread:.0} % |", ours.median(), bare.median());
        goals.push(Goal::at_least(0.5, format!("speed of import, {name}"), speed));
    }
    report::print_goals(&goals);
    Ok(())
}

/// Inserts saved rows into a SQLite file whose tables have their keys and nothing else, in one transaction of prepared
/// statements; how long that took.
async fn insert(rows: &Path, url: &str) -> anyhow::Result<Duration> {
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
