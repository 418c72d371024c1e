//! Metrics of webhooks. No label contains a URL, a tenant or a subscription.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::register::{Registrar, init_series};

/// Seconds from a change to the receiver's 2xx answer.
const LAG: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0];

/// The values of `result`: what came of an attempt.
const RESULTS: [&str; 10] =
    ["accepted", "gone", "refused", "status", "dns", "blocked", "connect", "tls", "timeout", "protocol"];

/// The states of subscriptions.
const STATES: [&str; 5] = ["active", "paused", "failing", "disabled", "gone"];

/// All webhooks of a node.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    /// Attempts by `result`.
    pub attempts: IntCounterVec,
    /// Requests to receivers now.
    pub in_flight: IntGauge,
    /// Seconds from a change to its acceptance.
    pub lag: Histogram,
    /// Events that were set aside, because a receiver that works refused them.
    pub set_aside: IntCounter,
    /// Leases that this node took over from a sender that did not give them back.
    pub takeovers: IntCounter,
    /// The tenants that this node watches.
    pub watched: IntGauge,
    /// Subscriptions that this node moved into a state, by `state`.
    pub changes: IntCounterVec,
}

impl WebhookMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let attempts = registrar.counters(
            "formgate_webhook_attempts_total",
            "Requests to receivers of webhooks, by what came of them.",
            &["result"],
        );
        init_series(&attempts, &RESULTS);
        let changes = registrar.counters(
            "formgate_webhook_state_changes_total",
            "Subscriptions that this node moved into a state.",
            &["state"],
        );
        init_series(&changes, &STATES);
        Self {
            attempts,
            in_flight: registrar.gauge("formgate_webhooks_in_flight", "Requests to receivers of webhooks now."),
            lag: registrar.histogram(
                "formgate_webhook_lag_seconds",
                "From a change of a submission to the 2xx answer of a receiver.",
                &LAG,
            ),
            set_aside: registrar
                .counter("formgate_webhook_events_set_aside_total", "Events that a receiver refused for themselves."),
            takeovers: registrar
                .counter("formgate_webhook_takeovers_total", "Leases taken over from a sender that did not end them."),
            watched: registrar.gauge("formgate_webhook_tenants_watched", "Tenants with a subscription to deliver."),
            changes,
        }
    }

    /// Metrics that are exported nowhere.
    #[must_use]
    pub fn unregistered() -> Self {
        Self::new(&Registrar(&Registry::new()))
    }
}
