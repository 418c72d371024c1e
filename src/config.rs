//! The configuration, checked: what the rest of the gateway is built from.
//!
//! Owns the meaning of `tenants.toml`. A [`Config`] exists only when the files had no fault; behind it nothing is
//! checked again. Reading has two stages, and each goes on after a fault so that an operator learns of all at once:
//!
//! 1. `include` finds the files and `sections` cuts them; `file` walks the TOML as written, with the places of keys and
//!    values, and `gateway`, `tenant` and `database` give each table by itself its meaning.
//! 2. `unique` compares the tables with one another, and `coverage` with the certificates.
//!
//! The gateway starts after the first of the two comparisons: it must not wait for the certificates of thousands of
//! tenants, nor fail for one of them. `formgate check` and a reload make both.
//!
//! Every fault is a [`Problem`]; `source` sees to it that no report shows a secret.

mod coverage;
mod database;
mod databases;
mod file;
mod folders;
mod gateway;
mod hsts;
mod include;
mod keys;
mod limits;
mod listen;
mod problem;
mod secret;
mod sections;
mod source;
mod tenant;
#[cfg(test)]
mod tests;
mod unique;
mod watched;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use jiff::tz::TimeZone;
use secrecy::{ExposeSecret, SecretString};

use self::file::LoadContext;
pub use self::include::Sources;
pub use self::limits::{ConnectionLimits, Limits, RequestLimits};
pub use self::listen::{ListenConfig, ListenProtocol};
pub use self::problem::{Problem, Problems, TenantOrigin};
pub use self::secret::holds_password;
use self::source::SourceSpan;
use self::tenant::LoadedTenant;
pub use self::watched::WatchedFolders;
pub use crate::certificate::CertificateFiles;
use crate::host::{HostName, HostPattern};
use crate::metrics::TenantLabels;
use crate::store::{DatabaseLimits, DatabaseLocation, Guard};

/// Everything that `serve` needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// What holds for the gateway as a whole.
    pub gateway: GatewayConfig,
    /// The tenants, in the order of the files.
    pub tenants: Vec<Arc<TenantConfig>>,
    /// Where a change may be one of the configuration.
    pub folders: WatchedFolders,
    /// What was read.
    pub sources: Sources,
    /// When the reading of the files began.
    pub read_at: SystemTime,
    /// What needs attention although the configuration has no fault.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads a file and what it includes, and compares the tenants with one another. Blocks on the files of the
    /// configuration and opens no other: how long it takes depends on no certificate and no database.
    ///
    /// # Errors
    /// Every fault of all files, in their order.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let environment = |name: &str| std::env::var(name).ok();
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let read = Examination::read(path, &LoadContext::new(&environment, None, threads), CertificateChecks::Skip);
        read.into_config()
    }

    /// Logs what needs attention.
    pub fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!(warning, "the configuration is served, with a warning");
        }
    }

    /// Reads as [`load`](Self::load) does and checks everything that can be known without a connection, certificates
    /// too: what `formgate check` and a reload do. What `served` holds already is not checked again, so that a reload
    /// opens only what is new; `check` starts with nothing.
    #[must_use]
    pub fn examine(path: &Path, served: Option<&ServedConfig<'_>>) -> Examination {
        // One thread: a reload shares the machine with requests.
        let environment = |name: &str| std::env::var(name).ok();
        Examination::read(path, &LoadContext::new(&environment, served, 1), CertificateChecks::Run)
    }

    /// Examines with an environment other than the process's.
    #[cfg(test)]
    fn load_with(path: &Path, environment: secret::Environment<'_>) -> Result<Self, Problems> {
        Examination::read(path, &LoadContext::new(environment, None, 2), CertificateChecks::Run).into_config()
    }
}

/// The configuration that is served, as far as a new one is compared with it.
#[expect(missing_debug_implementations, reason = "a function has nothing to show")]
pub struct ServedConfig<'s> {
    gateway: Option<&'s CertificateFiles>,
    tenant: &'s (dyn Fn(&str) -> Option<Arc<TenantConfig>> + Sync),
    /// The tenants by the words that said what they are.
    by_fingerprint: HashMap<NonZero<u64>, &'s Arc<TenantConfig>>,
}

impl<'s> ServedConfig<'s> {
    /// The files of the gateway's certificate, where it has one, a tenant by its slug, and all tenants.
    pub fn new(
        gateway: Option<&'s CertificateFiles>,
        tenant: &'s (dyn Fn(&str) -> Option<Arc<TenantConfig>> + Sync),
        all: impl Iterator<Item = &'s Arc<TenantConfig>>,
    ) -> Self {
        Self {
            gateway,
            tenant,
            by_fingerprint: all.filter_map(|config| Some((config.section_fingerprint?, config))).collect(),
        }
    }
}

/// Whether certificates are read for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateChecks {
    Run,
    Skip,
}

/// All that can be known of a configuration, also of a faulty one.
#[derive(Debug)]
pub struct Examination {
    /// The gateway's table, where it is whole.
    pub gateway: Option<GatewayConfig>,
    /// The tenants whose tables are whole: all, where there is no problem. Those that are served already are the same.
    pub tenants: Vec<Arc<TenantConfig>>,
    /// Every fault.
    pub problems: Vec<Problem>,
    /// What needs attention, in the order of the files.
    pub warnings: Vec<Problem>,
    /// Where a change may mend it.
    pub folders: WatchedFolders,
    /// What was read.
    pub sources: Sources,
    redis: Option<SourceSpan>,
    read_at: SystemTime,
}

