//! formgate's metrics, in the Prometheus text format.
//!
//! Owns every metric's name, help and labels, one file per group. A label never contains a host, a path or a token.

mod administration;
mod certificates;
mod database;
mod domains;
mod edge;
mod gate;
mod log;
#[cfg(target_os = "linux")]
mod process;
mod redis;
mod register;
mod registry;
mod request_log;
mod requests;
mod static_counters;
mod tasks;
mod tenants;
mod webhooks;

use prometheus::{Encoder, IntCounterVec, IntGauge, Registry, TextEncoder};

pub use self::administration::AdministrationMetrics;
pub use self::certificates::CertificateMetrics;
pub(crate) use self::database::WaitingRequest;
pub use self::database::{DatabaseFailure, DatabaseMetrics};
pub use self::domains::DomainMetrics;
pub use self::edge::EdgeMetrics;
pub use self::gate::GateMetrics;
#[cfg(test)]
pub(crate) use self::gate::SCOPES;
pub use self::log::dropped_log_lines;
pub use self::redis::RedisMetrics;
use self::register::{Registrar, init_series};
pub use self::registry::RegistryMetrics;
pub use self::request_log::RequestLogMetrics;
pub use self::requests::RequestMetrics;
pub use self::static_counters::{RateDecision, StaticCounters, TokenCheck};
pub use self::tasks::TaskMetrics;
pub use self::tenants::{TenantLabels, TenantMeter, TenantMetrics};
pub use self::webhooks::WebhookMetrics;
pub(crate) use self::webhooks::{PENDING_STATES, STATES};

/// All metrics of one gateway.
#[derive(Clone, Debug)]
pub struct Metrics {
    registered: Registry,
    /// Connections and handshakes.
    pub edge: EdgeMetrics,
    /// The tenants' databases.
    pub database: DatabaseMetrics,
    /// Certificates in memory and on disk.
    pub certificates: CertificateMetrics,
    /// Requests at the gate.
    pub gate: GateMetrics,
    /// Calls to the shared Redis.
    pub redis: RedisMetrics,
    /// Requests by tenant.
    pub tenants: TenantMetrics,
    /// Whether the gateway should get traffic: 1 or 0.
    pub ready: IntGauge,
    /// The number of tenants served.
    pub tenants_served: IntGauge,
    /// Background tasks.
    pub tasks: TaskMetrics,
    /// Webhooks.
    pub webhooks: WebhookMetrics,
    /// The registry of tenants.
    pub registry: RegistryMetrics,
    /// Domains and their certificates.
    pub domains: DomainMetrics,
    /// The administration area.
    pub administration: AdministrationMetrics,
    /// Answered requests.
    pub requests: RequestMetrics,
    /// The log of each account's requests.
    pub request_log: RequestLogMetrics,
    /// Checks of well-formed tokens.
    pub token_checks: StaticCounters<TokenCheck>,
    /// Decisions of the rate limit.
    pub rate_decisions: StaticCounters<RateDecision>,
    /// Changes of the configuration by `result`: `done`, `refused`.
    pub reloads: IntCounterVec,
    /// When the served configuration was read, in seconds since 1970.
    pub last_reload: IntGauge,
    /// Whether the files' configuration is the served one: 0 after a change was refused.
    pub last_reload_successful: IntGauge,
}

impl Metrics {
    /// Registers every metric, with labels for as many tenants as the operator allows.
    #[must_use]
    pub fn new(tenants: TenantLabels) -> Self {
        let registered = Registry::new();
        let registrar = Registrar(&registered);
        let build = registrar.gauges("formgate_build_info", "The version that runs, as a label of a 1.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registered.register(Box::new(dropped_log_lines().clone())).expect("each name is registered once");
        #[cfg(target_os = "linux")]
        registered.register(Box::new(process::Process::new())).expect("each name is registered once");
        let reloads =
            registrar.counters("formgate_config_reloads_total", "Reloads of the configuration by result.", &["result"]);
        init_series(&reloads, &["done", "refused"]);
        Self {
            edge: EdgeMetrics::new(&registrar),
            database: DatabaseMetrics::new(&registrar),
            certificates: CertificateMetrics::new(&registrar),
            gate: GateMetrics::new(&registrar),
            reloads,
            last_reload: registrar.gauge(
                "formgate_config_last_reload_success_timestamp_seconds",
                "When the configuration that is served was read.",
            ),
            last_reload_successful: registrar.gauge(
                "formgate_config_last_reload_successful",
                "Whether the last change of the configuration was taken into service.",
            ),
            redis: RedisMetrics::new(&registrar),
            tenants: TenantMetrics::new(&registrar, tenants),
            ready: registrar.gauge("formgate_ready", "Whether the gateway should be given traffic."),
            tenants_served: registrar.gauge("formgate_tenants", "Tenants that are served."),
            tasks: TaskMetrics::new(&registrar),
            webhooks: WebhookMetrics::new(&registrar),
            registry: RegistryMetrics::new(&registrar),
            domains: DomainMetrics::new(&registrar),
            administration: AdministrationMetrics::new(&registrar),
            requests: RequestMetrics::new(&registrar),
            request_log: RequestLogMetrics::new(&registrar),
            token_checks: StaticCounters::new(
                &registrar,
                "formgate_token_checks_total",
                "Checks of well-formed tokens, by what answered and the result.",
            ),
            rate_decisions: StaticCounters::new(
                &registrar,
                "formgate_rate_decisions_total",
                "Decisions of the rate limit, by what decided.",
            ),
            registered,
        }
    }

    /// The text exposition format, version 0.0.4.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.tenants.rank();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registered.gather(), &mut text).expect("writing to memory does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(TenantLabels::default())
    }
}
