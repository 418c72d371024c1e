//! API tokens and sign-in links of a tenant: the operator's product hands them to its customers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::Call;
use super::limits::{FormId, GivenLimits};
use super::refusal::OperatorRefusal;
use crate::config::{RegisteredTenant, TenantConfig};
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::shares::Share;
use crate::store::{self, AdminLink, AdminRole, DatabaseLocation, Store, StoreError, TokenLimits, with_causes};
use crate::tenant::token::{self, CreateTokenError, Created, NewTokenRequest};
use crate::tenant::{DirectUse, sign_in_link};

/// The header with which a call may be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The longest value of that header.
const MAX_KEY: usize = 200;

/// How long opening the database of a tenant may take.
///
/// Larger: calls hold connections of this API for longer while a database hangs. Smaller: a slow database can't be used.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    name: String,
    #[serde(default, deserialize_with = "instant")]
    expires_at: Option<Timestamp>,
    scopes: Option<Vec<String>>,
    forms: Option<Vec<FormId>>,
    networks: Option<Vec<String>>,
    requests_per_minute: Option<u64>,
}

fn instant<'v, D: Deserializer<'v>>(value: D) -> Result<Option<Timestamp>, D::Error> {
    let value = Value::deserialize(value)?;
    let instant = value.as_str().and_then(|text| text.parse().ok());
    instant.map(Some).ok_or_else(|| D::Error::custom("must be an RFC 3339 date-time, such as 2027-11-30T00:00:00Z"))
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
pub(super) async fn create_token(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let body: TokenBody = call.body()?;
    let form_key = match call.head.headers.get(IDEMPOTENCY_KEY).map(|value| value.to_str()) {
        None => None,
        Some(Ok(key)) if (1..=MAX_KEY).contains(&key.len()) => Some(format!("operator call {key}")),
        Some(_) => {
            return Err(OperatorRefusal::Malformed("Idempotency-Key must be 1 to 200 visible characters".to_owned()));
        }
    };
    let tenant = find(call, call.slug()).await?;
    let TokenBody { name, expires_at, scopes, forms, networks, requests_per_minute } = body;
    let given = GivenLimits {
        scopes: scopes.map(Some),
        forms: forms.map(Some),
        networks: networks.map(Some),
        requests_per_minute: requests_per_minute.map(Some),
    };
    let limits = given.read(tenant.requests_per_minute)?.of(TokenLimits::default());
    let _share = call.begin_to_use_database().await?;
    let store = open_own(call, &tenant).await?;
    let created = new_token(call, &tenant, &store, NewTokenRequest { name, expires_at, limits, form_key }).await;
    store.close().await;
    let (created, is_new) = created?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(status, &json!({ "data": created })))
}

/// `POST /v1/tenants/{slug}/links`.
pub(super) async fn create_link(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    call.query()?;
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
    let email = sign_in_link::email(&email).map_err(|fault| OperatorRefusal::of("email", fault))?;
    let tenant = find(call, slug).await?;
    administration_url(call, &tenant)?;
    let link = NewLink { email, name, role, valid: Duration::from_secs(valid) };
    let _share = call.begin_to_use_database().await?;
    let store = open_own(call, &tenant).await?;
    let created = new_link(call, &tenant, &store, link).await;
    store.close().await;
    Ok(Reply::json(StatusCode::CREATED, &json!({ "data": created? })))
}

/// The tenant in the path with its database, opened for one call, and the call's share of the waiting ones.
pub(super) struct OpenTenant<'c> {
    pub(super) tenant: Arc<TenantConfig>,
    pub(super) store: OwnStore,
    pub(super) share: Share<'c>,
}

/// A store that a call has opened for itself. While it is open, the account does not move.
#[derive(Debug)]
pub(super) struct OwnStore {
    store: Store,
    _use: Option<DirectUse>,
}

impl Deref for OwnStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Opens the database of the tenant in the path.
pub(super) async fn open_tenant<'c>(call: &'c Call<'_>) -> Result<OpenTenant<'c>, OperatorRefusal> {
    let tenant = find(call, call.slug()).await?;
    let share = call.begin_to_use_database().await?;
    let store = open_own(call, &tenant).await?;
    Ok(OpenTenant { tenant, store, share })
}

