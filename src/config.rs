//! The checked configuration from which the rest of the gateway is built.
//!
//! Owns the meaning of `tenants.toml`. A [`Config`] exists only if the files have no fault, so no later code checks it
//! again. Loading has two stages. Each continues after a fault, so that one run reports every fault:
//!
//! 1. `include` finds and parses the files; `table` reads the TOML with the spans of keys and values, and `gateway`, `tenant`
//!    and the modules of the tables in them interpret each table on its own.
//! 2. `unique` compares the tables with each other, and `coverage` compares hosts with certificates.
//!
//! The gateway starts after `unique` only: startup must neither wait for the certificates of thousands of tenants nor
//! fail because of one of them. `formgate check` and a reload run `coverage` too.
//!
//! A key is declared once, in a row beside the reader of its table: `declaration` explains how, and what follows from it.
//! `schema` writes all of them as a JSON schema. To add a key, add a row, the line that reads it, and a comment in
//! `tenants.example.toml`; `tests/documents.rs` then writes the documentation.
//!
//! Every fault is a [`Problem`]. `source` redacts the lines that reports quote, so that no report shows a secret.

mod acme;
mod administration;
mod certificate_files;
mod context;
mod coverage;
mod database;
mod databases;
mod declaration;
mod domains;
mod drill;
mod examination;
mod folders;
mod gateway;
mod hsts;
mod include;
mod limits;
mod listen;
mod oidc;
mod operator;
mod places;
mod problem;
mod redis;
pub mod registered;
mod registry;
mod schema;
mod secret;
mod sections;
mod sense;
mod source;
mod table;
mod tenant;
mod tenant_variables;
#[cfg(test)]
mod tests;
mod unique;
mod values;
mod watched;
mod webhooks;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use jiff::tz::TimeZone;

pub use self::acme::{AcmeConfig, AuthorityLimits};
pub use self::administration::{AdministrationConfig, Language};
use self::context::LoadContext;
use self::declaration::Shown;
pub use self::domains::DomainsConfig;
pub use self::drill::Mode;
use self::examination::CertificateChecks;
pub use self::examination::Examination;
pub use self::include::Sources;
pub use self::limits::{ConnectionLimits, Limits, RequestLimits};
pub use self::listen::{ListenConfig, ListenProtocol};
pub use self::oidc::OidcConfig;
pub use self::operator::{OperatorAddress, OperatorConfig};
pub use self::problem::{Problem, Problems, TenantOrigin};
pub use self::redis::{OnRedisFailure, RedisConfig, RedisTarget};
pub use self::registered::RegisteredTenant;
pub use self::registry::RegistryConfig;
pub use self::tenant_variables::TenantVariables;
pub use self::watched::WatchedFolders;
pub use self::webhooks::WebhookConfig;
pub use crate::certificate::CertificateFiles;
use crate::host::{HostName, HostPattern};
use crate::metrics::TenantLabels;
use crate::store::{DatabaseLimits, DatabaseLocation, Guard};

/// Everything that `serve` needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `[gateway]` table.
    pub gateway: GatewayConfig,
    /// The tenants, in the order of the files.
    pub tenants: Vec<Arc<TenantConfig>>,
    /// The folders to watch for changes.
    pub folders: WatchedFolders,
    /// The files that were read, to detect later whether they changed.
    pub sources: Sources,
    /// When reading the files began.
    pub read_at: SystemTime,
    /// What needs attention although the configuration has no fault.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads a file and the files it includes, and compares the tenants with each other. Blocks on reading these
    /// files. Opens no certificate and no database, so the time it takes does not depend on them.
    ///
    /// # Errors
    /// Every fault of all files, in file order.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let environment = |name: &str| std::env::var(name).ok();
        let read = Examination::read(path, &LoadContext::new(&environment, None), CertificateChecks::Skip);
        read.into_config()
    }

    /// Logs each warning.
    pub fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!(warning, "configuration loaded with a warning");
        }
    }

    /// Reads the files like [`load`](Self::load) and runs every check that needs no connection, certificates included:
    /// used by `formgate check` and by reloads. Skips what `served` already contains, so that a reload opens only new
    /// certificates; `formgate check` passes `None`.
    #[must_use]
    pub fn examine(path: &Path, served: Option<&ServedConfig<'_>>) -> Examination {
        let environment = |name: &str| std::env::var(name).ok();
        Examination::read(path, &LoadContext::new(&environment, served), CertificateChecks::Run)
    }

    /// Like [`examine`](Self::examine), with the given environment.
    #[cfg(test)]
    fn load_with(path: &Path, environment: secret::Environment<'_>) -> Result<Self, Problems> {
        Examination::read(path, &LoadContext::new(environment, None), CertificateChecks::Run).into_config()
    }
}

