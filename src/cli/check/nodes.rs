//! A warning about tenants that several nodes can't serve.
//!
//! How many nodes there are is not configured; a shared Redis shows that there may be several.

use std::sync::Arc;

use crate::config::{GatewayConfig, TenantConfig};

/// How many tenants the warning names. Larger: it fills the screen. Smaller: an operator searches for them.
const NAMED: usize = 5;

/// A warning where Redis is configured and tenants have SQLite files.
pub(super) fn warning(gateway: Option<&GatewayConfig>, tenants: &[Arc<TenantConfig>]) -> Option<String> {
    gateway?.redis.as_ref()?;
    let files: Vec<_> = tenants.iter().filter(|tenant| tenant.database.file().is_some()).collect();
    let named: Vec<_> = files.iter().take(NAMED).map(|tenant| format!("`{}`", tenant.slug)).collect();
    let named = match files.len() {
        0 => return None,
        1 => format!("the tenant {} is", named.join("")),
        few if few <= NAMED => format!("the tenants {} are", named.join(", ")),
        many => format!("the tenants {} and {} more are", named.join(", "), many - NAMED),
    };
    Some(format!(
        "warning: Redis is configured, as for several nodes, and {named} in SQLite: each node would open a file of its own. \
         This is fine with one node, or if the balancer sends the hosts of these tenants to one node only \
         (deploy/README.md, \"Several nodes\"); otherwise move them to Postgres"
    ))
}
