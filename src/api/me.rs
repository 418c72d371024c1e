//! `GET /me`: the token is valid, and this is the account.

use http::StatusCode;
use serde_json::json;

use crate::gate::Admitted;
use crate::reply::Reply;

pub(super) fn show(admitted: &Admitted) -> Reply {
    let tenant = admitted.tenant();
    let zone = tenant.timezone.iana_name().unwrap_or("UTC");
    Reply::json(
        StatusCode::OK,
        &json!({
            "message": format!("Welcome to {}", tenant.name),
            "account": { "id": tenant.slug, "name": tenant.name, "timezone": zone },
        }),
    )
}
