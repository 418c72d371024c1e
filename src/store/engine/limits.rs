//! What the databases of all tenants may take, and how long they may take it.

use std::time::Duration;

/// What holds for the databases of all tenants: `[gateway.databases]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseLimits {
    /// The most connections that are open at once, SQLite's among them: each costs a thread and some files.
    pub max_connections: u32,
    /// How long a request waits for a connection.
    pub wait: Duration,
    /// How long one statement of a request may run.
    pub statement: Duration,
    /// A connection that nobody uses for this long is closed.
    pub idle: Duration,
}

impl Default for DatabaseLimits {
    fn default() -> Self {
        Self {
            // Below what one Postgres server takes with room for others, and far below a process's files.
            max_connections: 200,
            // Longer, and a stuck database holds its callers; shorter, and a burst that would be served is refused.
            wait: Duration::from_secs(1),
            // Longer, and one bad search holds a connection that others wait for; shorter, and a search of a large
            // account that would have answered is cut off.
            statement: Duration::from_secs(10),
            // A thousand quiet tenants hold no connections; one with a caller a minute keeps one.
            idle: Duration::from_secs(60),
        }
    }
}
