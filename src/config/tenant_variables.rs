//! `tenant_variables` of `[gateway]`: the environment variables that tenants of the registry may use.
//!
//! Whoever may write a tenant chooses the server that its database URL leads to, so a tenant that could use every variable
//! could send every secret of the node there. Files are the operator's own, and use any.

use super::problem::Problem;
use super::table::TableReader;

/// The default of `tenant_variables`.
const DEFAULT: &str = "FORMGATE_TENANT_*";

/// Names of variables; a `*` at the end of one stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantVariables(Box<[Box<str>]>);

impl Default for TenantVariables {
    fn default() -> Self {
        Self([DEFAULT.into()].into())
    }
}

impl TenantVariables {
    /// Whether tenants may use a variable.
    pub(super) fn allow(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => **pattern == *name,
        })
    }

    /// The help of a fault that is about a variable that tenants may not use.
    pub(super) fn help(&self) -> String {
        let patterns: Vec<_> = self.0.iter().map(|pattern| format!("`{pattern}`")).collect();
        let allowed = if patterns.is_empty() { "none".to_owned() } else { patterns.join(", ") };
        format!(
            "`tenant_variables` in `[gateway]` lists those that they may use, now {allowed}: add it there, or rename it"
        )
    }
}

/// Reads the key.
pub(super) fn read(table: &mut TableReader<'_, '_>) -> TenantVariables {
    if !table.contains("tenant_variables") {
        return TenantVariables::default();
    }
    let faults = table.context().faults();
    let patterns = table.strings("tenant_variables");
    let patterns = patterns.into_iter().filter(|pattern| {
        let start = pattern.value.strip_suffix('*').unwrap_or(&pattern.value);
        let is_pattern = start.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_pattern {
            let problem = Problem::at(&pattern.span, "not the name of an environment variable");
            table.context().report(problem.label("expected letters, digits and `_`; a `*` may only be at the end"));
        }
        is_pattern
    });
    let patterns = patterns.map(|pattern| pattern.value.into()).collect();
    // A faulty list is one fault, not one of each tenant.
    if table.context().faults() > faults { TenantVariables(["*".into()].into()) } else { TenantVariables(patterns) }
}
