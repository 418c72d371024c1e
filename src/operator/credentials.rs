//! API tokens and sign-in links of a tenant: the operator's product hands them to its customers.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::config::{RegisteredTenant, TenantConfig};
use crate::reply::Reply;
use crate::store::{self, AdminLink, AdminRole, Store, StoreError, with_causes};
use crate::tenant::sign_in_link;
use crate::tenant::token::{self, CreateTokenError, Created, NewTokenRequest};

/// The header with which a call may be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The longest value of that header.
const MAX_KEY: usize = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    name: String,
    expires_at: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkBody {
    email: String,
    name: Option<String>,
    role: Option<String>,
    valid_seconds: Option<u64>,
}

/// `POST /v1/tenants/{slug}/tokens`.
pub(super) async fn create_token(call: &Call<'_>, slug: &str) -> Result<Reply, OperatorRefusal> {
    call.query(&[])?;
    let TokenBody { name, expires_at } = call.body()?;
    let form_key = match call.head.headers.get(IDEMPOTENCY_KEY).map(|value| value.to_str()) {
        None => None,
        Some(Ok(key)) if (1..=MAX_KEY).contains(&key.len()) => Some(format!("operator call {key}")),
        Some(_) => {
            return Err(OperatorRefusal::Malformed("Idempotency-Key must be 1 to 200 visible characters".to_owned()));
        }
    };
    let tenant = find(call, slug).await?;
    let (created, is_new) = new_token(call, &tenant, NewTokenRequest { name, expires_at, form_key }).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(status, &json!({ "data": created })))
}

/// `POST /v1/tenants/{slug}/links`.
pub(super) async fn create_link(call: &Call<'_>, slug: &str) -> Result<Reply, OperatorRefusal> {
    call.query(&[])?;
    let LinkBody { email, name, role, valid_seconds } = call.body()?;
    let role = match role.as_deref() {
        None | Some("admin") => AdminRole::Admin,
        Some("viewer") => AdminRole::Viewer,
        Some(_) => return Err(OperatorRefusal::of("role", "`role` must be `admin` or `viewer`")),
    };
    let most = sign_in_link::MAX_VALID.as_secs();
    let valid = valid_seconds.unwrap_or(sign_in_link::DEFAULT_VALID.as_secs());
    if !(1..=most).contains(&valid) {
        return Err(OperatorRefusal::of("valid_seconds", format!("`valid_seconds` must be from 1 to {most}")));
    }
    let name = name.map(|name| sign_in_link::name(&name)).transpose();
    let name = name.map_err(|fault| OperatorRefusal::of("name", fault))?;
    let tenant = find(call, slug).await?;
    let link = new_link(call, &tenant, &email, name, role, Duration::from_secs(valid)).await?;
    Ok(Reply::json(StatusCode::CREATED, &json!({ "data": link })))
}

/// A tenant of a file or of the registry, also one that this node does not serve yet.
async fn find(call: &Call<'_>, slug: &str) -> Result<Arc<TenantConfig>, OperatorRefusal> {
    if let Some(config) = call.api.directory.load().config(slug) {
        return Ok(Arc::clone(config));
    }
    let unknown = || OperatorRefusal::UnknownTenant { slug: slug.to_owned() };
    let following = call.api.following().map_err(|_| unknown())?;
    let row = call.api.registry().await?.find(slug).await?.ok_or_else(unknown)?;
    let text = row.text.unwrap_or_default();
    let read = RegisteredTenant::read(slug, &text, following.config(), None);
    let cause = |problems: crate::config::Problems| OperatorRefusal::TenantDatabase { cause: problems.to_string() };
    Ok(read.map_err(cause)?.config)
}

/// Creates a token, and announces it to the nodes. Returns it, and whether it is new; its value is only there if it is.
pub(super) async fn new_token(
    call: &Call<'_>,
    tenant: &TenantConfig,
    request: NewTokenRequest,
) -> Result<(Value, bool), OperatorRefusal> {
    let (name, expires_at) = (request.name.clone(), request.expires_at);
    let store = open(tenant).await?;
    let outcome = token::create(&store, request, &call.caller.actor()).await;
    store.close().await;
    match outcome {
        Ok(Created::New { id, token }) => {
            call.api.announce_tokens(&tenant.slug).await;
            let shown = token.shown();
            let token =
                json!({ "id": id, "name": name, "prefix": shown, "token": token.expose(), "expires_at": expires_at });
            Ok((token, true))
        }
        Ok(Created::Existing { id, is_same: true }) => Ok((json!({ "id": id, "name": name }), false)),
        Ok(Created::Existing { is_same: false, .. }) => Err(OperatorRefusal::of(
            IDEMPOTENCY_KEY,
            "the Idempotency-Key was used before, for a token with another name or expiry",
        )),
        Err(CreateTokenError::Store(error)) => Err(of_tenant(tenant, &error)),
        Err(CreateTokenError::InvalidName) => {
            Err(OperatorRefusal::of("name", CreateTokenError::InvalidName.to_string()))
        }
        Err(other) => Err(OperatorRefusal::of("expires_at", other.to_string())),
    }
}

/// Creates a sign-in link.
pub(super) async fn new_link(
    call: &Call<'_>,
    tenant: &TenantConfig,
    email: &str,
    name: Option<String>,
    role: AdminRole,
    valid: Duration,
) -> Result<Value, OperatorRefusal> {
    let email = sign_in_link::email(email).map_err(|fault| OperatorRefusal::of("email", fault))?;
    let area = administration_url(call, tenant)?;
    let now = Timestamp::now();
    let link = AdminLink { email, name, role, expires_at: now + valid, identity: None };
    let store = open(tenant).await?;
    let created = sign_in_link::create(&store, &area, &link, now, &call.caller.actor()).await;
    store.close().await;
    let url = created.map_err(|error| of_tenant(tenant, &error))?;
    Ok(json!({ "url": url, "email": link.email, "role": link.role.as_str(), "expires_at": link.expires_at }))
}

/// Where the administration area of a tenant is, if it is switched on.
pub(super) fn administration_url(call: &Call<'_>, tenant: &TenantConfig) -> Result<String, OperatorRefusal> {
    let text = "the administration area is not switched on: add `[gateway.administration]`";
    let refusal = || OperatorRefusal::Conflict { key: String::new(), message: text.to_owned() };
    call.api.gateway.load().administration_url(&tenant.address).ok_or_else(refusal)
}

async fn open(tenant: &TenantConfig) -> Result<Store, OperatorRefusal> {
    Store::open(&tenant.database, 1).await.map_err(|error| of_tenant(tenant, &error))
}

fn of_tenant(tenant: &TenantConfig, error: &StoreError) -> OperatorRefusal {
    let (cause, remedy) = (with_causes(error), store::remedy(error, &tenant.database, &tenant.slug));
    OperatorRefusal::TenantDatabase {
        cause: format!("The database of `{}` can't be used: {cause}; {remedy}", tenant.slug),
    }
}
