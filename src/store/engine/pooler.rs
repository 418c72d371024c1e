//! Connection poolers between this program and Postgres, such as `PgBouncer`.
//!
//! In transaction mode a pooler may run each transaction of a client on another server connection. Nothing may then
//! outlive a transaction: settings are made in each one, statements are not named, and a statement outside a
//! transaction gets one of its own, because the driver sends it in two parts ([`Pooling::Transaction`]). That is
//! correct with every pooler and costs three more round trips per statement. With a pooler in session mode, only
//! startup parameters have to be avoided ([`Pooling::Session`]).
//!
//! The URL names the mode. A pooler that the URL does not mention is detected: it refuses or drops startup parameters,
//! or loses named statements. From then on it is treated as one in transaction mode.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Executor, Row as _};

/// What the URL specifies about a pooler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Nothing: it leads to a server, or to a pooler that has to be detected.
    #[default]
    Unmentioned,
    /// A client keeps its server connection.
    Session,
    /// A client keeps its server connection for one transaction.
    Transaction,
}

impl Pooling {
    /// The value of the parameter `pooler`.
    pub(super) fn parse(value: &str) -> Option<Self> {
        match value {
            "session" => Some(Self::Session),
            "transaction" => Some(Self::Transaction),
            _ => None,
        }
    }
}

/// How a pooler was detected that the URL does not mention, or mentions with the wrong mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Pooler {
    /// It refuses startup parameters, in the words of `PgBouncer`.
    #[error("PgBouncer, which refuses startup parameters")]
    PgBouncer,
    /// It refuses startup parameters, in the words of the RDS Proxy.
    #[error("RDS Proxy, which refuses startup parameters")]
    RdsProxy,
    /// It accepts startup parameters and drops them.
    #[error("a pooler that drops startup parameters, such as PgBouncer with ignore_startup_parameters")]
    DropsSettings,
    /// A prepared statement of this session was missing, or one of another session was present.
    #[error("a pooler in transaction mode, such as PgBouncer, which loses prepared statements")]
    LosesStatements,
}

impl Pooler {
    /// What to change.
    pub const REMEDY: &'static str =
        "add `pooler=transaction` to the URL, or the faster `pooler=session` where its pool_mode is session";

    /// The pooler that refused a connection because of its startup parameters.
    pub(super) fn of_refusal(error: &sqlx::Error) -> Option<Self> {
        let sqlx::Error::Database(error) = error else { return None };
        let message = error.message();
        if message.contains("unsupported startup parameter") {
            Some(Self::PgBouncer)
        } else if message.contains("RDS Proxy") && message.contains("options") {
            Some(Self::RdsProxy)
        } else {
            None
        }
    }

    /// The pooler that lost the state which an earlier transaction left in the session.
    pub(super) fn of_lost_statement(error: &sqlx::Error) -> Option<Self> {
        let sqlx::Error::Database(error) = error else { return None };
        is_lost_statement(&error.code().unwrap_or_default()).then_some(Self::LosesStatements)
    }
}

/// `invalid_sql_statement_name` and `duplicate_prepared_statement`. The driver numbers its statements, so only a
/// pooler causes these.
pub(super) fn is_lost_statement(code: &str) -> bool {
    ["26000", "42P05"].contains(&code)
}

/// Whether `PgBouncer` refuses further clients. It uses one code for all its errors.
pub(super) fn is_full(message: &str) -> bool {
    message.starts_with("no more connections allowed")
}

/// A setting that is only made by a startup parameter. A session without it goes through a pooler.
pub(super) const MARK: (&str, &str) = ("formgate.direct", "1");

/// Fails with `undefined_object` if [`MARK`] did not reach the server.
pub(super) const REQUIRE_MARK: &str = "SELECT current_setting('formgate.direct'); ";
pub(super) const MARK_IS_MISSING: &str = "42704";

