//! Databases with so many submissions, twice: in the gateway's schema, made by its own commands, and in the peer's.
//!
//! A database that is there already is used as it is, so a folder that is kept saves the minutes that a million take.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::gateway::{self, Gateway, Tenant};
use crate::generate;
use crate::postgres::Postgres;
use crate::process::checked;
use crate::site::Site;

/// Tables of the peer's, with the columns that the gateway's schema has too.
pub(crate) const TABLES: [(&str, &str); 8] = [
    ("users", "id, email, name"),
    ("forms", "id, name, anonymous, disabled, parent_id"),
    ("elements", "id, form_id, position, gid, name, type"),
    ("submissions", "id, form_id, status, draft, submitter_id, created_at, updated_at"),
    ("answers", "submission_id, element_id, value, files, updated_at"),
    ("labels", "id, name"),
    ("submission_labels", "submission_id, label_id"),
    ("submission_participants", "submission_id, user_id"),
];

/// Where databases are made, and whether they stay.
pub(crate) struct Folder {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

impl Folder {
    /// The one that `LOAD_FOLDER` names, which is kept, else a temporary one.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let (path, temporary) = match std::env::var_os("LOAD_FOLDER") {
            Some(path) => (PathBuf::from(path), None),
            None => {
                let temporary = tempfile::Builder::new().prefix("formgate-load-data-").tempdir()?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        fs::create_dir_all(&path)?;
        // Postgres has to get through, which runs as somebody else.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode)?;
        Ok(Self { path, _temporary: temporary })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The names of the two databases with so many submissions, which are made where they are missing, and brought to the newest
/// schema.
pub(crate) fn databases(postgres: &Postgres, site: &Site, submissions: i64) -> anyhow::Result<(String, String)> {
    let (ours, theirs) = (format!("formgate_{submissions}"), format!("plain_{submissions}"));
    if exists(postgres, &ours)? {
        migrated(site, "kept", &postgres.url(&ours))?;
    } else {
        create(postgres, "making")?;
        let config = migrated(site, "making", &postgres.url("making"))?;
        let took = import(&config, "making", |out| generate::write(out, submissions))?;
        println!("{ours}: imported in {:.0} s", took.as_secs_f64());
        settle(postgres, "making", &ours)?;
    }
    if !exists(postgres, &theirs)? {
        create(postgres, "making")?;
        let rows = tempfile::tempdir_in(site.folder.path())?;
        save(postgres, &ours, rows.path())?;
        let took = copy(postgres, rows.path(), "making")?;
        println!("{theirs}: copied and indexed in {:.0} s", took.as_secs_f64());
        settle(postgres, "making", &theirs)?;
    }
    Ok((ours, theirs))
}

fn exists(postgres: &Postgres, name: &str) -> anyhow::Result<bool> {
    let query = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    Ok(postgres.execute("postgres", &[&query])? == "1")
}

/// Makes an empty database; one of that name is dropped.
fn create(postgres: &Postgres, name: &str) -> anyhow::Result<()> {
    let (drop, create) = (format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("CREATE DATABASE {name}"));
    postgres.execute("postgres", &["SET client_min_messages = warning", &drop, &create])?;
    Ok(())
}

/// Some submissions of a gateway's database that it returns, here and there.
pub(crate) fn listed(postgres: &Postgres, database: &str) -> anyhow::Result<Vec<i64>> {
    let query = "SELECT id FROM submissions WHERE NOT draft ORDER BY hashint8(id) LIMIT 500";
    let ids = postgres.execute(database, &[query])?;
    Ok(ids.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// What keeps a database.
#[derive(Clone, Copy)]
pub(crate) enum Engine {
    Postgres,
    Sqlite,
}

impl Engine {
    pub(crate) const BOTH: [Self; 2] = [Self::Postgres, Self::Sqlite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }

    /// The URL of an empty database; one of that name is dropped.
    pub(crate) fn empty(self, postgres: &Postgres, site: &Site, name: &str) -> anyhow::Result<String> {
        if let Self::Postgres = self {
            create(postgres, name)?;
            return Ok(postgres.url(name));
        }
        let file = site.folder.path().join(format!("{name}.db"));
        for suffix in ["", "-wal", "-shm"] {
            match fs::remove_file(format!("{}{suffix}", file.display())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(format!("sqlite:{}", file.display()))
    }
}

/// Gives a database its name once it is whole.
fn settle(postgres: &Postgres, made: &str, name: &str) -> anyhow::Result<()> {
    postgres.execute(made, &["VACUUM (FREEZE, ANALYZE)"])?;
    postgres.execute("postgres", &[&format!("ALTER DATABASE {made} RENAME TO {name}"), "CHECKPOINT"])?;
    Ok(())
}

/// The configuration of a tenant whose empty database was given its tables.
pub(crate) fn migrated(site: &Site, slug: &'static str, database: &str) -> anyhow::Result<PathBuf> {
    let tenants = vec![Tenant { slug: slug.into(), database: database.into(), requests: 60 }];
    let config = Gateway { name: slug, redis: None, window_seconds: 60, tenants }.write(&site.folder)?;
    checked(&mut gateway::command(&config, &["migrate"]))?;
    Ok(config)
}

/// Pipes lines into `formgate import`; how long that took.
pub(crate) fn import(
    config: &Path,
    tenant: &str,
    write: impl FnOnce(&mut BufWriter<ChildStdin>) -> io::Result<()>,
) -> anyhow::Result<Duration> {
    let mut command = gateway::command(config, &["import", "--tenant", tenant, "-"]);
    let began = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut input = BufWriter::with_capacity(1 << 20, child.stdin.take().context("it is piped")?);
    write(&mut input)?;
    input.flush()?;
    drop(input);
    ensure!(child.wait()?.success(), "the import failed");
    Ok(began.elapsed())
}

/// Saves the rows that a gateway's database shares with the peer's, a file a table.
pub(crate) fn save(postgres: &Postgres, from: &str, folder: &Path) -> anyhow::Result<()> {
    for (table, columns) in TABLES {
        let copy = format!("COPY (SELECT {columns} FROM {table}) TO STDOUT");
        let file = File::create(folder.join(table))?;
        let status = postgres.psql(from).args(["-c", &copy]).stdout(file).status()?;
        ensure!(status.success(), "{table} can't be read");
    }
    Ok(())
}

/// Fills a peer's database with saved rows by COPY, and indexes it; how long that took.
pub(crate) fn copy(postgres: &Postgres, folder: &Path, to: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    postgres.execute(to, &["SET client_min_messages = warning", include_str!("fastify/schema.sql")])?;
    for (table, columns) in TABLES {
        let copy = format!("COPY {table} ({columns}) FROM STDIN");
        checked(postgres.psql(to).args(["-c", &copy]).stdin(File::open(folder.join(table))?))?;
    }
    postgres.execute(to, &[include_str!("fastify/indexes.sql")])?;
    Ok(began.elapsed())
}