/// A tenant of a file or of the registry, also one that this node does not serve yet.
pub(super) async fn find(call: &Call<'_>, slug: &str) -> Result<Arc<TenantConfig>, OperatorRefusal> {
    if let Some(config) = call.api.directory.load().config(slug) {
        return Ok(Arc::clone(config));
    }
    let unknown = || OperatorRefusal::UnknownTenant { slug: slug.to_owned() };
    let following = call.api.following().map_err(|_| unknown())?;
    let row = call.api.registry().await?.find(slug).await?.ok_or_else(unknown)?;
    let text = row.text.unwrap_or_default();
    let read = RegisteredTenant::read(slug, &text, following.config(), None);
    let cause = |problems: crate::config::Problems| OperatorRefusal::TenantDatabase {
        cause: format!("This node can't serve `{slug}`: {}", problems.titles()),
    };
    Ok(read.map_err(cause)?.config)
}

/// Creates a token, and announces it to the nodes. Returns it, and whether it is new; its value is only there if it is.
pub(super) async fn new_token(
    call: &Call<'_>,
    tenant: &TenantConfig,
    store: &Store,
    request: NewTokenRequest,
) -> Result<(Value, bool), OperatorRefusal> {
    let (name, expires_at, limits) = (request.name.clone(), request.expires_at, request.limits.to_json());
    match token::create(store, request, &call.caller.actor()).await {
        Ok(Created::New { id, token }) => {
            call.api.announce_tokens(&tenant.slug).await;
            let shown = token.shown();
            let value = token.expose();
            let mut token = json!({ "id": id, "name": name, "prefix": shown, "token": value, "expires_at": expires_at.map(Rfc3339Micros) });
            token.as_object_mut().expect("it is one").extend(limits);
            Ok((token, true))
        }
        Ok(Created::Existing { id, is_same: true }) => Ok((json!({ "id": id, "name": name }), false)),
        Ok(Created::Existing { is_same: false, .. }) => Err(OperatorRefusal::of(
            IDEMPOTENCY_KEY,
            "the Idempotency-Key was used before, for a token with another name, expiry or limits",
        )),
        Err(CreateTokenError::Store(error)) => Err(of_tenant(tenant, &error)),
        Err(CreateTokenError::InvalidName) => {
            Err(OperatorRefusal::of("name", CreateTokenError::InvalidName.to_string()))
        }
        Err(other) => Err(OperatorRefusal::of("expires_at", other.to_string())),
    }
}

/// A sign-in link that is to be created.
pub(super) struct NewLink {
    pub(super) email: String,
    pub(super) name: Option<String>,
    pub(super) role: AdminRole,
    pub(super) valid: Duration,
}

/// Creates a sign-in link.
pub(super) async fn new_link(
    call: &Call<'_>,
    tenant: &TenantConfig,
    store: &Store,
    link: NewLink,
) -> Result<Value, OperatorRefusal> {
    let NewLink { email, name, role, valid } = link;
    let area = administration_url(call, tenant)?;
    let now = Timestamp::now();
    let link = AdminLink { email, name, role, expires_at: now + valid, identity: None };
    let created = sign_in_link::create(store, &area, &link, now, &call.caller.actor()).await;
    let url = created.map_err(|error| of_tenant(tenant, &error))?;
    Ok(
        json!({ "url": url, "email": link.email, "role": link.role.as_str(), "expires_at": Rfc3339Micros(link.expires_at) }),
    )
}

/// Where the administration area of a tenant is, if it is switched on.
pub(super) fn administration_url(call: &Call<'_>, tenant: &TenantConfig) -> Result<String, OperatorRefusal> {
    let text = "the administration area is not switched on: add `[gateway.administration]`";
    let refusal = || OperatorRefusal::Conflict { key: String::new(), message: text.to_owned() };
    call.api.gateway.load().administration_url(&tenant.address).ok_or_else(refusal)
}

/// Opens the database of a tenant, if it could be served by what `formgate check` looks at.
async fn open(location: &DatabaseLocation) -> Result<Store, StoreError> {
    let store = Store::open_within(location, 1, OPEN_LIMIT).await?;
    if let Err(error) = location.require_writable() {
        store.close().await;
        return Err(error);
    }
    Ok(store)
}

