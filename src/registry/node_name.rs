//! What a node calls itself in the registry.

use jiff::Timestamp;

/// This process, for as long as it runs.
#[derive(Debug)]
pub struct NodeName {
    id: String,
    host: String,
    name: String,
    started_at: Timestamp,
}

impl NodeName {
    /// A new one.
    #[must_use]
    pub fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "node" } else { host.trim() }.to_owned();
        Self {
            id: format!("{:016x}", rand::random::<u64>()),
            name: format!("{host}:{}", std::process::id()),
            host,
            started_at: Timestamp::now(),
        }
    }

    /// Its host and process, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// When it started.
    #[must_use]
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// What identifies it in the registry.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Default for NodeName {
    fn default() -> Self {
        Self::new()
    }
}
