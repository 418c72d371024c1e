//! `GET /me`: the token is valid, this is the account, and this is who used its budget.

use http::StatusCode;
use serde_json::json;

use crate::gate::Admitted;
use crate::reply::Reply;

/// Whether a path below `/api/v1` is answered with the account's usage, which is then told with the admission.
pub(super) fn is_at(path: &str) -> bool {
    path.strip_suffix('/').unwrap_or(path) == "/me"
}

pub(super) async fn show(admitted: &Admitted) -> Reply {
    let tenant = admitted.tenant();
    let usage = match admitted.usage() {
        Some(usage) => tenant.token_names.name(usage, &tenant.database).await,
        None => Vec::new(),
    };
    let zone = tenant.timezone.iana_name().unwrap_or("UTC");
    Reply::json(
        StatusCode::OK,
        &json!({
            "message": format!("Welcome to {}", tenant.name),
            "account": { "id": &*tenant.slug, "name": tenant.name, "timezone": zone },
            "usage": usage,
        }),
    )
}
