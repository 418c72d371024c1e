//! How much SQL the schema is, and what a new connection to a SQLite file pays for parsing it.

use std::time::Instant;

use sqlx::{Connection, SqliteConnection};

use crate::database::{Databases, Engine};
use crate::rounds::Rounds;
use crate::writer::sqlite;

/// How many connections are opened before another file has its turn.
///
/// Larger: the machine changes between the turns of a round. Smaller: one pause of the machine shows.
const OPENED: u32 = 20;

/// Larger: the bench takes longer. Smaller: medians repeat less well. An odd number, so that a median is one of the rounds.
const ROUNDS: usize = 15;

/// How large the schema is.
const SIZES: [(Engine, &str, &str); 5] = [
    (Engine::Postgres, "triggers", "SELECT count(*)::text FROM pg_trigger WHERE NOT tgisinternal"),
    (
        Engine::Postgres,
        "lines of functions",
        "SELECT sum(length(p.prosrc) - length(replace(p.prosrc, chr(10), '')) + 1)::text \
            FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace \
            AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')",
    ),
    (Engine::Sqlite, "triggers", "SELECT CAST(count(*) AS TEXT) FROM sqlite_schema WHERE type = 'trigger'"),
    (
        Engine::Sqlite,
        "lines of triggers",
        "SELECT CAST(sum(length(sql) - length(replace(sql, char(10), '')) + 1) AS TEXT) \
            FROM sqlite_schema WHERE type = 'trigger'",
    ),
    (Engine::Sqlite, "characters of the schema", "SELECT CAST(sum(length(sql)) AS TEXT) FROM sqlite_schema"),
];

pub(crate) async fn print(postgres: &mut Databases, sqlite: &mut Databases) -> anyhow::Result<()> {
    println!("| database | what | noted |");
    println!("| --- | --- | ---: |");
    for (engine, what, query) in SIZES {
        let databases = if engine == Engine::Postgres { &mut *postgres } else { &mut *sqlite };
        println!("| {engine} | {what} | {} |", databases.noted.writer.text(query).await?);
    }
    let mut figures = [(); 2].map(|()| Rounds::default());
    for _ in 0..ROUNDS {
        for (database, figures) in sqlite.each().into_iter().zip(&mut figures) {
            figures.push(open(&database.url).await?);
        }
    }
    let [bare, noted] = &figures;
    println!("\nOpening a SQLite file and reading a row of `forms`, µs by the clock:\n");
    println!("| bare | noted | x bare |");
    println!("| ---: | ---: | ---: |");
    println!("| {:.0} | {:.0} | {:.2} |", bare.median(), noted.median(), noted.ratio_to(bare));
    Ok(())
}

/// Microseconds until a new connection has read a row.
async fn open(url: &str) -> anyhow::Result<f64> {
    let options = sqlite(url.trim_start_matches("sqlite:"));
    let mut took = 0.0;
    for _ in 0..OPENED {
        let began = Instant::now();
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let _: String = sqlx::query_scalar("SELECT name FROM forms WHERE id = 1").fetch_one(&mut connection).await?;
        took += began.elapsed().as_secs_f64() * 1e6;
        connection.close().await?;
    }
    Ok(took / f64::from(OPENED))
}
