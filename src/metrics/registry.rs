//! Metrics of the registry of tenants, as this node follows it.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::register::{Registrar, init_series};

/// The registry.
#[derive(Clone, Debug)]
pub struct RegistryMetrics {
    /// Whether it can be read: 1 or 0; 1 without a registry.
    pub up: IntGauge,
    revision: IntGauge,
    refused: IntGauge,
    applied: IntCounter,
    kept: IntGaugeVec,
    duration: Histogram,
    moves: IntGaugeVec,
    ended_moves: IntCounterVec,
    hold: Histogram,
}

impl RegistryMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let up = registrar.gauge("formgate_registry_up", "Whether the registry of tenants can be read.");
        up.set(1);
        let moves = registrar.gauges("formgate_moves", "Accounts that move to another database.", &["state"]);
        for state in ["copying", "catching_up", "holding"] {
            moves.with_label_values(&[state]).set(0);
        }
        let ended_moves =
            registrar.counters("formgate_moves_total", "Moves of accounts that this node ended.", &["outcome"]);
        init_series(&ended_moves, &["done", "cancelled", "failed"]);
        Self {
            up,
            revision: registrar.gauge("formgate_registry_revision", "Up to which change the registry is served."),
            refused: registrar
                .gauge("formgate_registry_refused_tenants", "Tenants whose row in the registry can't be served."),
            applied: registrar.counter("formgate_registry_changes_total", "Changes of the registry that were applied."),
            kept: registrar.gauges(
                "formgate_tenants_looked_after",
                "Tenants that this node keeps, or is the deputy of; only with a registry.",
                &["as"],
            ),
            duration: registrar.histogram(
                "formgate_registry_apply_duration_seconds",
                "Time to take changes of the registry into service.",
                &[0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0],
            ),
            moves,
            ended_moves,
            hold: registrar.histogram(
                "formgate_move_hold_seconds",
                "Time for which the requests of an account waited while it moved to another database.",
                &[0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0],
            ),
        }
    }

    /// Records how many accounts are in each state of a move.
    pub(crate) fn moving<'s>(&self, counts: impl Iterator<Item = (&'s str, usize)>) {
        for (state, count) in counts {
            self.moves.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Records the end of a move, and how long requests waited.
    pub(crate) fn moved(&self, outcome: &str, held: Option<Duration>) {
        self.ended_moves.with_label_values(&[outcome]).inc();
        if let Some(held) = held {
            self.hold.observe(held.as_secs_f64());
        }
    }

    /// Records how far the registry was followed, and how many tenants can't be served.
    pub(crate) fn followed(&self, revision: i64, refused: usize) {
        self.revision.set(revision);
        self.refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }

    /// Records how many tenants this node looks after.
    pub(crate) fn kept(&self, keeper: usize, deputy: usize) {
        for (duty, count) in [("keeper", keeper), ("deputy", deputy)] {
            self.kept.with_label_values(&[duty]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Records changes that were taken into service.
    pub(crate) fn applied(&self, changes: usize, took: Duration) {
        self.applied.inc_by(changes as u64);
        self.duration.observe(took.as_secs_f64());
    }
}
