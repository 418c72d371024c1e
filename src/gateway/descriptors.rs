//! Divides the file descriptors of the process: its own needs first, the rest for client connections.
//!
//! A client connection takes a descriptor, and so does everything that serves it. Clients that hold all of them would
//! keep the gateway from reaching Redis and the databases. So descriptors for those are set aside first, and the cap
//! on client connections is lowered if the system's limit is too low for the configuration.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{GatewayConfig, Limits, RedisTarget, WebhookConfig};
use crate::edge::{admin, operator};
use crate::store::DatabaseLimits;

/// Descriptors for the process: those open from the start (log, runtime, signals, watched folders, the connection to
/// a collector), and short-lived ones (certificate and configuration files, sockets for name resolution).
///
/// Larger: fewer client connections if the limit is low. Smaller: a reload or a handshake fails while all connections
/// are taken.
const PROCESS: u64 = 64;

/// Descriptors per Redis server: the connections in use, the subscription, and their successors before they are
/// closed.
///
/// Larger: fewer client connections if the limit is low. Smaller: Redis can't be reconnected while all connections
/// are taken.
const REDIS: u64 = 8;

/// Reserved for the registry and its snapshot: four connections to SQLite files each, of three descriptors.
///
/// Larger: fewer client connections if the limit is low. Smaller: the registry can't be read while all connections are
/// taken.
const REGISTRY: usize = 24;

/// Descriptors per connection to a SQLite file: the file, its WAL, and its shared memory. A Postgres connection takes
/// one.
const SQLITE: u64 = 3;

/// Descriptors per request to a receiver of webhooks: its connection, and one that is kept for the next.
const WEBHOOK: u64 = 2;

/// Webhooks get at most one in this many of the descriptors that are to be divided.
///
/// Larger: fewer webhooks at once if the limit is low. Smaller: fewer clients and databases.
const WEBHOOK_SHARE: u64 = 8;

/// Raises the soft limit on open files to the hard limit. Shells and containers set it to 1024 for programs that use
/// `select`, which can't handle higher descriptors (select(2)); nothing here does.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, open_files = current, "limit of open files not raised");
    }
}

/// How many descriptors clients and databases may use, by the configuration or by the system's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShare {
    /// The system's limit.
    pub open_files: u64,
    /// Maximum number of client connections.
    pub connections: usize,
    /// Maximum per client address.
    pub connections_per_address: u32,
    /// Maximum number of connections to Postgres.
    pub postgres: u32,
    /// Maximum memory of connections to SQLite files, in MiB.
    pub sqlite_mib: u32,
    /// Maximum number of requests to receivers of webhooks at once.
    pub webhooks: u32,
}

impl DescriptorShare {
    /// By the current limit of this process.
    #[must_use]
    pub fn now(config: &GatewayConfig) -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), config)
    }

    /// By the limit after a gateway has raised it ([`raise_limit`]).
    #[must_use]
    pub fn once_raised(config: &GatewayConfig) -> Self {
        Self::of(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX), config)
    }

    fn of(open_files: u64, config: &GatewayConfig) -> Self {
        let admin = if config.admin_listen.is_some() { 1 + admin::CONNECTIONS } else { 0 };
        let operator = config.operator.as_ref().map_or(0, |config| config.listen.len() * (1 + operator::CONNECTIONS));
        let admin = admin + operator + if config.registry.is_some() { REGISTRY } else { 0 };
        let redis = match config.redis.as_ref().map(|redis| &redis.target) {
            None => 0,
            Some(RedisTarget::Server { .. }) => 1,
            // The server, and one Sentinel at a time.
            Some(RedisTarget::Sentinel { .. }) => 2,
            Some(RedisTarget::Cluster { nodes }) => nodes.len(),
        };
        let listeners = config.listen.len() + admin;
        let own = PROCESS + REDIS * as_u64(redis) + as_u64(listeners);
        // Leave something for both, even with a hopelessly low limit.
        let rest = open_files.saturating_sub(own).max(open_files / 4);
        let webhooks = wanted_webhooks(config).min(rest / WEBHOOK_SHARE / WEBHOOK);
        let rest = rest - WEBHOOK * webhooks;
        let limits = config.limits.connection;
        let postgres = u64::from(config.databases.max_connections).min(rest / 4).max(1);
        let sqlite_mib = Self::sqlite_mib(config.databases, (rest / 2).saturating_sub(postgres));
        let databases = postgres + descriptors_of_sqlite(DatabaseLimits { sqlite_mib, ..config.databases });
        let connections = as_u64(limits.connections).min(rest.saturating_sub(databases)).max(1);
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        let is_lowered = connections < limits.connections;
        // If the configuration keeps one address from taking all connections, so must the lowered cap.
        let half = u32::try_from(connections.div_ceil(2)).unwrap_or(u32::MAX);
        let bounded = is_lowered && as_u64(limits.connections) > u64::from(limits.connections_per_address);
        let connections_per_address =
            if bounded { limits.connections_per_address.min(half) } else { limits.connections_per_address };
        let postgres = u32::try_from(postgres).unwrap_or(u32::MAX);
        let webhooks = u32::try_from(webhooks).unwrap_or(u32::MAX);
        Self { open_files, connections, connections_per_address, postgres, sqlite_mib, webhooks }
    }

    /// The configured `sqlite_mib`, or as much of it as a number of descriptors allows.
    fn sqlite_mib(configured: DatabaseLimits, descriptors: u64) -> u32 {
        if descriptors_of_sqlite(configured) <= descriptors {
            return configured.sqlite_mib;
        }
        // Those that may be closing are at most a quarter more, or 4.
        let connections = (descriptors / SQLITE).saturating_sub(4) * 4 / 5;
        DatabaseLimits::sqlite_mib_of(u32::try_from(connections).unwrap_or(u32::MAX)).min(configured.sqlite_mib)
    }

    /// Applies this share to the configured limits.
    pub(super) fn apply(self, config: &GatewayConfig) -> (Limits, DatabaseLimits, WebhookConfig) {
        let (mut limits, mut databases, mut webhooks) = (config.limits, config.databases, config.webhooks.clone());
        limits.connection.connections = self.connections;
        limits.connection.connections_per_address = self.connections_per_address;
        databases.max_connections = self.postgres;
        databases.sqlite_mib = self.sqlite_mib;
        databases.settle = webhooks.settle;
        webhooks.requests.in_flight = self.webhooks.max(1);
        (limits, databases, webhooks)
    }

    /// The limits that are lower than configured, one line each.
    #[must_use]
    pub fn lowered(self, config: &GatewayConfig) -> Vec<String> {
        let limits = config.limits.connection;
        let lines = [
            ("limits.connections", as_u64(limits.connections), as_u64(self.connections)),
            (
                "limits.connections_per_address",
                limits.connections_per_address.into(),
                self.connections_per_address.into(),
            ),
            ("databases.max_connections", config.databases.max_connections.into(), self.postgres.into()),
            ("databases.sqlite_mib", config.databases.sqlite_mib.into(), self.sqlite_mib.into()),
            ("webhooks.in_flight", wanted_webhooks(config), self.webhooks.into()),
        ];
        let lowered = lines.into_iter().filter(|(_, configured, had)| had < configured);
        let line = |(key, configured, had)| {
            let limit = self.open_files;
            format!("`{key}` = {configured} is lowered to {had}: the limit of open files is {limit}")
        };
        lowered.map(line).collect()
    }
}

