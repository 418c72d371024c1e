//! The `[gateway.databases]` table: limits that apply to the databases of all tenants together.
//!
//! Owns its keys and ranges. The store owns the defaults and enforces the limits.

use std::time::Duration;

use super::table::TableReader;
use crate::store::DatabaseLimits;

/// The largest `max_connections`. Larger: a typing mistake passes, since no process may open that many files. Smaller:
/// a large machine can't use what it has.
const MAX_CONNECTIONS: u32 = 100_000;
/// The largest `wait_ms`. Larger: requests reach their own time limit before they get a connection. Smaller: group
/// writes, whose time limit is a minute by default, can't wait as long as they may take.
const MAX_WAIT_MS: u32 = 60_000;
/// The largest `statement_seconds`. Larger: statements run on after the request that waits for them has timed out.
/// Smaller: a group write can't use its default time limit for a single statement.
const MAX_STATEMENT_SECONDS: u32 = 60;
/// The largest `idle_seconds`. Larger: a connection would in effect never be closed. Smaller: connections can't be
/// kept through a quiet hour.
const MAX_IDLE_SECONDS: u32 = 3600;
/// The largest `sqlite_mib`. Larger: a typing mistake passes, since no process may have that many threads. Smaller: a
/// large machine can't use what it has.
const MAX_SQLITE_MIB: u32 = 65_536;
/// The largest `sqlite_idle_seconds`: a week. Larger: a connection would in effect never be closed. Smaller: an account
/// that calls once a day opens its file each time.
const MAX_SQLITE_IDLE_SECONDS: u32 = 7 * 24 * 60 * 60;

/// No value of a key of seconds.
const NOT_SET: u32 = 0;

/// Reads the table; without one, returns the defaults.
pub(super) fn read(table: Option<TableReader<'_, '_>>) -> DatabaseLimits {
    let default = DatabaseLimits::default();
    let Some(mut table) = table else { return default };
    let seconds = |duration: Duration| u32::try_from(duration.as_secs()).expect("a default of seconds");
    let milliseconds = |duration: Duration| u32::try_from(duration.as_millis()).expect("a default of milliseconds");
    // Before there was a key for SQLite, this one was for both.
    let idle = table.integer("idle_seconds", 1..=MAX_IDLE_SECONDS, NOT_SET);
    let (idle, sqlite_idle) = match idle {
        NOT_SET => (default.idle, seconds(default.sqlite_idle)),
        idle => (Duration::from_secs(idle.into()), idle),
    };
    let limits = DatabaseLimits {
        max_connections: table.integer("max_connections", 1..=MAX_CONNECTIONS, default.max_connections),
        max_shared_connections: table.integer(
            "max_shared_connections",
            1..=MAX_CONNECTIONS,
            default.max_shared_connections,
        ),
        wait: Duration::from_millis(table.integer("wait_ms", 1..=MAX_WAIT_MS, milliseconds(default.wait)).into()),
        statement: Duration::from_secs(
            table.integer("statement_seconds", 1..=MAX_STATEMENT_SECONDS, seconds(default.statement)).into(),
        ),
        idle,
        sqlite_mib: table.integer("sqlite_mib", 1..=MAX_SQLITE_MIB, default.sqlite_mib),
        sqlite_idle: Duration::from_secs(
            table.integer("sqlite_idle_seconds", 1..=MAX_SQLITE_IDLE_SECONDS, sqlite_idle).into(),
        ),
        // A key of webhooks.
        settle: default.settle,
        deletes_old_rows: default.deletes_old_rows,
    };
    table.finish();
    limits
}
