//! One connection to a database of either kind, and how it is opened, cancelled and closed.
//!
//! **A statement whose caller has gone ends.** Postgres looks once in [`CLIENT_CHECK_INTERVAL`] whether whoever waits for a statement is
//! still there, and ends the statement if not; so it is enough to close the connection. (A cancel request would take a
//! second connection, and the driver keeps the key for one to itself.) SQLite asks a handler every few thousand
//! instructions whether to go on; the connection goes on afterwards.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::connections::ConnectionPermit;
use super::immutable::{self, ImmutableFile};
use super::pooler::Pooler;
use super::postgres::{PostgresAddress, PostgresSession};
use crate::store::statement::{Dialect, RepairedTexts, Row, Sql};

/// How long opening a SQLite file may take. Larger: one that is locked holds its callers. Smaller: a file whose log is
/// long is taken for one that can't be opened.
const SQLITE_OPEN_LIMIT: Duration = Duration::from_secs(2);

/// How long closing may take. Longer, and a server that hangs holds a permit; shorter, and a SQLite file whose log is
/// long is taken for closed while it is not.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How often Postgres looks whether the caller of a running statement is still there. Longer, and statements that nobody
/// waits for run on; shorter costs the server more.
pub(super) const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How many instructions SQLite runs between two calls of its progress handler: a few microseconds' worth, unless each of
/// them reads a long text. Larger: a search through long texts runs on long after its time. Smaller: the calls show in every
/// search.
const INSTRUCTIONS_PER_CHECK: i32 = 1000;

/// What becomes of a row; an error ends its statement.
pub(super) type RowHandler<'e> = dyn FnMut(Row) -> Result<(), sqlx::Error> + Send + 'e;

/// Where a session is opened, and how.
#[derive(Clone, Debug)]
pub(super) enum SessionAddress {
    Postgres(PostgresAddress),
    Sqlite {
        options: Box<SqliteConnectOptions>,
        /// Whether nothing is ever written by it.
        read_only: bool,
    },
}

impl SessionAddress {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// The file of a SQLite database.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Postgres(_) => None,
            Self::Sqlite { options, .. } => Some(options.get_filename()),
        }
    }

    /// The file of a SQLite database that could not be opened for writing, if it can still be read.
    pub(super) fn readable_despite(&self, error: &sqlx::Error) -> Option<&Path> {
        match self {
            Self::Sqlite { options, read_only: false } if immutable::is_caused_by_writing(error) => {
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
            Self::Sqlite { .. } => SQLITE_OPEN_LIMIT,
        }
    }

    /// Logs the pooler that was noticed, once.
    pub(super) fn log_pooler(&self) {
        if let Self::Postgres(address) = self {
            address.server.log_pooler();
        }
    }

    /// Looks at the error of a statement for a pooler.
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
    /// Connects; one try, so that a failure is known at once and by its cause. A thread that waits for a locked SQLite
    /// file can't be given up: that ends by itself, after the driver's own waits.
    pub(super) async fn open(address: &SessionAddress) -> Result<Self, sqlx::Error> {
        match address {
            SessionAddress::Postgres(address) => address.server.connect(&address.settings).await.map(Self::Postgres),
            SessionAddress::Sqlite { options, read_only } => {
                let (mut connection, immutable) = match SqliteConnection::connect_with(options).await {
                    Ok(connection) => (connection, None),
                    Err(error) if *read_only && immutable::is_caused_by_writing(&error) => {
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

    /// Whether it is for one loan, as its file may change without its noticing.
    pub(super) fn is_immutable(&self) -> bool {
        matches!(self, Self::Sqlite { immutable: Some(_), .. })
    }

    /// Asks for an answer that needs nothing but a server that works.
    pub(super) async fn ping(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.connection.ping().await,
            Self::Sqlite { connection, .. } => connection.ping().await,
        }
    }

    /// Runs a statement and hands over each of its rows as it comes. Whether it is in a transaction, the caller knows.
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
                let (text, arguments) = sql.into_sqlite().map_err(sqlx::Error::Encode)?;
                let mut rows = sqlx::query_with(AssertSqlSafe(text), arguments).fetch(connection);
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
                let (text, arguments) = sql.into_sqlite().map_err(sqlx::Error::Encode)?;
                let done = sqlx::query_with(AssertSqlSafe(text), arguments).execute(connection).await?;
                Ok(done.rows_affected())
            }
        }
    }

    /// Gives back the memory that the driver's buffers took for a large statement or its rows.
    pub(super) fn shrink_buffers(&mut self) {
        match self {
            Self::Postgres(session) => session.connection.shrink_buffers(),
            Self::Sqlite { connection, .. } => connection.shrink_buffers(),
        }
    }

    /// Begins a transaction by statements of which `BEGIN` is the first.
    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.begin(begin).await,
            Self::Sqlite { .. } => self.command(begin).await,
        }
    }

    /// Runs statements without values, in the transaction that is open, or as they are.
    pub(super) async fn command(&mut self, text: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(session) => session.connection.execute(text).await.map(drop),
            Self::Sqlite { connection, .. } => connection.execute(text).await.map(drop),
        }
    }

    /// Lets the statements to come run for so long, where the database is told beforehand.
    pub(super) fn limit(&self, limit: Option<Duration>) {
        if let Self::Sqlite { interrupt, .. } = self {
            interrupt.set_deadline(limit.map(|limit| Instant::now() + limit));
        }
    }

    /// Closes, and lets the permit go when that is done.
    pub(super) async fn close_with(self, permit: ConnectionPermit) {
        self.close().await;
        drop(permit);
    }

    /// Closes in good order, which a server that hangs can't hold up for ever.
    pub(super) async fn close(self) {
        let closing = async {
            match self {
                Self::Postgres(session) => session.connection.close().await,
                Self::Sqlite { connection, .. } => connection.close().await,
            }
        };
        if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LIMIT, closing).await {
            tracing::debug!(
                cause = crate::store::with_causes(&error),
                "a connection could not be closed in good order"
            );
        }
    }

    /// Ends the statement that runs and the transaction around it, for a caller who has gone. The session, where it can
    /// be used again.
    pub(super) async fn cancel(self) -> Option<Self> {
        match self {
            Self::Postgres(session) => {
                drop(session);
                // The server's end lives on until it has looked: as long it counts as a connection.
                tokio::time::sleep(CLIENT_CHECK_INTERVAL).await;
                None
            }
            Self::Sqlite { connection, interrupt, immutable } => {
                interrupt.cancelled.store(true, Ordering::Release);
                let mut session = Self::Sqlite { connection, interrupt: Arc::clone(&interrupt), immutable };
                // It is answered once the statement has ended.
                session.ping().await.ok()?;
                interrupt.cancelled.store(false, Ordering::Release);
                session.end_transaction().await
            }
        }
    }

    /// Rolls back what a caller who has gone has left open, if anything. The session, where it can be used again.
    pub(super) async fn end_transaction(mut self) -> Option<Self> {
        self.limit(None);
        match tokio::time::timeout(CLOSE_LIMIT, self.command("ROLLBACK")).await {
            Ok(Ok(())) => Some(self),
            // SQLite has ended it by itself, or it was never begun: an error of the statement, not of the session.
            Ok(Err(sqlx::Error::Database(_))) if self.dialect() == Dialect::Sqlite => Some(self),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// Whether a SQLite statement may go on: shared with the thread that runs it.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    cancelled: AtomicBool,
    /// In milliseconds of [`START`]; 0 for no limit.
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

/// A database that did not answer in time.
pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}
