//! Classifies the driver's errors: which failure of a database an error shows, if any, and what follows from it.
//!
//! The only place that knows SQLSTATEs and SQLite's result codes, apart from the two of a pooler ([`super::pooler`]).

use std::io;

use super::pooler;
use super::write_access::ReadOnlyFile;
use crate::metrics::DatabaseFailure;

impl DatabaseFailure {
    /// The failure that an error shows; none where the statement itself is at fault.
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
                if database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
                    if pooler::is_full(database.message()) { Some(Self::Full) } else { Self::of_postgres(&code) }
                } else {
                    Self::of_sqlite(code.parse().ok()?)
                }
            }
            _ => None,
        }
    }

    /// By the classes of appendix A of the Postgres manual.
    fn of_postgres(code: &str) -> Option<Self> {
        Some(match code {
            "53300" => Self::Full,
            "55P03" => Self::Locked,
            "57014" => Self::TimedOut,
            // Shut down, crashed, starting; the database dropped.
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Self::Lost,
            // A read-only transaction; a right that is missing.
            "25006" | "42501" => Self::ReadOnly,
            // A pooler has put a server connection behind ours that another client used meanwhile.
            code if pooler::is_lost_statement(code) => Self::Collision,
            _ => match code.get(..2)? {
                "08" => Self::Lost,
                // Authorisation, no such database.
                "28" | "3D" => Self::Unreachable,
                "40" => Self::Collision,
                "53" => Self::OutOfSpace,
                // Operator intervention, system error.
                "57" | "58" => Self::Other,
                _ => return None,
            },
        })
    }

    /// By the primary code, which stands in the low byte (sqlite.org/rescode.html).
    fn of_sqlite(code: i64) -> Option<Self> {
        Some(match code & 0xff {
            // BUSY, LOCKED
            5 | 6 => Self::Locked,
            // NOMEM, FULL
            7 | 13 => Self::OutOfSpace,
            // INTERRUPT: only our own handler does that
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

    /// Whether it shows that the database does not work, for any caller. All else is the answer of one that works: to what
    /// this caller asked (a slow statement, one that needs too much memory), to what two of them did at once, or to a write
    /// where reads can go on.
    pub(super) fn trips_breaker(self) -> bool {
        match self {
            Self::Unreachable | Self::Lost | Self::Unresponsive | Self::Other => true,
            Self::TimedOut | Self::Full | Self::OutOfSpace | Self::ReadOnly | Self::Locked | Self::Collision => false,
        }
    }
}