/// The options with only those startup parameters that a pooler accepts: it keeps names, encoding and time zone per
/// client.
pub(super) fn without_startup_parameters(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().extra_float_digits(None)
}

/// The statement that makes settings, in the session or in its transaction.
pub(super) fn set_all(settings: &[(String, String)], in_transaction: bool) -> String {
    let set =
        |(name, value): &(String, String)| format!("set_config({}, {}, {in_transaction})", quoted(name), quoted(value));
    format!("SELECT {}", settings.iter().map(set).collect::<Vec<_>>().join(", "))
}

/// A literal that means the same whatever `standard_conforming_strings` is.
fn quoted(text: &str) -> String {
    let text = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", text.replace('\\', r"\\")) } else { format!("'{text}'") }
}

/// The settings for each transaction: those given, and two that depend on the server:
/// `client_connection_check_interval`, and a `search_path` with our tables. The path is set even if it is already
/// right, because the pooler may open a server connection after the default has changed.
pub(super) async fn settings_of_transactions(
    connection: &mut PgConnection,
    mut settings: Vec<(String, String)>,
) -> Result<Box<str>, sqlx::Error> {
    let probe = format!(
        "{}; SELECT set_config('client_connection_check_interval', '1s', true) \
            WHERE current_setting('client_connection_check_interval', true) IS NOT NULL; \
        SELECT 'search path', coalesce(({}), current_setting('search_path')); \
        SELECT 'looks', '1s' WHERE current_setting('client_connection_check_interval', true) IS NOT NULL",
        set_all(&settings, true),
        our_path!()
    );
    // One message, and so one transaction.
    match (&mut *connection).fetch_all(AssertSqlSafe(probe)).await {
        Ok(rows) => {
            for row in rows.iter().filter(|row| row.len() == 2) {
                let name = match row.try_get::<&str, _>(0)? {
                    "search path" => "search_path",
                    "looks" => "client_connection_check_interval",
                    _ => continue,
                };
                settings.push((name.to_owned(), row.try_get(1)?));
            }
        }
        // Postgres refuses client_connection_check_interval on operating systems that don't support it.
        Err(sqlx::Error::Database(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(set_all(&settings, true).into())
}

/// Inserts the settings after the `BEGIN` of a text.
pub(super) fn begin_with(settings: &str, begin: &str) -> String {
    let (begin, rest) = begin.split_once(';').unwrap_or((begin, ""));
    format!("{begin}; {settings}; {rest}")
}

/// The query of a `search_path` with our tables, if a DBA has set one without them for the database or the server.
///
/// A path set by the URL or the role is not changed, nor is the default path, which depends on the role: several
/// accounts may share a database, each with a schema of its own, and an account that is not migrated yet must not get
/// the tables of another one.
macro_rules! our_path {
    () => {
        "SELECT concat_ws(', ', min(quote_ident(nspname)), nullif(current_setting('search_path'), '')) \
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
        WHERE relname = 'database_identity' AND to_regclass('database_identity') IS NULL \
        AND (SELECT source IN ('database', 'configuration file') FROM pg_settings WHERE name = 'search_path') \
        HAVING count(*) = 1"
    };
}
pub(super) use our_path;

/// A normalized `search_path`: names as Postgres reads them, without spaces and quotes.
pub(super) fn plain_path(path: &str) -> String {
    let name = |name: &str| match name.trim().strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.trim().to_lowercase(),
    };
    path.split(',').map(name).collect::<Vec<_>>().join(",")
}

/// How the transaction of a single statement begins.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_between_begin_and_what_follows_it() {
        let settings = set_all(&[("a".to_owned(), r"it's \1".to_owned())], true);
        assert_eq!(settings, r"SELECT set_config('a', E'it''s \\1', true)");
        assert_eq!(begin_with("S", "BEGIN"), "BEGIN; S; ");
        assert_eq!(begin_with("S", "BEGIN READ ONLY; SET LOCAL a = b"), "BEGIN READ ONLY; S;  SET LOCAL a = b");
    }
}
