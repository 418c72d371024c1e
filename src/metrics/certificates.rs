//! Certificate metrics: those in memory, loads from disk, and which expire soon.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::register::Registrar;

/// Tenants' certificates, and when they and the gateway's expire.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    /// Certificates in memory, not counting the gateway's.
    pub cached: IntGauge,
    /// Their size in bytes.
    pub cache_bytes: IntGauge,
    /// Certificates read from disk for handshakes, by `result`: `done`, `failed`.
    pub loads: IntCounterVec,
    /// When a certificate expires, in seconds since 1970; only for the tenants that expire soonest and the gateway.
    pub expiry: IntGaugeVec,
}

impl CertificateMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let loads = registrar.counters(
            "formgate_certificate_loads_total",
            "Certificates read from disk for handshakes, by result.",
            &["result"],
        );
        ["done", "failed"].iter().for_each(|result| drop(loads.with_label_values(&[result])));
        Self {
            cached: registrar.gauge("formgate_certificates_cached", "Certificates of tenants in memory."),
            cache_bytes: registrar.gauge("formgate_certificate_cache_bytes", "The bytes that they take."),
            loads,
            expiry: registrar.gauges(
                "formgate_certificate_expiry_timestamp_seconds",
                "When a certificate expires; of the tenants whose certificates expire soonest, and the gateway.",
                &["tenant"],
            ),
        }
    }
}
