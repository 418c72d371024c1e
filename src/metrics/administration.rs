//! Metrics of the administration area.

use prometheus::IntCounterVec;

use super::register::{Registrar, init_series};

/// The administration area. Its requests are counted by route like all others.
#[derive(Clone, Debug)]
pub struct AdministrationMetrics {
    /// Sign-ins by `result`: `done`, `unknown_link`, `limited`, `failed`.
    pub sign_ins: IntCounterVec,
}

impl AdministrationMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let sign_ins = registrar.counters(
            "formgate_admin_sign_ins_total",
            "Sign-ins to the administration area, by result.",
            &["result"],
        );
        init_series(&sign_ins, &["done", "unknown_link", "limited", "failed"]);
        Self { sign_ins }
    }
}
