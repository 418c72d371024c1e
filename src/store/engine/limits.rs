//! The limits that apply to the databases of all tenants: `[gateway.databases]`.

use std::time::Duration;

/// What an open SQLite connection counts for: what `benches/quiet` measures for a small account, rounded up. Large
/// accounts take up to 2 MiB more. benches/NOTEBOOK.md has the parts.
///
/// Larger: fewer connections are kept open than there is memory for. Smaller: they take more than `sqlite_mib`.
const SQLITE_KIB: u32 = 650;

/// Limits on connections and time, for all tenants together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseLimits {
    /// The most connections to Postgres that are open at once.
    pub max_connections: u32,
    /// The most connections to one Postgres database that tenants with a schema each share.
    pub max_shared_connections: u32,
    /// How much memory open connections to SQLite files may take, in MiB.
    pub sqlite_mib: u32,
    /// How long a request waits for a connection.
    pub wait: Duration,
    /// How long one statement of a request may run.
    pub statement: Duration,
    /// A connection to Postgres that has been idle for this long is closed.
    pub idle: Duration,
    /// A connection to a SQLite file that has been idle for this long is closed.
    pub sqlite_idle: Duration,
    /// Changes of a submission that follow each other by less than this are one event of a webhook.
    pub settle: Duration,
    /// Whether old deletions of the change log and old hours of tokens are deleted in the background.
    pub deletes_old_rows: bool,
}

impl Default for DatabaseLimits {
    fn default() -> Self {
        Self {
            // Larger: Postgres may run out of connections. Smaller: requests wait.
            max_connections: 200,
            // Larger: one shared database gets connections that others wait for. Smaller: requests of its tenants wait.
            max_shared_connections: 20,
            // Larger: a node with many tenants may run out of memory, threads or descriptors. Smaller: it opens a file
            // for more of its requests, which then take several times as long. This keeps 1,600 connections open, and
            // fits into 2 GiB next to the bodies of requests.
            sqlite_mib: 1024,
            // Larger: requests wait longer for a database that is stuck. Smaller: bursts are refused that could be
            // served.
            wait: Duration::from_secs(1),
            // Larger: one expensive search occupies a connection for longer. Smaller: searches of large accounts are
            // cut off.
            statement: Duration::from_secs(10),
            // Larger: quiet tenants keep connections open. Smaller: a tenant with one request a minute opens one each
            // time.
            idle: Duration::from_secs(60),
            // Larger: the memory of a busy hour is kept for longer. Smaller: a tenant that calls every few hours opens
            // its file each time.
            sqlite_idle: Duration::from_secs(4 * 60 * 60),
            // Larger: webhooks are sent later. Smaller: a product that writes a submission and its answers in several
            // transactions causes several events.
            settle: Duration::from_millis(500),
            deletes_old_rows: true,
        }
    }
}

impl DatabaseLimits {
    /// The most connections to SQLite files that are open at once.
    #[must_use]
    pub fn max_sqlite_connections(&self) -> u32 {
        (self.sqlite_mib.saturating_mul(1024) / SQLITE_KIB).max(1)
    }

    /// The most connections to SQLite files that are closing while as many as allowed are open.
    #[must_use]
    pub fn max_sqlite_closing(&self) -> u32 {
        // Larger: a disk that hangs collects more threads and descriptors. Smaller: while a disk syncs slowly, requests
        // wait for the files of other accounts to be closed: 64 that take 0.2 s each are 320 a second.
        const RANGE: (u32, u32) = (4, 64);
        (self.max_sqlite_connections() / 4).clamp(RANGE.0, RANGE.1)
    }

    /// The largest `sqlite_mib` with which no more than a number of connections are open.
    #[must_use]
    pub fn sqlite_mib_of(connections: u32) -> u32 {
        // One KiB less than the next connection needs.
        ((connections.saturating_add(1).saturating_mul(SQLITE_KIB) - 1) / 1024).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_connections_gets_the_memory_that_it_counts_for_and_no_more() {
        for connections in 2..5_000 {
            let with = |sqlite_mib| DatabaseLimits { sqlite_mib, ..DatabaseLimits::default() }.max_sqlite_connections();
            let mib = DatabaseLimits::sqlite_mib_of(connections);
            assert!(with(mib) <= connections && with(mib + 1) > connections, "{connections}: {mib} MiB");
        }
    }
}
