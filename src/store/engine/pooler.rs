//! Connection poolers between this program and Postgres, such as `PgBouncer`.
//!
//! A pooler may give each transaction of a client to another server connection. Then nothing may outlive a transaction:
//! settings are made in each of them, statements are not named, and a statement outside a transaction gets one of its own,
//! because the driver sends it in two parts ([`Pooling::Transaction`]). That is correct through every pooler and costs
//! three more round trips per statement. A pooler that keeps a server connection for each client needs only that settings
//! are not startup parameters ([`Pooling::Session`]).
//!
//! The URL says which one it leads to. A pooler that the URL does not mention is noticed: it refuses or drops startup
//! parameters, or loses named statements. From then on, it is treated as one in transaction mode.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Executor, Row as _};

/// What a URL says about a pooler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Nothing: it leads to a server, or to a pooler that is noticed.
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

/// How a pooler was noticed that the URL does not mention, or mentions with the wrong mode.
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
    /// A named statement was there that this session did not make, or was gone.
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

    /// The pooler by which a session lost what an earlier transaction left in it.
    pub(super) fn of_lost_statement(error: &sqlx::Error) -> Option<Self> {
        let sqlx::Error::Database(error) = error else { return None };
        is_lost_statement(&error.code().unwrap_or_default()).then_some(Self::LosesStatements)
    }
}

/// `invalid_sql_statement_name`, `duplicate_prepared_statement`. Only a pooler brings them about: the driver counts its names.
pub(super) fn is_lost_statement(code: &str) -> bool {
    ["26000", "42P05"].contains(&code)
}

/// Whether `PgBouncer` takes no more clients. It has one code for all its errors.
pub(super) fn is_full(message: &str) -> bool {
    message.starts_with("no more connections allowed")
}

/// A setting that only a startup parameter makes: a session without it has a pooler before it.
pub(super) const MARK: (&str, &str) = ("formgate.direct", "1");

/// Fails where [`MARK`] did not arrive, with `undefined_object`.
pub(super) const REQUIRE_MARK: &str = "SELECT current_setting('formgate.direct')";
pub(super) const MARK_IS_MISSING: &str = "42704";

/// The startup parameters that a pooler accepts: names, encoding and time zone, which it keeps for each client.
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

/// The settings for each transaction: those given, and two that depend on the server. It looks whether callers are still
/// there, and it finds our tables where the `search_path` leads past them. The path is set even where it is right: the
/// pooler may open a connection later, when the default has changed.
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
        // A server on a system where it can't look says so.
        Err(sqlx::Error::Database(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(set_all(&settings, true).into())
}

/// Begins a transaction, makes its settings, and goes on with what follows `BEGIN` in the text.
pub(super) fn begin_with(settings: &str, begin: &str) -> String {
    let (begin, rest) = begin.split_once(';').unwrap_or((begin, ""));
    format!("{begin}; {settings}; {rest}")
}

/// The query of a `search_path` with our tables, where a DBA has set one for the database or the server that leads past them.
///
/// A path that the URL or the role has, and the default path, which depends on the role, are not changed: several accounts
/// may share a database, each with a schema of its own, and one that is not migrated yet must not be served another's.
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

/// A `search_path` in one spelling: names as Postgres reads them, without blanks and quotes.
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
