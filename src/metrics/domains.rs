//! Metrics of domains and their certificates.

use std::time::Duration;

use prometheus::{Histogram, IntCounterVec, IntGauge, IntGaugeVec};

use super::register::Registrar;

/// The values of `result`: the certificate was issued, the CA refused because of the host, the CA failed, or the order waits
/// until a CA has one left.
const RESULTS: [&str; 4] = ["issued", "refused", "failed", "waits"];

/// Domains and orders.
#[derive(Clone, Debug)]
pub struct DomainMetrics {
    domains: IntGaugeVec,
    orders: IntCounterVec,
    budget: IntGaugeVec,
    authority_up: IntGaugeVec,
    /// Certificates whose renewal is late.
    pub late: IntGauge,
    looks: Histogram,
}

impl DomainMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        Self {
            domains: registrar.gauges(
                "formgate_domains",
                "Domains by state and reason, over all nodes.",
                &["state", "reason"],
            ),
            orders: registrar.counters(
                "formgate_certificate_orders_total",
                "Orders of this node by CA and result.",
                &["authority", "result"],
            ),
            budget: registrar.gauges(
                "formgate_certificate_orders_left",
                "Orders that a CA still allows, over all nodes.",
                &["authority"],
            ),
            authority_up: registrar.gauges(
                "formgate_certificate_authority_up",
                "Whether this node asks a CA, or skips it.",
                &["authority"],
            ),
            late: registrar
                .gauge("formgate_certificate_renewals_late", "Certificates that should have been renewed by now."),
            looks: registrar.histogram(
                "formgate_domain_look_duration_seconds",
                "Time to check a domain in DNS.",
                &[0.01, 0.05, 0.2, 1.0, 5.0, 15.0],
            ),
        }
    }

    /// Shows a CA before it is asked.
    pub(crate) fn begin(&self, authority: &str, orders: u32) {
        for result in RESULTS {
            self.orders.with_label_values(&[authority, result]);
        }
        self.authority(authority, orders, true);
    }

    /// Records how many domains are in each state for each reason. A state without any is shown too.
    pub(crate) fn counted(&self, states: &[&str], counts: &[(String, String, i64)]) {
        self.domains.reset();
        states.iter().for_each(|state| self.domains.with_label_values(&[*state, ""]).set(0));
        for (state, reason, count) in counts {
            self.domains.with_label_values(&[state.as_str(), reason]).set(*count);
        }
    }

    /// Records the outcome of an order.
    pub(crate) fn ordered(&self, authority: &str, result: &str) {
        self.orders.with_label_values(&[authority, result]).inc();
    }

    /// Records what a CA still allows, and whether it is asked.
    pub(crate) fn authority(&self, authority: &str, left: u32, is_up: bool) {
        self.budget.with_label_values(&[authority]).set(left.into());
        self.authority_up.with_label_values(&[authority]).set(is_up.into());
    }

    /// Records how long a check took.
    pub(crate) fn checked(&self, took: Duration) {
        self.looks.observe(took.as_secs_f64());
    }
}
