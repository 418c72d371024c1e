//! The `[gateway.databases]` table: limits that apply to the databases of all tenants together.
//!
//! Owns its keys and ranges. The store enforces the limits.

use std::time::Duration;

use super::declaration::keys;
use super::table::TableReader;
use crate::store::DatabaseLimits;

/// The largest number of connections. Larger: a typing mistake passes, since no process may open that many files. Smaller: a
/// large machine can't use what it has.
const MAX_CONNECTIONS: u32 = 100_000;

keys! { key:
    max_connections = integer(1..=MAX_CONNECTIONS).default("200"),
        "the most connections to Postgres that are open at once";
    max_shared_connections = integer(1..=MAX_CONNECTIONS).default("20"),
        "the most connections to one Postgres database that tenants share by \
         [a schema each](../src/store/README.md#many-tenants-in-one-database)";
    /// The largest. Larger: a typing mistake passes, since no process may have that many threads. Smaller: a large machine
    /// can't use what it has.
    sqlite_mib = integer(1..=65_536).default("1024"),
        "how much memory open SQLite files may take, in MiB; each counts as 650 KiB, so the default keeps 1,600 open";
    /// The largest. Larger: requests reach their own time limit before they get a connection. Smaller: group writes, whose time
    /// limit is a minute by default, can't wait as long as they may take.
    wait_ms = integer(1..=60_000).default("1000"), "how long a request waits for a connection";
    /// The largest. Larger: statements run on after the request that waits for them has timed out. Smaller: a group write can't
    /// use its default time limit for a single statement.
    statement_seconds = integer(1..=60).default("10"),
        "how long a statement may run (`PUT /group`: 60 s; bringing the search tables up to date: three times as long, and 20 \
         minutes if that was too short)";
    /// The largest. Larger: a connection would in effect never be closed. Smaller: connections can't be kept through a quiet
    /// hour.
    idle_seconds = integer(1..=3600).default("60"), "idle connections to Postgres are closed after this time";
    /// The largest: a week. Larger: a connection would in effect never be closed. Smaller: an account that calls once a day
    /// opens its file each time.
    sqlite_idle_seconds = integer(1..=604_800).without("`idle_seconds` if that is set, otherwise 14400"),
        "idle SQLite files are closed after this time";
}

/// Reads the table.
pub(super) fn read(mut table: TableReader<'_, '_>) -> DatabaseLimits {
    let default = DatabaseLimits::default();
    let has_idle = table.contains(&key::idle_seconds);
    let idle = table.duration(&key::idle_seconds);
    let sqlite_idle = table.given_integer(&key::sqlite_idle_seconds).map(|seconds| Duration::from_secs(seconds.into()));
    let limits = DatabaseLimits {
        max_connections: table.integer(&key::max_connections),
        max_shared_connections: table.integer(&key::max_shared_connections),
        wait: table.duration(&key::wait_ms),
        statement: table.duration(&key::statement_seconds),
        idle,
        sqlite_mib: table.integer(&key::sqlite_mib),
        // Before there was a key for SQLite, the other one was for both.
        sqlite_idle: sqlite_idle.unwrap_or(if has_idle { idle } else { default.sqlite_idle }),
        // A key of webhooks.
        settle: default.settle,
        deletes_old_rows: default.deletes_old_rows,
    };
    table.finish();
    limits
}
