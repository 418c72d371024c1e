//! The configuration, checked: what the rest of the gateway is built from.
//!
//! Owns the meaning of `tenants.toml`. A [`Config`] exists only when the files had no fault; behind it nothing is
//! checked again. Reading has two stages, and each goes on after a fault so that an operator learns of all at once:
//!
//! 1. `file` walks the TOML as written, with the places of keys and values; `include` finds the files, and
//!    `gateway`, `tenant` and `database` give each table by itself its meaning.
//! 2. `unique` and `coverage` compare the tables with one another and with the certificates.
//!
//! Every fault is a [`Problem`]; `source` sees to it that no report shows a secret.

mod coverage;
mod database;
mod databases;
mod file;
mod gateway;
mod include;
mod listen;
mod problem;
mod secret;
mod source;
mod tenant;
#[cfg(test)]
mod tests;
mod unique;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use secrecy::{ExposeSecret, SecretString};

use self::file::Reading;
pub use self::listen::{ListenConfig, Speaks};
pub use self::problem::{Origin, Problem, Problems};
use crate::metrics::TenantLabels;
use crate::store::{DatabaseLimits, DatabaseLocation, Guard};
pub use crate::tenant::certificate::CertificateFiles;
use crate::tenant::host::HostName;

/// Everything that `serve` needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// What holds for the gateway as a whole.
    pub gateway: GatewayConfig,
    /// The tenants, in the order of the files.
    pub tenants: Vec<TenantConfig>,
    /// Every folder in which a change of a file may change the configuration.
    pub folders: BTreeSet<PathBuf>,
    /// When the reading of the files began.
    pub read_at: SystemTime,
}

impl Config {
    /// Reads and checks a file, what it includes, and every certificate that they name. Blocks on the files; connects
    /// to nothing.
    ///
    /// # Errors
    /// Every fault of all files, in their order.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        Self::load_with(path, &|name| std::env::var(name).ok())
    }

    /// Reads with an environment other than the process's.
    fn load_with(path: &Path, environment: secret::Environment<'_>) -> Result<Self, Problems> {
        let read_at = SystemTime::now();
        let read = Self::read(path, environment);
        Problems::none_of(read.problems)?;
        let gateway = read.gateway.expect("without a fault, the gateway's table is whole");
        let mut config = Self { gateway, tenants: read.tenants, folders: read.folders, read_at };
        let own = config.tenants.iter().flat_map(|tenant| tenant.certificates.iter().map(|(_, files)| files));
        let files = own.chain([&config.gateway.certificate]).flat_map(|files| [&files.certificate, &files.private_key]);
        let folders: Vec<PathBuf> = files.filter_map(|file| file.parent()).map(Path::to_owned).collect();
        config.folders.extend(folders);
        Ok(config)
    }

    /// Reads as [`load`](Self::load) does, for who wants to know all that can be known of a faulty configuration: the
    /// tenants whose tables are whole, and every fault.
    #[must_use]
    pub fn examine(path: &Path) -> (Vec<TenantConfig>, Vec<Problem>) {
        let read = Self::read(path, &|name| std::env::var(name).ok());
        (read.tenants, read.problems)
    }

    fn read(path: &Path, environment: secret::Environment<'_>) -> Read {
        let reading = Reading::new(environment);
        let written = include::read(path, &reading);
        unique::check(&written.tenants, &reading);
        coverage::check(written.gateway.as_ref(), &written.tenants, &reading);
        Read {
            gateway: written.gateway.and_then(|gateway| gateway.config),
            tenants: written.tenants.into_iter().filter_map(|tenant| tenant.config).collect(),
            folders: written.folders,
            problems: reading.into_problems(),
        }
    }
}

/// What could be read of a configuration.
struct Read {
    gateway: Option<GatewayConfig>,
    /// Those whose tables are whole: all, where there is no problem.
    tenants: Vec<TenantConfig>,
    folders: BTreeSet<PathBuf>,
    problems: Vec<Problem>,
}

