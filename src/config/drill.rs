//! What `formgate serve --drill` turns off, whatever the files say.
//!
//! A restored backup is tried with a copy of the real configuration, and the copy must not act. Its databases know an old
//! state, which real receivers would believe; its registry names it to the real nodes; its Redis has their windows. So
//! [`Config::in_mode`] turns off each part by which a node acts on anything but the databases of its tenants, and whatever
//! changes those without a request. Each part reads a setting of its own, and only this page knows why.

use super::Config;

/// What a node is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It serves, and does all that is configured.
    #[default]
    Production,
    /// It tries a restored backup, and does nothing but answer requests.
    Drill,
}

impl Mode {
    /// What a drill leaves alone, for the log and `/readyz`. Traces are turned off with the log, by [`crate::telemetry::DefaultLog::Drill`].
    pub const TURNED_OFF: &str = "webhooks, domains and certificate orders, writes to the registry, Redis, OpenID, OTLP, \
        and the deletion of old rows are off";
}

impl Config {
    /// The same configuration for a node of this mode.
    #[must_use]
    pub fn in_mode(mut self, mode: Mode) -> Self {
        let gateway = &mut self.gateway;
        gateway.mode = mode;
        if mode == Mode::Production {
            return self;
        }
        // No deliveries, no leases of subscriptions, and no tests, which a receiver can't tell from an event.
        gateway.webhooks.enabled = false;
        gateway.webhooks.sends_tests = false;
        // Windows, announcements and usage are those of the real nodes.
        gateway.redis = None;
        // Rows that were kept long enough when the backup was made may be why it is tried.
        gateway.databases.deletes_old_rows = false;
        // The registry is followed, and its certificates are served: only nothing is written, the snapshot included.
        if let Some(registry) = &mut gateway.registry {
            registry.is_written = false;
        }
        // No leases, no orders, no look at DNS.
        if let Some(domains) = &mut gateway.domains {
            domains.is_worked_on = false;
        }
        // A sign-in would be one of the real application. `formgate admin link` leads into the area.
        if let Some(administration) = &mut gateway.administration {
            administration.asks_providers = false;
        }
        self
    }
}