/// How many requests to receivers may run at once, by the configuration.
fn wanted_webhooks(config: &GatewayConfig) -> u64 {
    if config.webhooks.enabled { config.webhooks.requests.in_flight.into() } else { 0 }
}

/// The descriptors of all connections to SQLite files, open and closing.
fn descriptors_of_sqlite(limits: DatabaseLimits) -> u64 {
    SQLITE * (u64::from(limits.max_sqlite_connections()) + u64::from(limits.max_sqlite_closing()))
}

fn as_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(lines: &str) -> GatewayConfig {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.toml");
        let text = format!("[gateway]\nlisten = [{{ address = '127.0.0.1:0', tls = false }}]\n{lines}");
        let tenant = "\n[[tenant]]\nslug = 'acme'\nname = 'Acme'\naddress = 'a.example.com'\ndatabase = 'sqlite:a.db'";
        std::fs::write(&file, text + tenant).unwrap();
        Config::load(&file).unwrap().gateway
    }

    #[test]
    fn with_room_for_all_nothing_is_lowered() {
        let config = config("redis = 'redis://127.0.0.1'\nadmin_listen = '127.0.0.1:0'");
        let share = DescriptorShare::of(20_000, &config);
        assert_eq!(share.lowered(&config), Vec::<String>::new());
        let applied = share.apply(&config);
        assert_eq!(applied, (config.limits, config.databases, config.webhooks));
    }

    #[test]
    fn clients_get_the_descriptors_that_databases_redis_and_the_operator_leave() {
        let config = config("redis = 'redis://127.0.0.1'\nadmin_listen = '127.0.0.1:0'");
        let share = DescriptorShare::of(256, &config);
        let own = PROCESS + REDIS + 2 + as_u64(admin::CONNECTIONS);
        let (_, limits, _) = share.apply(&config);
        let databases = u64::from(share.postgres) + descriptors_of_sqlite(limits);
        assert!(share.postgres >= 10 && limits.max_sqlite_connections() >= 3, "{share:?}");
        assert!(share.connections >= 40, "{share:?}");
        let webhooks = WEBHOOK * u64::from(share.webhooks);
        assert!(own + databases + webhooks + as_u64(share.connections) <= 256, "{share:?}");
        assert!(share.connections_per_address as usize <= share.connections.div_ceil(2), "{share:?}");
        let lowered = share.lowered(&config).join("\n");
        let expected =
            format!("`limits.connections` = 10000 is lowered to {}: the limit of open files is 256", share.connections);
        assert!(lowered.contains(&expected), "{lowered}");
    }

    #[test]
    fn clients_and_databases_get_descriptors_whatever_the_limit() {
        let config = config("admin_listen = '127.0.0.1:0'\nlimits = { connections_per_address = 1000000 }");
        for limit in [0, 1, 16, 64, 100, 200, 1024, u64::MAX] {
            let share = DescriptorShare::of(limit, &config);
            assert!(share.connections >= 1 && share.postgres >= 1 && share.sqlite_mib >= 1, "{share:?}");
            assert_eq!(share.connections_per_address, 1_000_000, "nobody wants this one limited");
        }
    }
}
