//! A Postgres server, and how a session on it is opened.
//!
//! Owns how the settings of a session reach the server: as startup parameters, by `set_config` in the session, or in
//! each transaction, depending on [`super::pooler`]. Knows nothing about URLs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Postgres, Row as _};

use super::failure::{is_out_of_memory, timed_out};
use super::pooler::{self, Pooler, Pooling, our_path};
use super::schema_setting::SchemaSetting;
use super::session_attributes::SessionAttributes;
use crate::deadline::{ONCE_MORE, within};
use crate::metrics::DatabaseFailure;
use crate::regular_file::{self, MAX_PEM};
use crate::store::statement::{Row, RowHandler, Sql};

/// How long connecting may take, unless the URL allows more.
///
/// Larger: requests wait longer for a server that hangs. Smaller: a server that is slow to start processes seems to
/// hang.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How many schemas a shared session serves before it is closed. A server process caches the description of each table
/// that it has used, about 300 KiB per schema, and never frees it.
///
/// Larger: each process of the server takes more memory: 64 MB with 150. Smaller: connections are opened more often.
const MAX_SCHEMAS: usize = 100;

/// Has Postgres check during a statement whether the client is still connected.
const CHECK_CLIENT: &str = "SET client_connection_check_interval = '1s'; ";

/// Whether the `search_path` leads past our tables. Asked of each new connection, so it must cost little: a look at
/// `pg_settings`, as in [`our_path`], takes the server more than a millisecond.
const LACKS_OUR_TABLES: &str = "SELECT to_regclass('database_identity') IS NULL";

/// Finds our tables if the `search_path` leads past them.
const SET_OUR_PATH: &str = concat!(
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
    /// The files of certificates and keys that the URL names.
    files: Box<[PathBuf]>,
    detected: OnceLock<Pooler>,
    is_logged: AtomicBool,
    /// Version 13 and older, and servers on some systems, can't check during a statement whether the client is still
    /// connected. They run a statement until its time limit.
    cannot_check_client: AtomicBool,
}

/// A connection, with the settings that each of its transactions has to make.
#[derive(Debug)]
pub(crate) struct PostgresSession {
    pub(super) connection: PgConnection,
    /// None if the session keeps its settings.
    settings: Option<Box<str>>,
    /// If tenants share the session: the place in `served` of the one that uses it.
    schema: Option<usize>,
    /// The schemas that it has served.
    served: Vec<SchemaSetting>,
}

impl PostgresSession {
    fn new(connection: PgConnection, settings: Option<Box<str>>) -> Self {
        Self { connection, settings, schema: None, served: Vec::new() }
    }

    /// Sets the schema of the next transactions.
    pub(super) fn use_schema(&mut self, schema: Option<&SchemaSetting>) {
        self.schema = schema.map(|schema| {
            self.served.iter().position(|served| served == schema).unwrap_or_else(|| {
                self.served.push(schema.clone());
                self.served.len() - 1
            })
        });
    }

    pub(super) fn schemas_served(&self) -> &[SchemaSetting] {
        &self.served
    }

    /// Whether it has served [`MAX_SCHEMAS`].
    pub(super) fn is_worn(&self) -> bool {
        self.served.len() >= MAX_SCHEMAS
    }

