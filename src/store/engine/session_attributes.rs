//! Which servers a URL accepts: libpq's `target_session_attrs`.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor, Row as _};

/// The servers that are acceptable.
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

    /// Checks that a server that was connected to is one of them.
    pub(super) async fn require(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
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
