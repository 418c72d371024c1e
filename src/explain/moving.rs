//! Whether the account moves to another database at the moment.

use super::Finding;
use crate::config::{Config, TenantConfig};
use crate::store::Registry;

/// The open move of a tenant, if there is one.
pub(super) async fn find(config: &Config, tenant: &TenantConfig) -> Option<Finding> {
    let registry = config.gateway.registry.as_ref().filter(|_| tenant.origin.is_registered())?;
    // What is wrong with the registry is not found here.
    let registry = Registry::open_existing(&registry.database).await.ok()??;
    let open = registry.open_move_of(&tenant.slug).await;
    registry.close().await;
    let record = open.ok()??;
    if !record.state.is_under_way() {
        return None;
    }
    let reason = record.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let what =
        format!("the account moves from {} to {}; it is {}{reason}", record.from, record.to, record.state.as_str());
    Some(Finding::warns(
        what,
        "`formgate tenant moves` shows how far it is; `DELETE /v1/moves/{id}` cancels it".to_owned(),
    ))
}
