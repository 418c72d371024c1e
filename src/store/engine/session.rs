//! One connection to Postgres or SQLite: how it is opened, cancelled and closed. The drivers are called here.
//!
//! **A statement ends when its request is gone.** Postgres checks every [`CLIENT_CHECK_INTERVAL`] whether the client
//! is still connected, and cancels the statement if it is not, so closing the connection is enough. (A cancel request
//! would take a second connection, and the driver does not expose the key for it.) SQLite calls a progress handler
//! every [`INSTRUCTIONS_PER_CHECK`] instructions, which interrupts the statement; the connection can then be used
//! again.
//!
//! **SQLite keeps no statement of a transaction**, unless it is soon repeated. One that writes has the programs of all triggers in
//! it, up to 23 KB each, and is compiled in 2 to 50 microseconds: a small part of the transaction that it belongs to.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Executor, SqlSafeStr, Sqlite};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::connections::{ConnectionPermit, Role};
use super::immutable::{self, ImmutableFile};
use super::page_cache::with_page_cache;
use super::pooler::Pooler;
use super::postgres::{PostgresAddress, PostgresSession};
use super::schema_setting::SchemaSetting;
use crate::store::statement::{Dialect, RepairedTexts, Row, RowHandler, Sql};

/// How long opening a SQLite file may take.
///
/// Larger: requests wait longer for a locked file. Smaller: opening a file with a long log fails.
const SQLITE_OPEN_LIMIT: Duration = Duration::from_secs(2);

/// How long closing may take.
///
/// Larger: a server that hangs holds a permit for longer. Smaller: a SQLite file with a long log counts as closed too
/// early.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How often Postgres checks during a statement whether the client is still connected.
///
/// Larger: abandoned statements run for longer. Smaller: the checks cost the server more.
pub(super) const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How many instructions SQLite runs between two calls of its progress handler: a few microseconds' worth, unless each
/// one reads a long text.
///
/// Larger: a search through long texts runs long past its limit. Smaller: the calls slow down every search.
const INSTRUCTIONS_PER_CHECK: i32 = 1000;

/// Where and with which options a session is opened.
#[derive(Clone, Debug)]
pub(super) enum SessionAddress {
    Postgres(PostgresAddress),
    Sqlite(Box<SqliteConnectOptions>),
}