/// The same for a call that uses the database of a tenant that is there: it may be that of another one. While the account is
/// held by a move, waits.
///
/// # Errors
/// 503 if it can't be used; 409 if another tenant has it.
pub(super) async fn open_own(call: &Call<'_>, tenant: &TenantConfig) -> Result<OwnStore, OperatorRefusal> {
    let directory = call.api.directory.load_full();
    let (location, using) = match directory.tenant(&tenant.slug) {
        Some(served) => {
            let (location, using) = served.database.use_directly().await;
            (location, Some(using))
        }
        None => (&tenant.database, None),
    };
    let store = open(location).await.map_err(|error| of_tenant(tenant, &error))?;
    match owner_of(call, tenant, location, &store).await {
        Ok(None) => Ok(OwnStore { store, _use: using }),
        found => {
            store.close().await;
            let owner = found?.expect("it is none of those above");
            let message = format!("the database is that of the tenant `{owner}`");
            Err(OperatorRefusal::Conflict { key: "database".to_owned(), message })
        }
    }
}

/// The other tenant that has a database, as this node or the registry knows.
async fn owner_of(
    call: &Call<'_>,
    tenant: &TenantConfig,
    location: &DatabaseLocation,
    store: &Store,
) -> Result<Option<String>, OperatorRefusal> {
    let directory = call.api.directory.load_full();
    let id = store.physical_id();
    if let Err(StoreError::OfAnotherTenant { owner }) = directory.owners().claim(&tenant.slug, location, id) {
        return Ok(Some(owner.to_string()));
    }
    match id.filter(|_| tenant.origin.is_registered()) {
        None => Ok(None),
        Some(id) => Ok(call.api.registry().await?.owner_of_database(&tenant.slug, &id.to_string()).await?),
    }
}

/// The same before a tenant is added.
///
/// # Errors
/// 422 with the words of `formgate check`.
pub(super) async fn open_to_add(tenant: &TenantConfig) -> Result<Store, OperatorRefusal> {
    open(&tenant.database).await.map_err(|error| OperatorRefusal::of("database", words(tenant, &error)))
}

/// Why this node can't serve a tenant that was added, in the words of `formgate check`. Opens its database, unless it is
/// open.
pub(super) async fn why_not_served(call: &Call<'_>, tenant: &TenantConfig) -> Option<String> {
    if is_served(call, tenant) {
        return None;
    }
    let opened = open(&tenant.database).await;
    let claimed = match opened {
        Ok(store) => {
            let id = store.physical_id();
            store.close().await;
            call.api.directory.load().owners().claim(&tenant.slug, &tenant.database, id)
        }
        Err(error) => Err(error),
    };
    claimed.err().map(|error| words(tenant, &error))
}

/// Keeps a tenant that is served from its database from moving, while it is replaced with the same one. Waits while a move
/// holds the account: if it has moved then, the database is refused as one that it has left.
pub(super) async fn use_served(call: &Call<'_>, tenant: &TenantConfig) -> Option<DirectUse> {
    let directory = call.api.directory.load_full();
    let is_same = directory.config(&tenant.slug).is_some_and(|served| served.database == tenant.database);
    let served = directory.tenant(&tenant.slug).filter(|_| is_same)?;
    Some(served.database.use_directly().await.1)
}

/// Whether this node has the database of a tenant open.
pub(super) fn is_served(call: &Call<'_>, tenant: &TenantConfig) -> bool {
    let directory = call.api.directory.load_full();
    let is_there = directory.config(&tenant.slug).is_some_and(|served| served.database == tenant.database);
    let in_use = directory.in_use(&tenant.slug).filter(|_| is_there);
    in_use.is_some_and(|database| database.if_open().is_some() && database.trouble().is_none())
}

fn words(tenant: &TenantConfig, error: &StoreError) -> String {
    format!("{}; {}", with_causes(error), store::remedy(error, &tenant.database, &tenant.slug))
}

pub(super) fn of_tenant(tenant: &TenantConfig, error: &StoreError) -> OperatorRefusal {
    OperatorRefusal::TenantDatabase {
        cause: format!("The database of `{}` can't be used: {}", tenant.slug, words(tenant, error)),
    }
}
