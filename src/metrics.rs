//! What formgate counts, in the Prometheus text format.
//!
//! Owns every metric's name, help and labels, a file a group; a label never holds a host, a path or a token.

mod certificates;
mod database;
mod edge;
mod gate;
#[cfg(target_os = "linux")]
mod process;
mod redis;
mod register;
mod tenants;

use std::time::Duration;

use http::{Method, StatusCode};
use prometheus::{Encoder, HistogramVec, IntCounterVec, IntGauge, Registry, TextEncoder};

pub use self::certificates::CertificateMetrics;
pub use self::database::DatabaseMetrics;
pub use self::edge::EdgeMetrics;
pub use self::gate::GateMetrics;
pub use self::redis::RedisMetrics;
use self::register::{Register, begin};
pub use self::tenants::{TenantLabels, TenantMetrics};

/// All metrics of one gateway.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
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
    /// Whether the gateway should be given traffic: 1 or 0.
    pub ready: IntGauge,
    /// How many tenants are served.
    pub tenants_served: IntGauge,
    /// Checks of tokens that look like tokens: `by` `memory` or `database`, with `result` `known`, `unknown`, `failed`.
    pub token_checks: IntCounterVec,
    /// Changes of the configuration by `result`: `done`, `refused`.
    pub reloads: IntCounterVec,
    /// When the configuration that is served was read, in seconds since 1970.
    pub last_reload: IntGauge,
    /// Whether what the files say is what is served: 0 after a change that was refused.
    pub last_reload_successful: IntGauge,
    requests: IntCounterVec,
    durations: HistogramVec,
    rate_decisions: IntCounterVec,
}

/// From a refusal that this node makes alone to the limit of a handler.
const DURATION_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0];

impl Metrics {
    /// Registers every metric, with labels for as many tenants as the operator allows.
    #[must_use]
    pub fn new(tenants: TenantLabels) -> Self {
        let registry = Registry::new();
        let register = Register(&registry);
        let build = register.gauges("formgate_build_info", "The version that runs, as a label of a 1.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        #[cfg(target_os = "linux")]
        registry.register(Box::new(process::Process::new())).expect("each name is registered once");
        let reloads =
            register.counters("formgate_config_reloads_total", "Reloads of the configuration by result.", &["result"]);
        begin(&reloads, &["done", "refused"]);
        Self {
            edge: EdgeMetrics::new(&register),
            database: DatabaseMetrics::new(&register),
            certificates: CertificateMetrics::new(&register),
            gate: GateMetrics::new(&register),
            reloads,
            last_reload: register.gauge(
                "formgate_config_last_reload_success_timestamp_seconds",
                "When the configuration that is served was read.",
            ),
            last_reload_successful: register.gauge(
                "formgate_config_last_reload_successful",
                "Whether the last change of the configuration was taken into service.",
            ),
            redis: RedisMetrics::new(&register),
            tenants: TenantMetrics::new(&register, tenants),
            ready: register.gauge("formgate_ready", "Whether the gateway should be given traffic."),
            tenants_served: register.gauge("formgate_tenants", "Tenants that are served."),
            token_checks: register.counters(
                "formgate_token_checks_total",
                "Checks of well-formed tokens, by what answered and the result.",
                &["by", "result"],
            ),
            requests: register.counters(
                "formgate_requests_total",
                "Requests by route, method and status; route `none` where none was reached.",
                &["route", "method", "status"],
            ),
            durations: register.histograms(
                "formgate_request_duration_seconds",
                "Time from head to answer, by route.",
                &["route"],
                &DURATION_BUCKETS,
            ),
            rate_decisions: register.counters(
                "formgate_rate_decisions_total",
                "Decisions of the rate limit, by what decided.",
                &["decision", "by"],
            ),
            registry,
        }
    }

    /// Counts one answered request.
    pub fn request(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        // A caller may invent methods without end; a label may not.
        let known =
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];
        let method = if known.contains(method) { method.as_str() } else { "other" };
        self.requests.with_label_values(&[route, method, status.as_str()]).inc();
        self.durations.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    /// Counts one decision: `admitted` or `refused`, by `embedded`, `shared`, `memory`, `local`, `allow` or `deny`.
    pub fn rate_decision(&self, decision: &str, by: &str) {
        self.rate_decisions.with_label_values(&[decision, by]).inc();
    }

    /// The text exposition, version 0.0.4.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.tenants.rank();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).expect("writing to memory does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(TenantLabels::default())
    }
}