/// The `[gateway]` table.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where callers connect; at least one.
    pub listen: Vec<ListenConfig>,
    /// `/metrics`, `/healthz`, `/readyz`; left out, they are not served.
    pub admin_listen: Option<SocketAddr>,
    /// The shared window; left out, each process keeps its own.
    pub redis: Option<RedisConfig>,
    /// What holds for the databases of all tenants.
    pub databases: DatabaseLimits,
    /// The certificate of the sign-in addresses.
    pub certificate: CertificateFiles,
    /// The span in which `requests_per_minute` requests are admitted: 60 s, shorter in tests.
    pub quota_window: Duration,
    /// How long a stop goes on accepting, not ready any more, until balancers have noticed.
    pub shutdown_delay: Duration,
    /// How long a stop then waits for requests in flight.
    pub drain: Duration,
    /// Which tenants are counted by themselves.
    pub tenant_labels: TenantLabels,
}

/// The Redis that the nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// How it is reached.
    pub target: RedisTarget,
    /// How long one call may take before [`OnRedisFailure`] decides.
    pub timeout: Duration,
    /// What decides when the store does not answer.
    pub on_failure: OnRedisFailure,
}

/// What kind of Redis it is, and its addresses: `redis://`, `rediss://`, and for one server `unix://`.
#[derive(Clone, Debug)]
pub enum RedisTarget {
    /// One server.
    Server {
        /// Its address.
        url: SecretString,
    },
    /// The master that Sentinels name.
    Sentinel {
        /// The Sentinels; with `rediss://` the servers speak TLS too.
        sentinels: Vec<SecretString>,
        /// The name that they know it by.
        master: String,
        /// The ACL user at the servers.
        username: Option<String>,
        /// Its password.
        password: Option<SecretString>,
        /// The database's number.
        database: u32,
    },
    /// A cluster.
    Cluster {
        /// Some of its nodes; they name the others.
        nodes: Vec<SecretString>,
    },
}

impl RedisTarget {
    /// Every text of it, secrets too, and which kind it is.
    fn texts(&self) -> (&'static str, Vec<&str>) {
        match self {
            Self::Server { url } => ("server", vec![url.expose_secret()]),
            Self::Cluster { nodes } => ("cluster", nodes.iter().map(ExposeSecret::expose_secret).collect()),
            Self::Sentinel { sentinels, master, username, password, database: _ } => {
                let mut texts = vec![master.as_str(), username.as_deref().unwrap_or_default()];
                texts.push(password.as_ref().map(ExposeSecret::expose_secret).unwrap_or_default());
                texts.extend(sentinels.iter().map(ExposeSecret::expose_secret));
                ("sentinel", texts)
            }
        }
    }

    fn database(&self) -> u32 {
        if let Self::Sentinel { database, .. } = self { *database } else { 0 }
    }
}

impl PartialEq for RedisTarget {
    fn eq(&self, other: &Self) -> bool {
        self.texts() == other.texts() && self.database() == other.database()
    }
}

impl Eq for RedisTarget {}

/// The policy for requests that the shared window can't decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRedisFailure {
    /// Limit on this node alone.
    #[default]
    Local,
    /// Refuse with 503.
    Deny,
    /// Let through.
    Allow,
}

/// One `[[tenant]]` table.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// The tenant's short name: lower-case letters, digits and hyphens.
    pub slug: String,
    /// What callers read in `GET /me`.
    pub name: String,
    /// The sign-in address.
    pub address: HostName,
    /// The custom domains.
    pub domains: Vec<HostName>,
    /// Certificates of single hosts, which go before the gateway's.
    pub certificates: Vec<(HostName, CertificateFiles)>,
    /// The tenant's database.
    pub database: DatabaseLocation,
    /// The zone of plain dates and of `time` answers.
    pub timezone: TimeZone,
    /// The budget, shared by all tokens.
    pub requests_per_minute: u32,
    /// The most connections to the tenant's database from this node.
    pub max_connections: u32,
    /// The most requests that are served at once.
    pub max_in_flight: u32,
    /// How much of a group one write may detach; off by default, since membership is replaced as asked.
    pub group_guard: Option<Guard>,
    /// Where it was written, for faults that show only later.
    pub origin: Origin,
}
