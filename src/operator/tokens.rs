//! The API tokens of a tenant: listing, changing and revoking. [`super::credentials`] creates them.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Call;
use super::credentials::{OpenTenant, of_tenant, open_tenant};
use super::limits::GivenLimits;
use super::refusal::OperatorRefusal;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::{ChangedToken, TokenFilter, TokenRecord};

/// The largest and the default number of tokens in a list.
const MAX_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 100;

/// `GET /v1/tenants/{slug}/tokens`: the newest first, also those that are revoked or have expired.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let after = query.number("after")?;
    let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let filter = match query.text("state") {
        None => TokenFilter::All,
        Some("active") => TokenFilter::Active,
        Some(_) => return Err(OperatorRefusal::of("state", "`state` must be `active`")),
    };
    let now = Timestamp::now();
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let before = (after > 0).then_some(after);
    let tokens = store.list_newest_tokens(filter, before, limit + 1, now).await;
    store.close().await;
    let mut tokens = tokens.map_err(|error| of_tenant(&tenant, &error))?;
    let has_more = tokens.len() > limit as usize;
    tokens.truncate(limit as usize);
    if let Some(served) = call.api.directory.load().tenant(&tenant.slug) {
        tokens.iter_mut().for_each(|token| served.tokens.last_used.complete(token));
    }
    let last = tokens.last().map_or(after, |token| token.id);
    let data: Vec<_> = tokens.iter().map(|token| describe(token, now)).collect();
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "after": last, "has_more": has_more } })))
}

/// `PATCH /v1/tenants/{slug}/tokens/{id}`: narrows or widens what a token is limited to.
pub(super) async fn change(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let unknown = || OperatorRefusal::Unknown { what: "token", id: call.segments.get("id").to_owned() };
    let id = call.id().ok_or_else(unknown)?;
    let given: GivenLimits = call.change()?;
    if given.is_empty() {
        let text = "name what to change: `scopes`, `forms`, `networks` or `requests_per_minute`";
        return Err(OperatorRefusal::of("", text));
    }
    let now = Timestamp::now();
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let changing = async {
        let limits = given.read(tenant.requests_per_minute)?;
        let changed = store.change_token_limits(id, |old| limits.of(old), now, &call.caller.actor()).await;
        let changed = changed.map_err(|error| of_tenant(&tenant, &error))?;
        let token = store.find_token_by_id(id).await.map_err(|error| of_tenant(&tenant, &error))?;
        Ok::<_, OperatorRefusal>((changed, token.ok_or_else(unknown)?))
    };
    let changing = changing.await;
    store.close().await;
    let (changed, token) = changing?;
    let ended = |why: &str| {
        let message = format!("the token `{id}` {why}: its limits can't be changed");
        OperatorRefusal::Conflict { key: String::new(), message }
    };
    match changed {
        ChangedToken::Changed => {
            call.api.announce_tokens(&tenant.slug).await;
            let by = &call.caller.name;
            tracing::info!(tenant = &*tenant.slug, token = id, by, "token changed through the operator API");
        }
        ChangedToken::Same => {}
        ChangedToken::Unknown => return Err(unknown()),
        ChangedToken::Revoked => return Err(ended("is revoked")),
        ChangedToken::Expired => return Err(ended("has expired")),
    }
    Ok(Reply::json(StatusCode::OK, &json!({ "data": describe(&token, now) })))
}

/// `DELETE /v1/tenants/{slug}/tokens/{id}`. A token that was revoked before keeps its time of revocation.
pub(super) async fn revoke(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let unknown = || OperatorRefusal::Unknown { what: "token", id: call.segments.get("id").to_owned() };
    let id = call.id().ok_or_else(unknown)?;
    let now = Timestamp::now();
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let revoking = async {
        let is_known = store.revoke_token(id, now, &call.caller.actor()).await?;
        if is_known { store.find_token_by_id(id).await } else { Ok(None) }
    };
    let revoked = revoking.await;
    store.close().await;
    let revoked = revoked.map_err(|error| of_tenant(&tenant, &error))?.ok_or_else(unknown)?;
    call.api.announce_tokens(&tenant.slug).await;
    tracing::info!(tenant = &*tenant.slug, token = id, by = call.caller.name, "token revoked through the operator API");
    Ok(Reply::json(StatusCode::OK, &json!({ "data": describe(&revoked, now) })))
}

fn describe(token: &TokenRecord, now: Timestamp) -> Value {
    let mut described = json!({
        "id": token.id,
        "name": token.name,
        "prefix": token.prefix,
        "state": token.state(now),
        "created_at": Rfc3339Micros(token.created_at),
        "created_by": token.created_by,
        "replaces": token.replaces,
        "expires_at": token.expires_at.map(Rfc3339Micros),
        "revoked_at": token.revoked_at.map(Rfc3339Micros),
        "last_used_at": token.last_used_at.map(Rfc3339Micros),
        "last_used_route": token.last_used_route,
        "last_used_network": token.last_used_network,
    });
    described.as_object_mut().expect("it is one").extend(token.limits.to_json());
    described
}