impl SessionAddress {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// The file of a SQLite database.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Postgres(_) => None,
            Self::Sqlite(options) => Some(options.get_filename()),
        }
    }

    /// The file of a SQLite database that could not be opened for writing, if it can still be read.
    pub(super) fn readable_despite(&self, error: &sqlx::Error) -> Option<&Path> {
        match self {
            Self::Sqlite(options) if immutable::is_caused_by_writing(error) => {
                let file = options.get_filename();
                ImmutableFile::of(file).map(|_| file)
            }
            _ => None,
        }
    }

    /// How long connecting may take.
    pub(super) fn connect_limit(&self) -> Duration {
        match self {
            Self::Postgres(address) => address.server.connect_limit(),
            Self::Sqlite(_) => SQLITE_OPEN_LIMIT,
        }
    }

    /// Logs the detected pooler, once.
    pub(super) fn log_pooler(&self) {
        if let Self::Postgres(address) = self {
            address.server.log_pooler();
        }
    }

    /// Checks whether the error of a statement reveals a pooler.
    pub(super) fn detect_pooler(&self, error: &sqlx::Error) {
        if let Self::Postgres(address) = self
            && let Some(pooler) = Pooler::of_lost_statement(error)
        {
            address.server.detect(pooler);
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) enum Session {
    Postgres(PostgresSession),
    Sqlite { connection: SqliteConnection, interrupt: Arc<Interrupt>, immutable: Option<ImmutableFile> },
}

impl Session {
    /// Connects with a single try, so that a failure is reported at once with its cause. A thread that waits for a
    /// locked SQLite file can't be cancelled; it ends after the driver's busy timeout.
    pub(super) async fn open(address: &SessionAddress, role: Role) -> Result<Self, sqlx::Error> {
        match address {
            SessionAddress::Postgres(address) => address.server.connect(&address.settings).await.map(Self::Postgres),
            SessionAddress::Sqlite(options) => {
                let (mut connection, immutable) = match SqliteConnection::connect_with(&with_page_cache(options)).await
                {
                    Ok(connection) => (connection, None),
                    Err(error) if role == Role::Any && immutable::is_caused_by_writing(&error) => {
                        let immutable = ImmutableFile::of(options.get_filename()).ok_or(error)?;
                        (immutable.open().await?, Some(immutable))
                    }
                    Err(error) => return Err(error),
                };
                let interrupt = Arc::<Interrupt>::default();
                let in_handler = Arc::clone(&interrupt);
                connection
                    .lock_handle()
                    .await?
                    .set_progress_handler(INSTRUCTIONS_PER_CHECK, move || in_handler.may_continue());
                Ok(Self::Sqlite { connection, interrupt, immutable })
            }
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// Whether it may serve one checkout only, because its file may change without being locked.
    pub(super) fn is_immutable(&self) -> bool {
        matches!(self, Self::Sqlite { immutable: Some(_), .. })
    }

    /// Sets the schema of the next transactions, for a session that tenants share.
    pub(super) fn use_schema(&mut self, schema: Option<&SchemaSetting>) {
        if let Self::Postgres(session) = self {
            session.use_schema(schema);
        }
    }

    /// The schemas that it has served, if tenants share it.
    pub(super) fn schemas_served(&self) -> &[SchemaSetting] {
        match self {
            Self::Postgres(session) => session.schemas_served(),
            Self::Sqlite { .. } => &[],
        }
    }

    /// Whether the session should be closed because of the number of schemas that it has served.
    pub(super) fn is_worn(&self) -> bool {
        matches!(self, Self::Postgres(session) if session.is_worn())
    }

    /// Checks that the server answers.
    pub(super) async fn ping(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.connection.ping().await,
            Self::Sqlite { connection, .. } => connection.ping().await,
        }
    }

    /// Runs a statement and passes each row to `each` as it arrives. The caller tracks whether a transaction is open.
    pub(super) async fn fetch_each(
        &mut self,
        sql: Sql,
        in_transaction: bool,
        each: &mut RowHandler<'_>,
    ) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => {
                let is_implicit = session.begin_implicit(in_transaction).await?;
                let outcome = session.fetch_each(sql, each).await;
                session.end_implicit(is_implicit, outcome).await
            }
            Self::Sqlite { connection, immutable, .. } => {
                let mut rows = sqlite_query(sql, in_transaction)?.fetch(connection);
                while let Some(row) = rows.try_next().await? {
                    each(Row::Sqlite(row, RepairedTexts::default()))?;
                }
                match immutable {
                    Some(immutable) if !immutable.is_unchanged() => {
                        Err(sqlx::Error::Io(io::Error::other("the file was changed while it was read")))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    pub(super) async fn execute(&mut self, sql: Sql, in_transaction: bool) -> Result<u64, sqlx::Error> {
        match self {
            Self::Postgres(session) => {
                let is_implicit = session.begin_implicit(in_transaction).await?;
                let outcome = session.execute(sql).await;
                session.end_implicit(is_implicit, outcome).await
            }
            Self::Sqlite { connection, .. } => {
                let done = sqlite_query(sql, in_transaction)?.execute(connection).await?;
                Ok(done.rows_affected())
            }
        }
    }

    /// Frees the memory that the driver's buffers grew by for a large statement or its rows.
    pub(super) fn shrink_buffers(&mut self) {
        match self {
            Self::Postgres(session) => session.connection.shrink_buffers(),
            Self::Sqlite { connection, .. } => connection.shrink_buffers(),
        }
    }

    /// Begins a transaction with statements of which `BEGIN` is the first.
    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.begin(begin).await,
            Self::Sqlite { .. } => self.command(begin).await,
        }
    }

    /// Runs statements without values, in the open transaction if there is one. SQLite compiles them each time: some
    /// pragmas take effect when they are compiled, so a cached one would take effect once.
    pub(super) async fn command(&mut self, text: impl SqlSafeStr) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.connection.execute(text.into_sql_str()).await.map(drop),
            Self::Sqlite { connection, .. } => sqlx::raw_sql(text).execute(connection).await.map(drop),
        }
    }

    /// Limits the next statements on SQLite. Postgres gets its limit as a setting of the session.
    pub(super) fn limit(&self, limit: Option<Duration>) {
        if let Self::Sqlite { interrupt, .. } = self {
            interrupt.set_deadline(limit.map(|limit| Instant::now() + limit));
        }
    }

    /// Closes the connection, then releases its permit.
    pub(super) async fn close_with(self, permit: ConnectionPermit) {
        self.close().await;
        drop(permit);
    }

    /// Closes the connection gracefully, within [`CLOSE_LIMIT`].
    pub(super) async fn close(self) {
        let closing = async {
            match self {
                Self::Postgres(session) => session.connection.close().await,
                // The driver's thread and the caller's both let go of the file, and the last one closes it, which syncs
                // the disk. Requests must not wait for that, so the caller is a thread that may block.
                Self::Sqlite { connection, .. } => {
                    let runtime = Handle::current();
                    let closing = spawn_blocking(move || runtime.block_on(connection.close()));
                    closing.await.unwrap_or_else(|panic| Err(sqlx::Error::Io(io::Error::other(panic))))
                }
            }
        };
        if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LIMIT, closing).await {
            tracing::debug!(
                cause = crate::store::with_causes(&error),
                "a connection to a database was not closed gracefully; dropped it"
            );
        }
    }

    /// Ends the running statement and its transaction after the request is gone. Returns the session if it can be used
    /// again.
    pub(super) async fn cancel(self) -> Option<Self> {
        match self {
            Self::Postgres(session) => {
                drop(session);
                // The server's process lives until its next check, and counts as a connection until then.
                tokio::time::sleep(CLIENT_CHECK_INTERVAL).await;
                None
            }
            Self::Sqlite { connection, interrupt, immutable } => {
                interrupt.cancelled.store(true, Ordering::Release);
                let mut session = Self::Sqlite { connection, interrupt: Arc::clone(&interrupt), immutable };
                // The ping is answered once the statement has ended.
                session.ping().await.ok()?;
                interrupt.cancelled.store(false, Ordering::Release);
                session.end_transaction().await
            }
        }
    }

    /// Rolls back the transaction that a cancelled request has left open, if any. Returns the session if it can be
    /// used again.
    pub(super) async fn end_transaction(mut self) -> Option<Self> {
        self.limit(None);
        match tokio::time::timeout(CLOSE_LIMIT, self.command("ROLLBACK")).await {
            Ok(Ok(())) => Some(self),
            // SQLite has ended the transaction itself, or it was never begun: the session is intact.
            Ok(Err(sqlx::Error::Database(_))) if self.dialect() == Dialect::Sqlite => Some(self),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

fn sqlite_query(sql: Sql, in_transaction: bool) -> Result<Query<'static, Sqlite, SqliteArguments>, sqlx::Error> {
    let is_kept = sql.is_kept() || !in_transaction;
    let (text, arguments) = sql.into_sqlite().map_err(sqlx::Error::Encode)?;
    Ok(sqlx::query_with(AssertSqlSafe(text), arguments).persistent(is_kept))
}

/// Whether a SQLite statement may continue; shared with the thread that runs it.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    cancelled: AtomicBool,
    /// The deadline in milliseconds since [`START`]; 0 for none.
    until: AtomicU64,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Interrupt {
    fn set_deadline(&self, until: Option<Instant>) {
        let since_start = |until: Instant| until.saturating_duration_since(*START).as_millis();
        let until = until.map_or(0, |until| u64::try_from(since_start(until)).unwrap_or(u64::MAX).max(1));
        self.until.store(until, Ordering::Release);
    }

    fn may_continue(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        let is_in_time = until == 0 || START.elapsed().as_millis() < u128::from(until);
        is_in_time && !self.cancelled.load(Ordering::Acquire)
    }
}
