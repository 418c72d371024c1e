//! How the administrators of a tenant sign in to the administration area, as configured. Asks no provider.

use super::Finding;
use crate::config::{Config, OidcConfig, TenantConfig};

/// The step; `None` if there is nothing to sign in to.
pub(super) fn find(config: &Config, tenant: &TenantConfig) -> Option<Finding> {
    let Some(area) = &config.gateway.administration else {
        return tenant.oidc.as_ref().map(|_| {
            let what = "the tenant has `[tenant.oidc]`, but the gateway serves no administration area";
            Finding::warns(what, "add `[gateway.administration]`, or remove `[tenant.oidc]`")
        });
    };
    let mut what = "administrators sign in by one-time links".to_owned();
    if let Some(url) = area.sign_in_url(&tenant.slug) {
        what += &format!(", which they get at {url}");
    }
    match (&tenant.oidc, &area.oidc) {
        (Some(own), _) => what += &format!(", and by `[tenant.oidc]`: {}", describe(own)),
        (None, Some(shared)) => what += &format!(", and by `[gateway.administration.oidc]`: {}", describe(shared)),
        (None, None) => {}
    }
    Some(Finding::passes(what))
}

fn describe(oidc: &OidcConfig) -> String {
    let values = |values: &[Box<str>]| {
        let quoted: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        if quoted.is_empty() { "no value".to_owned() } else { quoted.join(" or ") }
    };
    let OidcConfig { issuer, client_id, role_claim, admin_values, viewer_values, .. } = oidc;
    format!(
        "the provider {issuer}, client `{client_id}`; in the claim `{role_claim}`, {} gives the role admin, and {} \
         the role viewer",
        values(admin_values),
        values(viewer_values)
    )
}