    /// Begins a transaction with statements of which `BEGIN` is the first.
    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        let settings = [self.settings.as_deref(), self.schema.map(|at| self.served[at].as_str())];
        match settings {
            [None, None] => self.connection.execute(begin).await.map(drop),
            settings => {
                let settings = settings.into_iter().flatten().collect::<Vec<_>>().join("; ");
                self.connection.execute(AssertSqlSafe(pooler::begin_with(&settings, begin))).await.map(drop)
            }
        }
    }

    /// Begins a transaction for a single statement if the statement needs one. Returns whether it did.
    pub(super) async fn begin_implicit(&mut self, in_transaction: bool) -> Result<bool, sqlx::Error> {
        let needs_one = (self.settings.is_some() || self.schema.is_some()) && !in_transaction;
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
        let mut rows = self.query(sql)?.fetch(&mut self.connection);
        while let Some(row) = rows.try_next().await? {
            each(Row::Postgres(row))?;
        }
        Ok(())
    }

    pub(super) async fn execute(&mut self, sql: Sql) -> Result<u64, sqlx::Error> {
        Ok(self.query(sql)?.execute(&mut self.connection).await?.rows_affected())
    }

    /// A statement that the server keeps the plan of under a name, unless a pooler loses names. In a session that
    /// tenants share, each schema has names of its own: one for all would be planned for another schema, mostly.
    fn query(&self, sql: Sql) -> Result<Query<'static, Postgres, PgArguments>, sqlx::Error> {
        let (mut text, arguments) = sql.into_postgres().map_err(sqlx::Error::Encode)?;
        if let Some(schema) = self.schema {
            text.push_str(" -- ");
            text.push_str(&schema.to_string());
        }
        Ok(sqlx::query_with(AssertSqlSafe(text), arguments).persistent(self.settings.is_none()))
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
        files: Box<[PathBuf]>,
    ) -> Self {
        Self {
            options,
            settings,
            connect_limit,
            attributes,
            pooling,
            schema,
            files,
            detected: OnceLock::new(),
            is_logged: AtomicBool::new(false),
            cannot_check_client: AtomicBool::new(false),
        }
    }

    /// The server with sessions that tenants with a schema each can share. None if the URL names no schema, or sets
    /// another `search_path`.
    pub(super) fn without_schema(&self) -> Option<Self> {
        self.schema.as_ref()?;
        let is_path = |(name, _): &&(String, String)| name == "search_path";
        if self.settings.iter().filter(is_path).count() > 1 {
            return None;
        }
        let others = self.settings.iter().filter(|setting| !is_path(setting)).cloned();
        let settings = others.chain([("search_path".to_owned(), String::new())]).collect();
        let options = self.options.clone();
        let files = self.files.clone();
        Some(Self::new(options, settings, self.connect_limit, self.attributes, self.pooling, None, files))
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

    /// Whether another one is the same database for the same user, with the same password and the same TLS.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let credentials = |server: &Self| {
            // The driver shows a password only as a part of a URL, and makes none of every name.
            let url = server.options.clone().username("user").host("host").to_url_lossy();
            let password = url.password().filter(|password| !password.is_empty()).map(ToOwned::to_owned);
            (server.options.get_username().to_owned(), password, url.query().map(ToOwned::to_owned))
        };
        self.identity() == other.identity() && credentials(self) == credentials(other)
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
            self.check_files().await?;
            let further = further.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let settings: Vec<_> = self.settings.iter().cloned().chain(further).collect();
            let mut session = self.open(settings).await?;
            self.attributes.require(&mut session.connection).await?;
            Ok(session)
        };
        let timed_out = || Err(timed_out());
        within(self.connect_limit, ONCE_MORE, connecting).await.unwrap_or_else(timed_out)
    }

    /// The driver would wait for a pipe, and read a file of any size.
    async fn check_files(&self) -> Result<(), sqlx::Error> {
        if self.files.is_empty() {
            return Ok(());
        }
        let files = self.files.clone();
        let check = move |file: &PathBuf| {
            let unfit = |error| sqlx::Error::Tls(format!("can't read `{}`: {error}", file.display()).into());
            regular_file::check(file, MAX_PEM).map_err(unfit)
        };
        let checked = tokio::task::spawn_blocking(move || files.iter().try_for_each(check)).await;
        checked.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
    }

    async fn open(&self, settings: Vec<(String, String)>) -> Result<PostgresSession, sqlx::Error> {
        let bare = pooler::without_startup_parameters(&self.options);
        let (mut connection, settings) = match self.pooling() {
            Pooling::Unmentioned => match self.open_directly(&settings).await? {
                (connection, true) => return Ok(PostgresSession::new(connection, None)),
                (connection, false) => (connection, settings),
            },
            Pooling::Session => {
                let mut connection = PgConnection::connect_with(&bare).await?;
                connection.execute(AssertSqlSafe(pooler::set_all(&settings, false))).await?;
                self.set_up(&mut connection, "").await?;
                return Ok(PostgresSession::new(connection, None));
            }
            Pooling::Transaction => (PgConnection::connect_with(&bare).await?, settings),
        };
        let settings = pooler::settings_of_transactions(&mut connection, settings).await?;
        Ok(PostgresSession::new(connection, Some(settings)))
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
        match self.set_up(&mut connection, pooler::REQUIRE_MARK).await {
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(pooler::MARK_IS_MISSING) => {
                self.detect(Pooler::DropsSettings);
                Ok((connection, false))
            }
            outcome => outcome.map(|()| (connection, true)),
        }
    }

    /// Makes the settings that depend on the server, in one round trip unless there is something unusual. `first` is a
    /// statement that may fail.
    async fn set_up(&self, connection: &mut PgConnection, first: &str) -> Result<(), sqlx::Error> {
        let has_path = self.settings.iter().any(|(name, _)| name == "search_path");
        let mut is_first_try = true;
        let rows = loop {
            let check = if self.cannot_check_client.load(Ordering::Relaxed) { "" } else { CHECK_CLIENT };
            let look = if has_path { "" } else { LACKS_OUR_TABLES };
            // One message is one transaction: if a statement fails, nothing is set.
            match (&mut *connection).fetch_all(AssertSqlSafe(format!("{first}{check}{look}"))).await {
                Err(sqlx::Error::Database(error))
                    if is_first_try && error.message().contains("client_connection_check_interval") =>
                {
                    is_first_try = false;
                    self.cannot_check_client.store(true, Ordering::Relaxed);
                }
                outcome => break outcome?,
            }
        };
        let lacks_tables = !has_path && rows.last().map_or(Ok(false), |row| row.try_get(0))?;
        if lacks_tables {
            match connection.execute(SET_OUR_PATH).await {
                // The server refuses the setting.
                Err(sqlx::Error::Database(_)) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A server, with the settings of one kind of session.
#[derive(Clone, Debug)]
pub(super) struct PostgresAddress {
    pub(super) server: Arc<PostgresServer>,
    pub(super) settings: Arc<[(&'static str, String)]>,
}