impl Examination {
    fn read(path: &Path, context: &LoadContext<'_>, certificates: CertificateChecks) -> Self {
        let read_at = SystemTime::now();
        let files = include::read(path, context);
        unique::check(&files.tenants, context);
        if certificates == CertificateChecks::Run {
            coverage::check(files.gateway.as_ref(), &files.tenants, context);
        }
        let redis = files.gateway.as_ref().and_then(|gateway| gateway.redis.clone());
        let gateway = files.gateway.and_then(|gateway| gateway.config);
        let mut tenants = Vec::with_capacity(files.tenants.len());
        tenants.extend(files.tenants.into_iter().filter_map(LoadedTenant::into_config));
        let folders = WatchedFolders::of(files.folders, gateway.as_ref(), &tenants);
        let (problems, sources, warnings) = (context.take_problems(), files.sources, files.warnings);
        Self { gateway, tenants, problems, warnings, folders, sources, redis, read_at }
    }

    /// A fault of the Redis that the gateway's table names; the report points at the key and does not show its value.
    #[must_use]
    pub fn redis_problem(&self, title: impl Into<String>) -> Option<Problem> {
        self.redis.as_ref().map(|span| Problem::at(span, title))
    }

    /// The configuration, if it has no fault.
    ///
    /// # Errors
    /// Every fault, in the order of the files.
    pub fn into_config(self) -> Result<Config, Problems> {
        let Self { gateway, tenants, problems, warnings, folders, sources, redis: _, read_at } = self;
        Problems::none_of(problems)?;
        let gateway = gateway.expect("without a fault, the gateway's table is whole");
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Config { gateway, tenants, folders, sources, read_at, warnings })
    }
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
    /// The certificate of the sign-in addresses; none where no entry of `listen` speaks TLS.
    pub certificate: Option<CertificateFiles>,
    /// The most bytes that certificates of tenants take in memory.
    pub certificate_cache: u64,
    /// The span in which `requests_per_minute` requests are admitted: 60 s, shorter in tests.
    pub quota_window: Duration,
    /// How long a stop goes on accepting, not ready any more, until balancers have noticed.
    pub shutdown_delay: Duration,
    /// How long a stop then waits for requests in flight.
    pub drain: Duration,
    /// What every response over HTTPS has as `Strict-Transport-Security`, if it has one.
    pub hsts: Option<HeaderValue>,
    /// Which tenants are counted by themselves.
    pub tenant_labels: TenantLabels,
    /// What callers may take.
    pub limits: Limits,
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
    fn fields(&self) -> (&'static str, Vec<&str>) {
        match self {
            Self::Server { url } => ("server", vec![url.expose_secret()]),
            Self::Cluster { nodes } => ("cluster", nodes.iter().map(ExposeSecret::expose_secret).collect()),
            Self::Sentinel { sentinels, master, username, password, database: _ } => {
                let mut fields = vec![master.as_str(), username.as_deref().unwrap_or_default()];
                fields.push(password.as_ref().map(ExposeSecret::expose_secret).unwrap_or_default());
                fields.extend(sentinels.iter().map(ExposeSecret::expose_secret));
                ("sentinel", fields)
            }
        }
    }

    fn database(&self) -> u32 {
        if let Self::Sentinel { database, .. } = self { *database } else { 0 }
    }
}

impl PartialEq for RedisTarget {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields() && self.database() == other.database()
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

/// One `[[tenant]]` table. A gateway holds one a tenant, whether or not anybody asks for it: so nothing stands here twice,
/// and nothing has room to grow.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// The tenant's short name: lower-case letters, digits and hyphens.
    pub slug: Arc<str>,
    /// What callers read in `GET /me`.
    pub name: Box<str>,
    /// The sign-in address.
    pub address: HostName,
    /// The custom domains.
    pub domains: Box<[HostName]>,
    /// Certificates of hosts, which go before the gateway's.
    pub certificates: Box<[(HostPattern, CertificateFiles)]>,
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
    pub origin: TenantOrigin,
    /// A number for the words that said all this, if they stood in a piece of a file by themselves: a reload that meets
    /// them again need not read them.
    pub(crate) section_fingerprint: Option<NonZero<u64>>,
}

impl TenantConfig {
    /// Every host of the tenant.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        std::iter::once(&self.address).chain(&self.domains)
    }

    /// Whether two say the same, wherever they were written.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self {
            slug,
            name,
            address,
            domains,
            certificates,
            database,
            timezone,
            requests_per_minute,
            max_connections,
            max_in_flight,
            group_guard,
            origin: _,
            section_fingerprint: _,
        } = self;
        *slug == other.slug
            && *name == other.name
            && *address == other.address
            && *domains == other.domains
            && *certificates == other.certificates
            && *database == other.database
            && *timezone == other.timezone
            && *requests_per_minute == other.requests_per_minute
            && *max_connections == other.max_connections
            && *max_in_flight == other.max_in_flight
            && *group_guard == other.group_guard
    }

    /// A fault of the tenant's database; the report points at the value of `database` and does not show it.
    ///
    /// The message must not quote the URL: it is a secret.
    #[must_use]
    pub fn database_problem(&self, message: impl Into<String>) -> Problem {
        self.origin.database_problem(&self.slug, message)
    }
}
