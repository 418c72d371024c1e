//! Metrics of webhooks. No label contains a URL, a tenant or a subscription.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::register::{Registrar, init_series};

/// Seconds from a change to the receiver's 2xx answer.
const LAG: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0];

/// The values of `result`: what came of an attempt.
const RESULTS: [&str; 10] =
    ["accepted", "gone", "refused", "status", "dns", "blocked", "connect", "tls", "timeout", "protocol"];

/// The values of `reason`: why a receiver failed. `refused`: it refused more events than can be set aside.
const REASONS: [&str; 9] = ["status", "refused", "dns", "blocked", "connect", "tls", "timeout", "protocol", "unusable"];

/// The states of subscriptions.
pub(crate) const STATES: [&str; 5] = ["active", "paused", "failing", "disabled", "gone"];

/// The states in which subscriptions have pending events.
pub(crate) const PENDING_STATES: [&str; 2] = ["active", "failing"];

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
    /// Subscriptions that this node disabled, by `reason`.
    pub disabled: IntCounterVec,
    /// Subscriptions by `state`, of all tenants.
    pub subscriptions: IntGaugeVec,
    /// Events that are set aside now.
    pub waiting: IntGauge,
    /// How long the oldest event has been due that is not delivered, by `state` of its subscription.
    pub oldest_pending: IntGaugeVec,
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
        let disabled = registrar.counters(
            "formgate_webhook_disabled_total",
            "Subscriptions that this node disabled, by how their receivers last failed.",
            &["reason"],
        );
        init_series(&disabled, &REASONS);
        let subscriptions = registrar.gauges(
            "formgate_webhook_subscriptions",
            "Subscriptions by state, when all databases were last inspected.",
            &["state"],
        );
        let oldest_pending = registrar.gauges(
            "formgate_webhook_oldest_pending_seconds",
            "For how long the oldest event is due that is not delivered: of a receiver that works, or since when one fails.",
            &["state"],
        );
        STATES.iter().for_each(|state| subscriptions.with_label_values(&[*state]).set(0));
        PENDING_STATES.iter().for_each(|state| oldest_pending.with_label_values(&[*state]).set(0));
        Self {
            attempts,
            in_flight: registrar.gauge("formgate_webhooks_in_flight", "Requests to receivers of webhooks now."),
            lag: registrar.histogram(
                "formgate_webhook_lag_seconds",
                "Time from a change of a submission to the 2xx response of a receiver.",
                &LAG,
            ),
            set_aside: registrar
                .counter("formgate_webhook_events_set_aside_total", "Events that a receiver refused for themselves."),
            takeovers: registrar
                .counter("formgate_webhook_takeovers_total", "Leases taken over from a sender that did not end them."),
            watched: registrar.gauge(
                "formgate_webhook_tenants_watched",
                "Tenants with a subscription to deliver or a request that waits for a change.",
            ),
            changes,
            disabled,
            subscriptions,
            waiting: registrar.gauge(
                "formgate_webhook_events_set_aside",
                "Events that a receiver refused and that are sent again, when all databases were last inspected.",
            ),
            oldest_pending,
        }
    }

    /// Metrics that are exported nowhere.
    #[must_use]
    pub fn unregistered() -> Self {
        Self::new(&Registrar(&Registry::new()))
    }
}