/// Whether a configuration file contains a secret itself rather than the name of a variable.
#[must_use]
pub fn holds_password(text: &str) -> bool {
    static SECRETS: LazyLock<BTreeSet<&str>> =
        LazyLock::new(|| declaration::names(include::key::KEYS, |key| key.shown == Shown::Secret));
    secret::holds_password(text, &SECRETS)
}

/// The JSON schema of a configuration file.
#[must_use]
pub fn schema() -> String {
    schema::of(include::key::KEYS)
}

/// The running configuration, with which a new one is compared.
#[expect(missing_debug_implementations, reason = "a function has nothing to show")]
pub struct ServedConfig<'s> {
    gateway: Option<&'s CertificateFiles>,
    tenant: &'s (dyn Fn(&str) -> Option<Arc<TenantConfig>> + Sync),
}

impl<'s> ServedConfig<'s> {
    /// Takes the gateway's certificate files if it has any, and a lookup of tenants by slug.
    pub fn new(
        gateway: Option<&'s CertificateFiles>,
        tenant: &'s (dyn Fn(&str) -> Option<Arc<TenantConfig>> + Sync),
    ) -> Self {
        Self { gateway, tenant }
    }
}

/// The `[gateway]` table.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The addresses on which the gateway accepts clients; at least one.
    pub listen: Vec<ListenConfig>,
    /// Serves `/metrics`, `/healthz` and `/readyz`; `None` disables them.
    pub admin_listen: Option<SocketAddr>,
    /// The Redis that holds the shared rate window; with `None`, each process limits on its own.
    pub redis: Option<RedisConfig>,
    /// Limits that apply to the databases of all tenants together.
    pub databases: DatabaseLimits,
    /// The certificate of the sign-in addresses; `None` if no entry of `listen` uses TLS, or if each host gets its own.
    pub certificate: Option<CertificateFiles>,
    /// The size of the cache of tenant certificates, in bytes.
    pub certificate_cache: u64,
    /// The length of the rate window in which `requests_per_minute` requests are admitted: 60 s, shorter in tests.
    pub quota_window: Duration,
    /// After a stop was requested: how long the gateway still accepts connections while `/readyz` reports not ready,
    /// so that load balancers notice.
    pub shutdown_delay: Duration,
    /// After that delay: how long the gateway waits for requests in flight.
    pub drain: Duration,
    /// The `Strict-Transport-Security` header of every HTTPS response, if configured.
    pub hsts: Option<HeaderValue>,
    /// The number of worker threads that serve requests.
    pub threads: usize,
    /// Whether the requests of each account are logged in its database.
    pub request_log: bool,
    /// Which tenants get metrics of their own.
    pub tenant_labels: TenantLabels,
    /// Limits on connections and requests.
    pub limits: Limits,
    /// How webhooks are delivered.
    pub webhooks: WebhookConfig,
    /// The administration area; `None` if it is not served.
    pub administration: Option<AdministrationConfig>,
    /// The port in links to this gateway, if it is not that of the first TLS listener.
    pub public_port: Option<u16>,
    /// The registry, which has tenants in addition to those of the files.
    pub registry: Option<RegistryConfig>,
    /// The operator API; `None` if it is not served.
    pub operator: Option<OperatorConfig>,
    /// Where hosts have to point; `None` if their DNS is not looked at.
    pub domains: Option<DomainsConfig>,
    /// How certificates are obtained; `None` if they are only read from files.
    pub acme: Option<AcmeConfig>,
    /// What the node is for.
    pub mode: Mode,
}

impl GatewayConfig {
    /// The hosts and ports of the services that all tenants share: Redis, and the database of the registry.
    #[must_use]
    pub fn shared_services(&self) -> Vec<String> {
        let redis = self.redis.iter().flat_map(|redis| redis.target.hosts());
        redis.chain(self.registry.iter().filter_map(|registry| registry.database.host())).collect()
    }

