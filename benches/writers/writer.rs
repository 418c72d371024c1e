//! A connection that writes, and the CPU time that the database spends on it.
//!
//! On Postgres this is the time of the backend, on SQLite the time of the thread on which sqlx runs SQLite. The kernel
//! counts both in nanoseconds and updates the counts when the process or thread goes idle.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

pub(crate) struct Writer {
    connection: Connection,
    schedstat: PathBuf,
}

enum Connection {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

/// How a SQLite file is opened: as formgate does, in WAL mode.
pub(crate) fn sqlite(path: &str) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
}

impl Writer {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            static THREADS: AtomicU32 = AtomicU32::new(0);
            let name = format!("writer {}", THREADS.fetch_add(1, Ordering::Relaxed));
            let thread = name.clone();
            let options = sqlite(path).thread_name(move |_| thread.clone());
            let connection = SqliteConnection::connect_with(&options).await?;
            return Ok(Self { connection: Connection::Sqlite(connection), schedstat: schedstat_of_thread(&name)? });
        }
        let mut connection = PgConnection::connect(url).await?;
        let id: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        Ok(Self { connection: Connection::Postgres(connection), schedstat: format!("/proc/{id}/schedstat").into() })
    }

    /// The CPU time so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let text =
            fs::read_to_string(&self.schedstat).context("the kernel does not count the CPU time of processes")?;
        let run = text.split(' ').next().context("the first number is the time on a CPU")?;
        Ok(Duration::from_nanos(run.parse()?))
    }

    /// Runs statements without parameters.
    pub(crate) async fn execute(&mut self, statements: &str) -> sqlx::Result<()> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        match &mut self.connection {
            Connection::Postgres(connection) => statements.execute(connection).await.map(drop),
            Connection::Sqlite(connection) => statements.execute(connection).await.map(drop),
        }
    }

    /// Runs a statement that stays prepared, in a transaction of its own.
    pub(crate) async fn execute_prepared(&mut self, statement: &str, parameter: i64) -> sqlx::Result<()> {
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
    pub(crate) async fn text(&mut self, query: &'static str) -> sqlx::Result<String> {
        match &mut self.connection {
            Connection::Postgres(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
            Connection::Sqlite(connection) => sqlx::query_scalar(query).fetch_one(connection).await,
        }
    }

    /// Runs statements in one transaction. Returns its CPU time.
    pub(crate) async fn transaction(&mut self, statements: &str) -> anyhow::Result<Duration> {
        let began = self.cpu()?;
        self.execute(&format!("BEGIN; {statements}; COMMIT")).await?;
        Ok(self.cpu()?.saturating_sub(began))
    }
}

fn schedstat_of_thread(name: &str) -> anyhow::Result<PathBuf> {
    let threads = fs::read_dir("/proc/self/task")?.collect::<io::Result<Vec<_>>>()?;
    let is_named = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim_end() == name);
    let thread = threads.iter().map(fs::DirEntry::path).find(is_named).context("sqlx names the thread of SQLite")?;
    Ok(thread.join("schedstat"))
}
