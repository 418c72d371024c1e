//! A Postgres server, and how a session on it is opened.
//!
//! Owns how the settings of a session reach the server: as startup parameters, by `set_config` in the session, or in
//! each transaction, depending on [`super::pooler`]. Knows nothing about URLs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor, Row as _};

use super::pool::connection::is_out_of_memory;
use super::pooler::{self, Pooler, Pooling, our_path};
use super::session::RowHandler;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::DatabaseFailure;
use crate::store::statement::{Row, Sql};

/// How long connecting may take, unless the URL allows more.
///
/// Larger: requests wait longer for a server that hangs. Smaller: a server that is slow to start processes seems to
/// hang.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Has Postgres check during a statement whether the client is still connected, and find our tables if the
/// `search_path` leads past them ([`our_path`]). Version 13 and older, and servers on some systems, can't check; they
/// run a statement until its time limit.
const SET_UP: &str = concat!(
    "SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'; ",
    "SELECT set_config('search_path', path, false) FROM (",
    our_path!(),
    ") AS ours (path) WHERE path IS NOT NULL"
);

/// A server. All pools of one URL share it.
#[derive(Debug)]
pub(super) struct PostgresServer {
    options: PgConnectOptions,
    /// Settings that the URL gives a session.
    settings: Vec<(String, String)>,
    connect_limit: Duration,
    attributes: SessionAttributes,
    pooling: Pooling,
    /// The schema that the URL names, which the first migration creates.
    schema: Option<String>,
    detected: OnceLock<Pooler>,
    is_logged: AtomicBool,
}

/// A connection, with the settings that each of its transactions has to make.
#[derive(Debug)]
pub(crate) struct PostgresSession {
    pub(super) connection: PgConnection,
    /// None if the session keeps its settings.
    pub(super) settings: Option<Box<str>>,
}

impl PostgresSession {
    /// Begins a transaction with statements of which `BEGIN` is the first.
    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        match &self.settings {
            None => self.connection.execute(begin).await.map(drop),
            Some(settings) => {
                self.connection.execute(AssertSqlSafe(pooler::begin_with(settings, begin))).await.map(drop)
            }
        }
    }

    /// Begins a transaction for a single statement if the statement needs one. Returns whether it did.
    pub(super) async fn begin_implicit(&mut self, in_transaction: bool) -> Result<bool, sqlx::Error> {
        let needs_one = self.settings.is_some() && !in_transaction;
        if needs_one {
            self.begin(pooler::BEGIN).await?;
        }
        Ok(needs_one)
    }

    /// Commits or rolls back the transaction of a single statement, depending on its outcome.
    pub(super) async fn end_implicit<T>(
        &mut self,
        is_implicit: bool,
        outcome: Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let end = match &outcome {
            _ if !is_implicit => return outcome,
            Ok(_) => "COMMIT",
            // The connection is not used again.
            Err(error) if is_out_of_memory(error) || DatabaseFailure::of(error) == Some(DatabaseFailure::Lost) => {
                return outcome;
            }
            Err(_) => "ROLLBACK",
        };
        self.connection.execute(end).await?;
        outcome
    }

    pub(super) async fn fetch_each(&mut self, sql: Sql, each: &mut RowHandler<'_>) -> Result<(), sqlx::Error> {
        let (text, arguments) = sql.into_postgres().map_err(sqlx::Error::Encode)?;
        let query = sqlx::query_with(AssertSqlSafe(text), arguments).persistent(self.settings.is_none());
        let mut rows = query.fetch(&mut self.connection);
        while let Some(row) = rows.try_next().await? {
            each(Row::Postgres(row))?;
        }
        Ok(())
    }

    pub(super) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        let (text, arguments) = sql.into_postgres().map_err(sqlx::Error::Encode)?;
        let query = sqlx::query_with(AssertSqlSafe(text), arguments).persistent(self.settings.is_none());
        Ok(query.execute(&mut self.connection).await?.rows_affected())
    }
}

/// The servers that are acceptable: libpq's `target_session_attrs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SessionAttributes {
    #[default]
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
}

impl SessionAttributes {
    pub(super) fn parse(value: &str) -> Option<Self> {
        match value {
            // With one host, there is nothing to prefer.
            "any" | "prefer-standby" => Some(Self::Any),
            "read-write" => Some(Self::ReadWrite),
            "read-only" => Some(Self::ReadOnly),
            "primary" => Some(Self::Primary),
            "standby" => Some(Self::Standby),
            _ => None,
        }
    }

    async fn require(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let (question, wanted, found) = match self {
            Self::Any => return Ok(()),
            Self::ReadWrite => ("current_setting('transaction_read_only') = 'off'", "read-write", "read-only"),
            Self::ReadOnly => ("current_setting('transaction_read_only') = 'on'", "read-only", "writable"),
            Self::Primary => ("NOT pg_is_in_recovery()", "primary", "a standby"),
            Self::Standby => ("pg_is_in_recovery()", "standby", "a primary"),
        };
        let row = connection.fetch_one(AssertSqlSafe(format!("SELECT {question}"))).await?;
        if row.try_get(0)? {
            return Ok(());
        }
        let error = format!("the server is {found}, and the URL has target_session_attrs={wanted}");
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ConnectionRefused, error)))
    }
}

