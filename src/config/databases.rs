//! The `[gateway.databases]` table: what holds for the databases of all tenants together.

use std::time::Duration;

use super::file::TableReader;
use crate::store::DatabaseLimits;

/// Past this a typing mistake is likelier than a need: no process has as many files.
const MAX_CONNECTIONS: u32 = 100_000;
/// Longer than a request may take.
const MAX_WAIT_MS: u32 = 60_000;
/// As long as the longest request.
const MAX_STATEMENT_SECONDS: u32 = 60;
/// Past this a connection might as well never be closed.
const MAX_IDLE_SECONDS: u32 = 3600;

/// Reads the table, or takes the defaults where there is none.
pub(super) fn read(table: Option<TableReader<'_, '_>>) -> DatabaseLimits {
    let default = DatabaseLimits::default();
    let Some(mut table) = table else { return default };
    let seconds = |duration: Duration| u32::try_from(duration.as_secs()).expect("a default of seconds");
    let milliseconds = |duration: Duration| u32::try_from(duration.as_millis()).expect("a default of milliseconds");
    let limits = DatabaseLimits {
        max_connections: table.integer("max_connections", 1..=MAX_CONNECTIONS, default.max_connections),
        wait: Duration::from_millis(table.integer("wait_ms", 1..=MAX_WAIT_MS, milliseconds(default.wait)).into()),
        statement: Duration::from_secs(
            table.integer("statement_seconds", 1..=MAX_STATEMENT_SECONDS, seconds(default.statement)).into(),
        ),
        idle: Duration::from_secs(table.integer("idle_seconds", 1..=MAX_IDLE_SECONDS, seconds(default.idle)).into()),
    };
    table.finish();
    limits
}
