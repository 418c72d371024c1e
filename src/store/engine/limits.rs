//! The limits that apply to the databases of all tenants: `[gateway.databases]`.

use std::time::Duration;

/// Limits on connections and time, for all tenants together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseLimits {
    /// The most connections that are open at once, SQLite's included: each of those costs a thread and some files.
    pub max_connections: u32,
    /// The most connections to one Postgres database that tenants with a schema each share.
    pub max_shared_connections: u32,
    /// How long a request waits for a connection.
    pub wait: Duration,
    /// How long one statement of a request may run.
    pub statement: Duration,
    /// A connection that has been idle for this long is closed.
    pub idle: Duration,
}

impl Default for DatabaseLimits {
    fn default() -> Self {
        Self {
            // Larger: a process may run out of file descriptors, and Postgres out of connections. Smaller: requests
            // wait.
            max_connections: 200,
            // Larger: one shared database gets connections that others wait for. Smaller: requests of its tenants wait.
            max_shared_connections: 20,
            // Larger: requests wait longer for a database that is stuck. Smaller: bursts are refused that could be
            // served.
            wait: Duration::from_secs(1),
            // Larger: one expensive search occupies a connection for longer. Smaller: searches of large accounts are
            // cut off.
            statement: Duration::from_secs(10),
            // Larger: quiet tenants keep connections open. Smaller: a tenant with one request a minute opens one each
            // time.
            idle: Duration::from_secs(60),
        }
    }
}