impl PostgresServer {
    pub(super) fn new(
        options: PgConnectOptions,
        settings: Vec<(String, String)>,
        connect_limit: Duration,
        attributes: SessionAttributes,
        pooling: Pooling,
        schema: Option<String>,
    ) -> Self {
        Self {
            options,
            settings,
            connect_limit,
            attributes,
            pooling,
            schema,
            detected: OnceLock::new(),
            is_logged: AtomicBool::new(false),
        }
    }

    /// A text that is equal for two servers if and only if they lead to the same tables.
    pub(super) fn identity(&self) -> String {
        let options = &self.options;
        let host = options.get_socket().map_or(options.get_host().into(), |socket| socket.to_string_lossy());
        let settings = self.settings.iter().filter_map(|(name, value)| {
            match &**name {
                "search_path" => Some(pooler::plain_path(value)).filter(|path| path != "public"),
                _ => Some(value.clone()),
            }
            .map(|value| format!(" -c {name}={value}"))
        });
        format!(
            "postgres {host}:{}/{} {}{}",
            options.get_port(),
            options.get_database().unwrap_or(options.get_username()),
            options.get_options().unwrap_or_default(),
            settings.collect::<String>(),
        )
    }

    pub(super) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The address on which it listens, for error messages.
    pub(super) fn address(&self) -> String {
        match self.options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", self.options.get_host(), self.options.get_port()),
        }
    }

    #[cfg(test)]
    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    pub(super) fn connect_limit(&self) -> Duration {
        self.connect_limit
    }

    /// The pooler that was noticed and that the URL does not mention, or not with its mode.
    pub(super) fn detected(&self) -> Option<Pooler> {
        self.detected.get().copied()
    }

    pub(super) fn detect(&self, pooler: Pooler) {
        if self.pooling != Pooling::Transaction {
            // Of two ways in which it is noticed, the first is as good.
            self.detected.get_or_init(|| pooler);
        }
    }

    /// Logs the detected pooler, once. Commands report it themselves.
    pub(super) fn log_pooler(&self) {
        if let Some(pooler) = self.detected()
            && !self.is_logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                database = self.identity().trim_end(),
                "Postgres is reached through {pooler}; {}",
                Pooler::REMEDY
            );
        }
    }

    fn pooling(&self) -> Pooling {
        if self.detected.get().is_some() { Pooling::Transaction } else { self.pooling }
    }

    /// Connects, with additional settings.
    pub(super) async fn connect(&self, further: &[(&'static str, String)]) -> Result<PostgresSession, sqlx::Error> {
        let connecting = async {
            let further = further.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let settings: Vec<_> = self.settings.iter().cloned().chain(further).collect();
            let mut session = self.open(settings).await?;
            self.attributes.require(&mut session.connection).await?;
            Ok(session)
        };
        let timed_out = || Err(super::session::timed_out());
        within(self.connect_limit, ONCE_MORE, connecting).await.unwrap_or_else(timed_out)
    }

    async fn open(&self, settings: Vec<(String, String)>) -> Result<PostgresSession, sqlx::Error> {
        let bare = pooler::without_startup_parameters(&self.options);
        let (mut connection, settings) = match self.pooling() {
            Pooling::Unmentioned => match self.open_directly(&settings).await? {
                (connection, true) => return Ok(PostgresSession { connection, settings: None }),
                (connection, false) => (connection, settings),
            },
            Pooling::Session => {
                let mut connection = PgConnection::connect_with(&bare).await?;
                connection.execute(AssertSqlSafe(pooler::set_all(&settings, false))).await?;
                ignore_refusal(connection.execute(SET_UP).await)?;
                return Ok(PostgresSession { connection, settings: None });
            }
            Pooling::Transaction => (PgConnection::connect_with(&bare).await?, settings),
        };
        let settings = pooler::settings_of_transactions(&mut connection, settings).await?;
        Ok(PostgresSession { connection, settings: Some(settings) })
    }

    /// A connection, and whether its settings have reached the server.
    async fn open_directly(&self, settings: &[(String, String)]) -> Result<(PgConnection, bool), sqlx::Error> {
        let settings = settings.iter().map(|(name, value)| (&**name, &**value));
        let options = self.options.clone().options(settings.chain([pooler::MARK]));
        let mut connection = match PgConnection::connect_with(&options).await {
            Ok(connection) => connection,
            Err(error) => {
                self.detect(Pooler::of_refusal(&error).ok_or(error)?);
                let bare = pooler::without_startup_parameters(&self.options);
                return Ok((PgConnection::connect_with(&bare).await?, false));
            }
        };
        // One message is one transaction: if the mark is missing, nothing is set.
        let set_up = format!("{}; {SET_UP}", pooler::REQUIRE_MARK);
        match connection.execute(AssertSqlSafe(set_up)).await {
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(pooler::MARK_IS_MISSING) => {
                self.detect(Pooler::DropsSettings);
                Ok((connection, false))
            }
            outcome => ignore_refusal(outcome).map(|()| (connection, true)),
        }
    }
}

/// Ignores settings that a server refuses. Other errors are returned.
fn ignore_refusal<T>(outcome: Result<T, sqlx::Error>) -> Result<(), sqlx::Error> {
    match outcome {
        Err(sqlx::Error::Database(_)) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A server, with the settings of one kind of session.
#[derive(Clone, Debug)]
pub(super) struct PostgresAddress {
    pub(super) server: Arc<PostgresServer>,
    pub(super) settings: Arc<[(&'static str, String)]>,
}
