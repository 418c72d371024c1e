//! `GET /me`: the token is valid, this is the account, and this is who used its budget.

use http::StatusCode;
use serde::Serialize;

use crate::gate::Admitted;
use crate::reply::Reply;
use crate::tenant::NamedShare;

#[derive(Serialize)]
struct Welcome<'t> {
    message: String,
    account: Account<'t>,
    usage: Vec<NamedShare>,
}

#[derive(Serialize)]
struct Account<'t> {
    id: &'t str,
    name: &'t str,
    timezone: &'t str,
}

/// Whether a path below `/api/v1` is answered with the account's usage, which is then told with the admission.
pub(super) fn is_at(path: &str) -> bool {
    path.strip_suffix('/').unwrap_or(path) == "/me"
}

pub(super) async fn show(admitted: &Admitted) -> Reply {
    let tenant = admitted.tenant();
    let usage = match admitted.usage() {
        Some(usage) => tenant.tokens.names.name(usage, admitted.token(), &tenant.database).await,
        None => Vec::new(),
    };
    let timezone = tenant.timezone.iana_name().unwrap_or("UTC");
    let account = Account { id: &tenant.slug, name: &tenant.name, timezone };
    Reply::json(StatusCode::OK, &Welcome { message: ["Welcome to ", &tenant.name].concat(), account, usage })
}