    /// The URL of the administration area at a tenant's sign-in address, without a slash at its end. `None` if the area
    /// is not served.
    #[must_use]
    pub fn administration_url(&self, address: &HostName) -> Option<String> {
        let path = &self.administration.as_ref()?.path;
        let speaks_tls = |entry: &&ListenConfig| entry.protocol == ListenProtocol::Tls;
        let port = self.public_port.or_else(|| Some(self.listen.iter().find(speaks_tls)?.address.port()));
        Some(match port.filter(|port| *port != listen::DEFAULT_HTTPS_PORT) {
            Some(port) => format!("https://{address}:{port}{path}"),
            None => format!("https://{address}{path}"),
        })
    }
}

/// One `[[tenant]]` table. A gateway keeps one per tenant for its whole life, so no value is stored twice and nothing
/// has spare capacity.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// The tenant's short name: lower-case letters, digits and hyphens.
    pub slug: Arc<str>,
    /// The name that `GET /me` returns.
    pub name: Box<str>,
    /// The host name of the sign-in address.
    pub address: HostName,
    /// The custom domains. The last ones were not in its table, but added to it in the registry.
    pub domains: Box<[HostName]>,
    /// How many of them were added.
    added_domains: usize,
    /// Certificates for single hosts or wildcards; they take precedence over the gateway's.
    pub certificates: Box<[(HostPattern, CertificateFiles)]>,
    /// The tenant's database.
    pub database: DatabaseLocation,
    /// The time zone of plain dates and of `time` answers.
    pub timezone: TimeZone,
    /// The request budget, shared by all tokens of the tenant.
    pub requests_per_minute: u32,
    /// The budget of SCIM requests, shared by all tokens of the tenant.
    pub scim_requests_per_minute: u32,
    /// The maximum number of connections from this node to the tenant's database.
    pub max_connections: u32,
    /// The maximum number of requests in flight on this node.
    pub max_in_flight: u32,
    /// How much of a group one write may detach. `None`, the default, does not limit it: a write replaces the
    /// membership as requested.
    pub group_guard: Option<Guard>,
    /// The OpenID provider of its administrators, in place of the gateway's.
    pub oidc: Option<Arc<OidcConfig>>,
    /// Where the table is in the files, for faults that appear only later.
    pub origin: TenantOrigin,
}

impl TenantConfig {
    /// Every host of the tenant.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        std::iter::once(&self.address).chain(&self.domains)
    }

    /// The hosts of its table, for which the operator vouches.
    pub fn table_hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts().take(1 + self.domains.len() - self.added_domains)
    }

    /// The certificate of a host and the pattern that it is configured for; `None` if the gateway's is used.
    #[must_use]
    pub fn certificate(&self, host: &HostName) -> Option<&(HostPattern, CertificateFiles)> {
        HostPattern::choose(&self.certificates, host)
    }

    /// Whether two configurations are equal, regardless of where they are in the files.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self {
            slug,
            name,
            address,
            domains,
            added_domains,
            certificates,
            database,
            timezone,
            requests_per_minute,
            scim_requests_per_minute,
            max_connections,
            max_in_flight,
            group_guard,
            oidc,
            origin: _,
        } = self;
        *slug == other.slug
            && *name == other.name
            && *address == other.address
            && *domains == other.domains
            && *added_domains == other.added_domains
            && *certificates == other.certificates
            && *database == other.database
            && *timezone == other.timezone
            && *requests_per_minute == other.requests_per_minute
            && *scim_requests_per_minute == other.scim_requests_per_minute
            && *max_connections == other.max_connections
            && *max_in_flight == other.max_in_flight
            && *group_guard == other.group_guard
            && *oidc == other.oidc
    }

    /// A fault of the tenant's database. The report points at the value of `database` and does not show it.
    ///
    /// The message must not quote the URL, which is a secret.
    #[must_use]
    pub fn database_problem(&self, message: impl Into<String>) -> Problem {
        self.origin.database_problem(&self.slug, message)
    }

    /// Equal for two tenants with the same database; contains no password. Resolves the path of a SQLite file.
    #[must_use]
    pub fn database_identity(&self) -> String {
        database::identity(&self.database, &LoadContext::empty())
    }

    /// A fault of the tenant as a whole. The report points at the value of `slug`.
    #[must_use]
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        self.origin.problem(&self.slug, message)
    }
}
