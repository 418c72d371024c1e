//! Which OpenID providers sign in the administrators of which tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{GatewayConfig, TenantConfig};

/// How many tenants a line lists. Larger: it fills the screen. Smaller: an operator must search for them.
const NAMED: usize = 5;

/// A line for each provider, and a warning about tenants whose provider is never asked.
pub(super) fn lines(gateway: Option<&GatewayConfig>, tenants: &[Arc<TenantConfig>]) -> Vec<String> {
    let Some(gateway) = gateway else { return Vec::new() };
    let Some(area) = &gateway.administration else {
        let ignored: Vec<_> =
            tenants.iter().filter(|tenant| tenant.oidc.is_some()).map(|tenant| &*tenant.slug).collect();
        if ignored.is_empty() {
            return Vec::new();
        }
        let named = name(&ignored);
        return vec![format!(
            "warning: {named} `[tenant.oidc]`, but without `[gateway.administration]` there is no area to sign in to"
        )];
    };
    let mut providers: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for tenant in tenants {
        if let Some(oidc) = tenant.oidc.as_deref().or(area.oidc.as_deref()) {
            providers.entry((&oidc.issuer, &oidc.client_id)).or_default().push(&tenant.slug);
        }
    }
    let line = |((issuer, client), slugs): ((&str, &str), Vec<&str>)| {
        format!("{} administrators who sign in by the OpenID provider {issuer}, client `{client}`", name(&slugs))
    };
    providers.into_iter().map(line).collect()
}

/// `the tenant `a` has`, `the tenants `a`, `b` have`.
fn name(slugs: &[&str]) -> String {
    let named: Vec<_> = slugs.iter().take(NAMED).map(|slug| format!("`{slug}`")).collect();
    let named = named.join(", ");
    match slugs.len() {
        1 => format!("the tenant {named} has"),
        few if few <= NAMED => format!("the tenants {named} have"),
        many => format!("the tenants {named} and {} more have", many - NAMED),
    }
}
