//! `tenant_variables` of `[gateway]`: the environment variables that tenants of the registry may use.
//!
//! Whoever may write a tenant chooses the server that its database URL leads to, so a tenant that could use every variable
//! could send every secret of the node there. Files are the operator's own, and use any.

/// The default.
const DEFAULT: &str = "FORMGATE_TENANT_*";

/// Names of variables; a `*` at the end of one stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantVariables(pub(super) Box<[Box<str>]>);

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
