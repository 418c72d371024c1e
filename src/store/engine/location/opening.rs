//! Opens the database at a location: pools for requests and for commands, and the settings of both databases' sessions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::{DatabaseKind, DatabaseLocation};
use crate::store::engine::breaker::Breaker;
use crate::store::engine::connections::Connections;
use crate::store::engine::database::Database;
use crate::store::engine::pool::{BeginWriting, Pool, PoolOptions};
use crate::store::engine::postgres::{PostgresAddress, PostgresServer};
use crate::store::engine::schema_setting::SchemaSetting;
use crate::store::engine::session::SessionAddress;
use crate::store::engine::session_source::SharedKey;

/// How long a command waits for another program that holds the write lock of a SQLite file.
///
/// Larger: a command hangs as long as that program does. Smaller: it fails while the forms product runs a short
/// transaction.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How long a move waits for the write lock of the file that an account leaves, while the account's requests wait.
///
/// Larger: requests wait for longer. Smaller: a move is put off while the forms product runs a short transaction.
const MOVE_WAIT: Duration = Duration::from_secs(1);

/// How long SQLite itself waits, in a thread, when a request reads or opens the file. In WAL mode it only waits for a
/// program that has locked the whole file.
///
/// Larger: such a program blocks requests, and threads, for longer. Smaller: requests are refused while another
/// program recovers the file after a crash.
pub(in crate::store::engine) const READER_BUSY_WAIT: Duration = Duration::from_secs(1);

/// How long a request waits for a lock that another program holds: per statement on Postgres, in all for the write
/// lock of a SQLite file.
///
/// Larger: a lock that is never released occupies every connection. Smaller: writes are refused that could soon
/// proceed.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How long a short write waits for its turn to write to a SQLite file, which a large group may hold for seconds.
///
/// Larger: callers wait longer behind a writer that is stuck. Smaller: short writes are refused while a large group is
/// written.
const WRITER_WAIT: Duration = Duration::from_secs(15);

/// How many prepared statements an open SQLite connection keeps. All calls that read, but searches with filters, take about a
/// dozen; those of transactions are not kept.
///
/// Larger: an open file takes more memory, up to 32 KB for each. Smaller: statements are compiled again.
const SQLITE_STATEMENTS: usize = 16;

/// What a SQLite file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileUse {
    /// To read, and nothing else.
    OnlyRead,
    /// To read and to write.
    Served,
    /// The same, and what is deleted is overwritten.
    Overwritten,
    /// To read and to write, and it is created if it is missing.
    Created,
    /// As [`Self::Created`], and foreign keys do not matter.
    Filled,
}

impl DatabaseLocation {
    /// A pool with a statement limit. Connections are opened on demand.
    pub(in crate::store) fn connect(
        &self,
        max_connections: u32,
        connections: &Arc<Connections>,
        breaker: Option<&Arc<Breaker>>,
    ) -> Database {
        self.connect_for(FileUse::Served, max_connections, connections, breaker)
    }

    /// The same for a command or a registry; on SQLite, the bytes of what is deleted are overwritten with zeros.
    pub(in crate::store) fn connect_overwriting(
        &self,
        max_connections: u32,
        connections: &Arc<Connections>,
    ) -> Database {
        self.connect_for(FileUse::Overwritten, max_connections, connections, None)
    }

    /// The same without writers: on SQLite, not even the mode of the file is changed.
    pub(in crate::store) fn connect_for_readers(
        &self,
        max_connections: u32,
        connections: &Arc<Connections>,
    ) -> Database {
        self.connect_for(FileUse::OnlyRead, max_connections, connections, None).for_readers()
    }

    fn connect_for(
        &self,
        file_use: FileUse,
        max_connections: u32,
        connections: &Arc<Connections>,
        breaker: Option<&Arc<Breaker>>,
    ) -> Database {
        let limits = connections.limits();
        let (wait, limit) = (limits.wait, Some(limits.statement));
        let lock_wait = if breaker.is_some() { LOCK_WAIT } else { BUSY_WAIT };
        let (address, shared) = match &self.kind {
            DatabaseKind::Postgres(server) => {
                let server = self.server(server);
                // A command works on one tenant: it opens sessions of its own, which keep the schema.
                match breaker.and_then(|_| Some((server.without_schema()?, server.schema()?))) {
                    None => (postgres_address(server, limit), None),
                    Some((server, schema)) => {
                        let shared =
                            (SharedKey::of(self.text.expose_secret(), self.omitted), SchemaSetting::new(schema));
                        (postgres_address(&server.into(), limit), Some(shared))
                    }
                }
            }
            DatabaseKind::Sqlite(path) => (sqlite_address(path, READER_BUSY_WAIT, file_use), None),
        };
        let (max_open, begin_writing) = (max_connections, BeginWriting::Polling);
        let options = PoolOptions { address, shared, max_open, wait, limit, lock_wait, begin_writing };
        Database::new(Pool::new(options, connections, breaker), wait.max(WRITER_WAIT))
    }

