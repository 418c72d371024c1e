//! A warning about tenants that can't be served by several nodes.
//!
//! The number of nodes is not configured; a configured Redis suggests that there are several.

use std::sync::Arc;

use crate::config::{GatewayConfig, TenantConfig};

/// How many tenants the warning lists. Larger: it fills the screen. Smaller: an operator must search for them.
const NAMED: usize = 5;

/// Warns if Redis is configured and tenants use SQLite files.
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
         (deploy/nodes.md); otherwise move them to Postgres"
    ))
}
