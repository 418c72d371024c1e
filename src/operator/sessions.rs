//! Who is signed in to the administration area of a tenant: listing and ending sessions, as when a person leaves.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Call;
use super::credentials::{OpenTenant, of_tenant, open_tenant};
use super::refusal::OperatorRefusal;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::{AdminSession, EndedSessions};

/// `GET /v1/tenants/{slug}/sessions`: those used last first; of more than 200, some.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let idle = call.api.gateway.load().administration.as_ref().map(|area| area.idle);
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let sessions = match idle {
        Some(idle) => store.list_admin_sessions(idle, Timestamp::now()).await,
        // Without an administration area, nobody is signed in.
        None => Ok(Vec::new()),
    };
    store.close().await;
    let sessions = sessions.map_err(|error| of_tenant(&tenant, &error))?;
    let data: Vec<_> = sessions.iter().map(describe).collect();
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data })))
}

/// `DELETE /v1/tenants/{slug}/sessions`: everybody is signed out.
pub(super) async fn end_all(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let ended = end(call, EndedSessions::All).await?;
    Ok(Reply::json(StatusCode::OK, &json!({ "data": { "ended": ended } })))
}

/// `DELETE /v1/tenants/{slug}/sessions/{id}`.
pub(super) async fn end_one(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let unknown = || OperatorRefusal::Unknown { what: "session", id: call.segments.get("id").to_owned() };
    let id = call.id().ok_or_else(unknown)?;
    match end(call, EndedSessions::One(id)).await? {
        0 => Err(unknown()),
        ended => Ok(Reply::json(StatusCode::OK, &json!({ "data": { "ended": ended } }))),
    }
}

async fn end(call: &Call<'_>, which: EndedSessions) -> Result<usize, OperatorRefusal> {
    let OpenTenant { tenant, store, share: _share } = open_tenant(call).await?;
    let ended = store.end_admin_sessions(which, Timestamp::now(), &call.caller.actor()).await;
    store.close().await;
    let ended = ended.map_err(|error| of_tenant(&tenant, &error))?;
    tracing::info!(tenant = &*tenant.slug, ended, by = call.caller.name, "sessions ended through the operator API");
    Ok(ended)
}

fn describe(session: &AdminSession) -> Value {
    let (issuer, subject) = session.identity.as_ref().map(|it| (&it.issuer, &it.subject)).unzip();
    json!({
        "id": session.id,
        "email": session.email,
        "name": session.name,
        "role": session.role.as_str(),
        "issuer": issuer,
        "subject": subject,
        "created_at": Rfc3339Micros(session.created_at),
        "last_seen_at": Rfc3339Micros(session.last_seen_at),
        "expires_at": Rfc3339Micros(session.expires_at),
        "network": session.network,
        "user_agent": session.user_agent,
    })
}
