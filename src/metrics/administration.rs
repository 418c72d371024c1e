//! Metrics of the administration area.

use prometheus::IntCounterVec;

use super::register::Registrar;

/// The administration area. Its requests are counted by route like all others.
#[derive(Clone, Debug)]
pub struct AdministrationMetrics {
    /// Sign-ins by `by` and `result`. By `link`: `done`, `unknown_link`, `limited`, `failed`. By `oidc`: `done`,
    /// `refused`, `denied`, `no_role`, `provider`, `limited`, `failed`.
    pub sign_ins: IntCounterVec,
}

impl AdministrationMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let sign_ins = registrar.counters(
            "formgate_admin_sign_ins_total",
            "Sign-ins to the administration area, by way and result.",
            &["by", "result"],
        );
        for result in ["done", "unknown_link", "limited", "failed"] {
            sign_ins.with_label_values(&["link", result]);
        }
        for result in ["done", "refused", "denied", "no_role", "provider", "limited", "failed"] {
            sign_ins.with_label_values(&["oidc", result]);
        }
        Self { sign_ins }
    }
}