    /// A pool for long work: few connections, no statement limit.
    pub(in crate::store) fn connect_for_maintenance(&self) -> Database {
        self.connect_without_limits(FileUse::Served)
    }

    /// A pool for migrations: as for long work, and a missing SQLite file is created.
    pub(in crate::store) fn connect_for_migration(&self) -> Database {
        self.connect_without_limits(FileUse::Created)
    }

    /// A pool for the database that an account is moved from, where writers do not wait for long.
    pub(in crate::store) fn connect_to_move_from(&self) -> Database {
        self.connect_without_limits_for(FileUse::Served, MOVE_WAIT)
    }

    /// A pool for the database that an account is moved to. On SQLite, foreign keys are ignored.
    pub(in crate::store) fn connect_to_move_to(&self) -> Database {
        self.connect_without_limits(FileUse::Filled)
    }

    fn connect_without_limits(&self, file_use: FileUse) -> Database {
        self.connect_without_limits_for(file_use, BUSY_WAIT)
    }

    fn connect_without_limits_for(&self, file_use: FileUse, busy_wait: Duration) -> Database {
        let connections = Connections::for_command();
        let wait = connections.limits().wait;
        let (address, max_open) = match &self.kind {
            DatabaseKind::Postgres(server) => (postgres_address(self.server(server), None), 2),
            // A writer is not counted.
            DatabaseKind::Sqlite(path) => (sqlite_address(path, busy_wait, file_use), 1),
        };
        let (lock_wait, begin_writing) = (busy_wait, BeginWriting::Blocking);
        let options = PoolOptions { address, shared: None, max_open, wait, limit: None, lock_wait, begin_writing };
        Database::new(Pool::new(options, &connections, None), wait)
    }
}

fn postgres_address(server: &Arc<PostgresServer>, limit: Option<Duration>) -> SessionAddress {
    let mut settings = vec![
        ("timezone", "UTC".to_owned()),
        // A DBA may have set these for the role or the database.
        ("standard_conforming_strings", "on".to_owned()),
        ("plan_cache_mode", "auto".to_owned()),
        // A writer that has waited for a lock must see what its predecessor wrote, whatever the database's default is.
        ("default_transaction_isolation", "read committed".to_owned()),
        // With the default of 4 MB, the bitmap of a keyword that a million submissions contain becomes lossy, and
        // every document on its pages is rechecked.
        ("work_mem", "32MB".to_owned()),
        // A policy that hides rows is an error. Otherwise the rows would be missing in searches, and the change log would
        // note that they were deleted.
        ("row_security", "off".to_owned()),
        // Compiling the plan of a search takes as long as it saves.
        ("jit", "off".to_owned()),
        // Starting workers takes longer than most searches run, and one search would take the cores of many.
        ("max_parallel_workers_per_gather", "0".to_owned()),
    ];
    // A provider or a DBA may have set limits, which must not end a command's long statements.
    settings.push(("idle_in_transaction_session_timeout", "0".to_owned()));
    if limit.is_none() {
        settings.push(("statement_timeout", "0".to_owned()));
        settings.push(("lock_timeout", "0".to_owned()));
    }
    if let Some(limit) = limit {
        settings.push(("statement_timeout", limit.as_millis().to_string()));
        settings.push(("lock_timeout", LOCK_WAIT.min(limit).as_millis().to_string()));
    }
    SessionAddress::Postgres(PostgresAddress { server: Arc::clone(server), settings: settings.into() })
}

fn sqlite_address(path: &Path, busy_wait: Duration, file_use: FileUse) -> SessionAddress {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(matches!(file_use, FileUse::Created | FileUse::Filled))
        .foreign_keys(file_use != FileUse::Filled)
        // In WAL mode, a power failure can lose the newest transactions but never corrupts the database.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(busy_wait)
        .statement_cache_capacity(SQLITE_STATEMENTS)
        .disable_statement_logging();
    let options = match file_use {
        FileUse::OnlyRead => options.pragma("query_only", "ON"),
        FileUse::Overwritten => options.journal_mode(SqliteJournalMode::Wal).pragma("secure_delete", "ON"),
        FileUse::Served | FileUse::Created | FileUse::Filled => options.journal_mode(SqliteJournalMode::Wal),
    };
    SessionAddress::Sqlite(Box::new(options))
}
