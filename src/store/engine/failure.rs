//! Classifies the driver's errors into [`DatabaseFailure`], and decides which of them trip the breaker.
//!
//! SQLSTATEs and SQLite result codes are classified only here, apart from the two of a pooler ([`super::pooler`]).
//! [`super::remedy`] reads the codes again to give advice.

use std::io;

use sqlx::postgres::PgDatabaseError;

use super::pooler;
use super::write_access::ReadOnlyFile;
use crate::memory::MemorySpent;
use crate::metrics::DatabaseFailure;

/// The beginning of what a database says to writers that its account has left. On Postgres, the code says it too.
pub(in crate::store) const MOVED: &str = "formgate moved this account";

/// Whether the role lacks a right.
pub(in crate::store) fn is_denied(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("42501"))
}

/// Whether the server refuses a statement that it knows by name, since a column that it returns has another type now. Under
/// another name, as in a new session, it works.
pub(super) fn is_stale_plan(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let postgres = error.try_downcast_ref::<PgDatabaseError>();
    postgres.is_some_and(|error| error.code() == "0A000" && error.routine() == Some("RevalidateCachedQuery"))
}

/// Whether a policy of row level security could hide rows of a table from this role. The message may be translated.
pub(in crate::store) fn is_row_security(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| error.routine() == Some("check_enable_rls"))
}

/// Whether a publication keeps the rows of a table from being updated and deleted: the table has no replica identity, or the
/// publication leaves out columns of it.
pub(in crate::store) fn is_publication(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| error.routine() == Some("CheckCmdReplicaIdentity"))
}

/// The error of a database that did not answer in time.
pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

/// Wraps [`MemorySpent`] as the error of a statement. [`crate::store::StoreError`] unwraps it.
pub(super) fn out_of_memory(spent: MemorySpent) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(spent))
}

pub(super) fn is_out_of_memory(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Decode(cause) if cause.is::<MemorySpent>())
}

/// Whether a SQLite file is damaged, or none (CORRUPT, NOTADB).
pub(super) fn is_damaged(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i64>().ok());
    matches!(code.map(|code| code & 0xff), Some(11 | 26))
}

impl DatabaseFailure {
    /// The failure behind an error. None if the statement itself is at fault.
    pub(in crate::store) fn of(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => Some(Self::Unresponsive),
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
                Some(Self::Lost)
            }
            sqlx::Error::Decode(cause) if cause.is::<ReadOnlyFile>() => Some(Self::ReadOnly),
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::BeginFailed => Some(Self::Other),
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                if database.try_downcast_ref::<PgDatabaseError>().is_some() {
                    if pooler::is_full(database.message()) {
                        Some(Self::Full)
                    } else if is_stale_plan(error) {
                        Some(Self::Collision)
                    } else if is_publication(error) {
                        Some(Self::ReadOnly)
                    } else {
                        Self::of_postgres(&code)
                    }
                } else if database.message().starts_with(MOVED) {
                    Some(Self::ReadOnly)
                } else {
                    Self::of_sqlite(code.parse().ok()?)
                }
            }
            _ => None,
        }
    }

    /// Classifies a SQLSTATE (Postgres manual, appendix A).
    fn of_postgres(code: &str) -> Option<Self> {
        Some(match code {
            "53300" => Self::Full,
            "55P03" => Self::Locked,
            "57014" => Self::TimedOut,
            // admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Self::Lost,
            // read_only_sql_transaction, insufficient_privilege
            "25006" | "42501" => Self::ReadOnly,
            // A pooler has switched us to a server connection that another client used in between.
            code if pooler::is_lost_statement(code) => Self::Collision,
            _ => match code.get(..2)? {
                "08" => Self::Lost,
                // Invalid authorization, unknown database.
                "28" | "3D" => Self::Unreachable,
                "40" => Self::Collision,
                "53" => Self::OutOfSpace,
                // Operator intervention, system error.
                "57" | "58" => Self::Other,
                // undefined_table: the schema was dropped or renamed, or is being restored.
                _ if code == "42P01" => Self::Other,
                _ => return None,
            },
        })
    }

    /// Classifies a result code by its primary code, the low byte (sqlite.org/rescode.html).
    fn of_sqlite(code: i64) -> Option<Self> {
        Some(match code & 0xff {
            // BUSY, LOCKED
            5 | 6 => Self::Locked,
            // NOMEM, FULL
            7 | 13 => Self::OutOfSpace,
            // INTERRUPT: raised only by our own progress handler
            9 => Self::TimedOut,
            // CANTOPEN
            14 => Self::Unreachable,
            // PERM, READONLY
            3 | 8 => Self::ReadOnly,
            // IOERR, CORRUPT, NOTADB
            10 | 11 | 26 => Self::Other,
            _ => return None,
        })
    }

    /// Whether the failure means that the database works for no request. The others come from a working database: a
    /// slow or large statement, a collision of two transactions, or a write while only reads are possible.
    pub(super) fn trips_breaker(self) -> bool {
        match self {
            Self::Unreachable | Self::Lost | Self::Unresponsive | Self::Other => true,
            Self::TimedOut | Self::Full | Self::OutOfSpace | Self::ReadOnly | Self::Locked | Self::Collision => false,
        }
    }
}
