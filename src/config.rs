//! The configuration, checked: what the rest of the gateway is built from.
//!
//! Owns the meaning of `tenants.toml`. A [`Config`] exists only when the files had no fault; behind it nothing is
//! checked again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use secrecy::SecretString;

use crate::tenant::host::HostName;

/// Everything that `serve` needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// What holds for the gateway as a whole.
    pub gateway: GatewayConfig,
    /// The tenants, in the order of the files.
    pub tenants: Vec<TenantConfig>,
}

/// The `[gateway]` table.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where callers connect; at least one.
    pub listen: Vec<SocketAddr>,
    /// `/metrics`, `/healthz`, `/readyz`; left out, they are not served.
    pub admin_listen: Option<SocketAddr>,
    /// The shared window; left out, each process keeps its own.
    pub redis: Option<RedisConfig>,
    /// The certificate of the sign-in addresses.
    pub certificate: CertificateFiles,
    /// The span in which `requests_per_minute` requests are admitted: 60 s, shorter in tests.
    pub quota_window: Duration,
    /// How long a stop waits for requests in flight.
    pub drain: Duration,
}

/// How the shared store of windows is reached.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `redis://`, `rediss://` or `unix://`.
    pub url: SecretString,
    /// How long one call may take before [`OnRedisFailure`] decides.
    pub timeout: Duration,
    /// What decides when the store does not answer.
    pub on_failure: OnRedisFailure,
}

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

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: PathBuf,
    /// The key of the leaf.
    pub private_key: PathBuf,
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
    /// The tenant's database, `postgres://…` or `sqlite:…` with the path made absolute.
    pub database: SecretString,
    /// The zone of plain dates and of `time` answers.
    pub timezone: TimeZone,
    /// The budget, shared by all tokens.
    pub requests_per_minute: u32,
    /// The most connections to the tenant's database from this node.
    pub max_connections: u32,
}
