//! Where a tenant's database is, and how it is connected to.
//!
//! The text form is the configuration's `database`: `postgres://…` or `sqlite:path`. Never prints a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use super::database::Database;
use super::{CONNECTION_WAIT, StoreError};

/// How long a statement may run. Longer, and one bad search holds a connection that others wait for; shorter, and a
/// search of a large account that would have answered is cut off.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// How long SQLite waits for another process's write lock before it reports busy.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How long a short write waits for the one writing connection, which a large group may hold for seconds.
const WRITER_WAIT: Duration = Duration::from_secs(15);

/// An unused connection is closed after this long: a thousand quiet tenants hold no connections.
const IDLE: Duration = Duration::from_secs(60);

/// A parsed `database` of the configuration.
#[derive(Clone)]
pub struct DatabaseLocation {
    kind: Kind,
    /// As it was written: two locations are equal only when nothing of them differs, the password included.
    text: SecretString,
}

impl PartialEq for DatabaseLocation {
    fn eq(&self, other: &Self) -> bool {
        self.text.expose_secret() == other.text.expose_secret() && self.identity() == other.identity()
    }
}

#[derive(Clone)]
enum Kind {
    Postgres(Box<PgConnectOptions>),
    Sqlite(PathBuf),
}

/// The text names no database.
#[derive(Debug, thiserror::Error)]
pub enum InvalidLocation {
    /// It begins with neither scheme.
    #[error("expected `postgres://…` or `sqlite:path`")]
    UnknownScheme,
    /// The SQLite path is empty, or asks for a database in memory, which would lose everything at every stop.
    #[error("expected the path of a file after `sqlite:`")]
    NoFile,
    /// What follows `postgres://` is no connection URL.
    #[error("not a Postgres URL")]
    NotAUrl(#[source] sqlx::Error),
}

impl DatabaseLocation {
    /// Reads `postgres://…`, `postgresql://…`, `sqlite:path` or `sqlite://path`; a relative path starts at `folder`.
    ///
    /// # Errors
    /// [`InvalidLocation`] says what was expected; it never repeats the text.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, InvalidLocation> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let options = PgConnectOptions::from_str(text).map_err(InvalidLocation::NotAUrl)?;
            return Ok(Self { kind: Kind::Postgres(Box::new(options)), text: text.into() });
        }
        let path = text.strip_prefix("sqlite:").ok_or(InvalidLocation::UnknownScheme)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains(":memory:") || path.contains('?') || path.contains('\0') {
            return Err(InvalidLocation::NoFile);
        }
        Ok(Self { kind: Kind::Sqlite(folder.join(path)), text: text.into() })
    }

    /// A text that is equal for two locations exactly when they are the same database.
    #[must_use]
    pub fn identity(&self) -> String {
        match &self.kind {
            Kind::Postgres(options) => format!(
                "postgres {}:{}/{} {}",
                options.get_host(),
                options.get_port(),
                options.get_database().unwrap_or(options.get_username()),
                options.get_options().unwrap_or_default(),
            ),
            Kind::Sqlite(path) => format!("sqlite {}", path.display()),
        }
    }

    /// The file of a SQLite database.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Postgres(_) => None,
            Kind::Sqlite(path) => Some(path),
        }
    }

    /// Connects once and lets go, to learn at once whether and why that fails: a pool takes a server that refuses for
    /// one that is starting, tries again until its wait is over, and then says only that.
    pub(super) async fn try_out(&self) -> Result<(), sqlx::Error> {
        match &self.kind {
            Kind::Postgres(options) => {
                let connecting = tokio::time::timeout(CONNECTION_WAIT, PgConnection::connect_with(options));
                connecting.await.map_err(|_| sqlx::Error::PoolTimedOut)??.close().await
            }
            Kind::Sqlite(_) => Ok(()), // a pool opens a file, or fails, at once
        }
    }

    /// Makes the folder of a SQLite file where it is missing.
    pub(super) fn make_folder(&self) -> Result<(), StoreError> {
        let Some(folder) = self.file().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty()) else {
            return Ok(());
        };
        std::fs::create_dir_all(folder).map_err(|cause| StoreError::Folder { folder: folder.to_owned(), cause })
    }

    /// Pools for serving; nothing is connected before the first statement.
    pub(super) fn connect(&self, max_connections: u32) -> Database {
        match &self.kind {
            Kind::Postgres(options) => postgres(options, max_connections, Some(STATEMENT_LIMIT)),
            Kind::Sqlite(path) => sqlite(path, max_connections, false),
        }
    }

    /// Pools for work that takes its time: few connections, no statement limit.
    pub(super) fn connect_for_long(&self) -> Database {
        match &self.kind {
            Kind::Postgres(options) => postgres(options, 2, None),
            Kind::Sqlite(path) => sqlite(path, 1, false),
        }
    }

    /// Pools for migrations: as for long work, and a SQLite file is made.
    pub(super) fn create(&self) -> Database {
        match &self.kind {
            Kind::Postgres(options) => postgres(options, 2, None),
            Kind::Sqlite(path) => sqlite(path, 1, true),
        }
    }
}

impl fmt::Debug for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity())
    }
}

fn postgres(options: &PgConnectOptions, max_connections: u32, limit: Option<Duration>) -> Database {
    // Keyword and list filters are skewed: a plan made for one value is wrong for the next, so each is planned anew.
    let mut settings = vec![("plan_cache_mode", "force_custom_plan".to_owned()), ("timezone", "UTC".to_owned())];
    if let Some(limit) = limit {
        settings.push(("statement_timeout", limit.as_millis().to_string()));
    }
    let options = options.clone().application_name("formgate").options(settings).disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(CONNECTION_WAIT)
        .idle_timeout(IDLE)
        .connect_lazy_with(options);
    Database::Postgres(pool)
}

fn sqlite(path: &Path, max_connections: u32, create: bool) -> Database {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(create)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode a power failure can lose the newest transactions, never corrupt or tear one.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_WAIT)
        .disable_statement_logging();
    let pool = |connections, wait, options| {
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(wait)
            .idle_timeout(IDLE)
            .connect_lazy_with(options)
    };
    let readers = pool(max_connections, CONNECTION_WAIT, options.clone().pragma("query_only", "1"));
    Database::Sqlite { readers, writer: pool(1, WRITER_WAIT, options) }
}
