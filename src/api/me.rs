//! `GET /me`: confirms that the token is valid, and returns the account, what the token is limited to, and the account's
//! usage by token.
//!
//! The usage comes with the admission, so this handler makes no call of its own to Redis.

use http::StatusCode;

use super::json::Json;
use crate::error::Refusal;
use crate::gate::Admitted;
use crate::reply::Reply;

pub(super) async fn show(admitted: &Admitted) -> Result<Reply, Refusal> {
    let tenant = admitted.tenant();
    let usage = match admitted.usage() {
        Some(usage) => tenant.tokens.names.name(usage, admitted.token(), &tenant.database).await,
        None => Vec::new(),
    };
    let timezone = tenant.timezone.iana_name().unwrap_or("UTC");
    let token = admitted.token();
    let mut json = Json::with_capacity(512);
    json.raw("{\"message\":").text(&["Welcome to ", &tenant.name].concat());
    json.raw(",\"account\":{\"id\":").text(&tenant.slug).raw(",\"name\":").text(&tenant.name);
    json.raw(",\"timezone\":").text(timezone).raw("},\"token\":{\"id\":").value(&token.id);
    json.raw(",\"name\":").text(&token.name).raw(",\"scopes\":").list(token.limits.scopes.names(), |json, name| {
        json.text(name);
    });
    json.raw(",\"forms\":")
        .value(&token.limits.forms.names())
        .raw(",\"requests_per_minute\":")
        .value(&token.limits.requests_per_minute);
    json.raw("},\"usage\":").list(&usage, |json, share| {
        json.raw("{\"token\":").text(&share.token).raw(",\"requests\":").value(&share.requests).raw("}");
    });
    json.raw("}");
    Ok(json.reply(StatusCode::OK))
}
