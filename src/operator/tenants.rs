//! `/v1/tenants`: adding, changing, removing and showing tenants.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Call;
use super::credentials::{
    NewLink, administration_url, is_served, new_link, new_token, open_to_add, use_served, why_not_served,
};
use super::erasing::erase;
use super::nodes::{add_this_node, await_nodes, wait_for};
use super::refusal::OperatorRefusal;
use crate::config::registered::json;
use crate::config::{RegisteredTenant, TenantConfig};
use crate::registry::describe;
use crate::registry::editing::{self, Checked, EditRefused};
use crate::regular_file;
use crate::reply::Reply;
use crate::store::registry::{RegistryChange, RegistryRow, RegistryWrite, RegistryWritten};
use crate::store::{self, AdminRole, Reach, Store, TokenLimits, with_causes};
use crate::tenant::sign_in_link;
use crate::tenant::token::{self, CreateTokenError, NewTokenRequest};

/// The largest and the default number of tenants in a list.
const MAX_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 100;

/// How long creating the tables of a tenant may take. `formgate migrate` has no such limit.
///
/// Larger: calls hold connections of this API for longer while a database hangs. Smaller: the tables of a large database that
/// has to be brought to a new version can't be changed through this API.
const MIGRATE_LIMIT: Duration = Duration::from_secs(60);

/// Why it is not known whether an account is served.
const NOT_OPENED: &str = "its database was not opened, since too many calls of this caller wait";

/// `GET /v1/tenants`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let after = query.number("after")?;
    let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let rows = call.api.registry().await?.list(after, limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    let shown = &rows[..rows.len().min(limit as usize)];
    let data: Vec<_> = shown.iter().map(describe).collect();
    let last = shown.last().map_or(after, |row| row.position);
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "after": last, "has_more": has_more } })))
}

/// `GET /v1/tenants/{slug}`.
pub(super) async fn read(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    call.query()?;
    let of_file = call.api.directory.load().config(slug).filter(|config| !config.origin.is_registered()).cloned();
    if let Some(config) = of_file {
        return Ok(Reply::json(StatusCode::OK, &json!({ "data": of_config(&config) })));
    }
    let unknown = || OperatorRefusal::UnknownTenant { slug: slug.to_owned() };
    if call.api.following.is_none() {
        return Err(unknown());
    }
    let row = call.api.registry().await?.find(slug).await?.ok_or_else(unknown)?;
    Ok(with_etag(Reply::json(StatusCode::OK, &json!({ "data": describe(&row) })), row.revision))
}

/// `PUT /v1/tenants/{slug}`: one call takes an account from sign-up to served.
pub(super) async fn put(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    let query = call.query()?;
    let (migrate, wait) = (query.flag("migrate")?, query.wait()?);
    let link = query.text("link").map(sign_in_link::email).transpose();
    let link = link.map_err(|fault| OperatorRefusal::of("link", fault))?;
    if query.text("token").is_some_and(|name| !token::is_valid_name(name)) {
        return Err(OperatorRefusal::of("token", CreateTokenError::InvalidName.to_string()));
    }
    let expected = expected(&call.head.headers)?;
    let mut checked = check(call, slug, &call.object()?).await?;
    check_files(call, &[&checked.tenant], &[]).map_err(|(_, refusal)| refusal)?;
    if link.is_some() {
        administration_url(call, &checked.tenant.config)?;
    }
    let registry = call.api.registry().await?;
    let credentials = Credentials { token: query.text("token"), link };
    let uses_database = migrate || credentials.token.is_some() || credentials.link.is_some();
    let share = if uses_database { Some(call.begin_to_use_database().await?) } else { None };
    let using = if uses_database { use_served(call, &checked.tenant.config).await } else { None };
    if uses_database {
        checked.require_there(registry).await?;
    }
    if migrate {
        // Before anything is created for it.
        let free = checked.check_free(registry).await;
        free.map_err(|refused| OperatorRefusal::of_write(refused, &[(String::new(), &checked.tenant.config)]))?;
        make_tables(call, &checked.tenant.config).await?;
    }
    let config = Arc::clone(&checked.tenant.config);
    // Before the row is written: nothing is added if it can't be used.
    let database = if uses_database { Some(open_to_add(&config).await?) } else { None };
    let identified = match &database {
        Some(database) => {
            checked.identify_by(database);
            Ok(())
        }
        None => {
            // One that waits hears now that another tenant has the database. One that can't be opened may be there later.
            let opens = wait.is_some() && !is_served(call, &config);
            let share = if opens { call.api.waits.begin(&call.caller.name) } else { None };
            checked.identify(registry, share.is_some()).await
        }
    };
    let written = match identified.and_then(|()| check_database(call, &checked)) {
        Ok(()) => {
            let written = registry.write(&[checked.write(expected)], Timestamp::now(), &call.caller.name).await;
            written.map_err(|refused| OperatorRefusal::of_write(refused, &[(String::new(), &config)]))
        }
        Err(refused) => Err(refused.into()),
    };
    let written = match written {
        Ok(written) => written,
        Err(refused) => {
            close(database).await;
            return Err(refused);
        }
    };
    call.api.following()?.look_soon();
    let (revision, is_new) = match written.first() {
        Some(RegistryWritten::Created(revision)) => (*revision, true),
        Some(RegistryWritten::Changed(revision) | RegistryWritten::Same(revision)) => (*revision, false),
        _ => (0, false),
    };
    tracing::info!(
        tenant = slug,
        revision,
        by = call.caller.name,
        "tenant created or replaced through the operator API"
    );
    let given = create_credentials(call, &config, database.as_ref(), &credentials).await;
    let is_opened = database.is_some();
    close(database).await;
    drop((share, using));
    let given = given.map_err(OperatorRefusal::after_write)?;
    let served = await_served(call, &config, revision, is_opened, wait).await;
    let (row, behind) = served.map_err(OperatorRefusal::after_write)?;
    let mut body = Map::from_iter([("data".to_owned(), describe(&row))]);
    body.extend(given);
    let status = match (behind.is_empty(), is_new) {
        (false, _) => StatusCode::ACCEPTED,
        (true, true) => StatusCode::CREATED,
        (true, false) => StatusCode::OK,
    };
    if !behind.is_empty() {
        body.insert("waiting_for".to_owned(), Value::from(behind));
    }
    Ok(with_etag(Reply::json(status, &Value::Object(body)), row.revision))
}

/// The credentials that a caller asks for.
struct Credentials<'q> {
    /// The name of a token.
    token: Option<&'q str>,
    /// The address of an administrator.
    link: Option<String>,
}

/// Creates credentials.
async fn create_credentials(
    call: &Call<'_>,
    config: &TenantConfig,
    database: Option<&Store>,
    Credentials { token, link }: &Credentials<'_>,
) -> Result<Map<String, Value>, OperatorRefusal> {
    let mut body = Map::new();
    let Some(database) = database else { return Ok(body) };
    if let Some(name) = *token {
        // The same call again creates no second token.
        let form_key = Some(format!("operator put {name}"));
        let request =
            NewTokenRequest { name: name.to_owned(), expires_at: None, limits: TokenLimits::default(), form_key };
        body.insert("token".to_owned(), new_token(call, config, database, request).await?.0);
    }
    if let Some(email) = link {
        let (email, valid) = (email.clone(), sign_in_link::DEFAULT_VALID);
        let link = NewLink { email, name: None, role: AdminRole::Admin, valid };
        body.insert("link".to_owned(), new_link(call, config, database, link).await?);
    }
    Ok(body)
}

/// Waits until every live node has the row of a tenant. This node opens its database too, unless it just did: an account whose
/// database can't be opened is served by none. Returns the row, and the nodes that do not serve it.
async fn await_served(
    call: &Call<'_>,
    config: &TenantConfig,
    revision: i64,
    is_opened: bool,
    wait: Option<Duration>,
) -> Result<(RegistryRow, Vec<Value>), OperatorRefusal> {
    let registry = call.api.registry().await?;
    let slug = &*config.slug;
    let mut behind = Vec::new();
    if let Some(wait) = wait {
        // One for which there is no room only looks at the nodes.
        let share = call.api.waits.begin(&call.caller.name);
        let wait = if share.is_some() { wait } else { Duration::ZERO };
        behind = await_nodes(call, registry, revision, &[slug], wait).await?;
        let reason = match (is_opened, share) {
            (true, _) => None,
            (false, Some(_share)) => why_not_served(call, config).await,
            (false, None) => Some(NOT_OPENED.to_owned()),
        };
        if let Some(reason) = reason {
            add_this_node(call, &mut behind, &reason)?;
        }
    }
    let row = registry.find(slug).await?;
    Ok((row.ok_or_else(|| OperatorRefusal::UnknownTenant { slug: slug.to_owned() })?, behind))
}

async fn close(database: Option<Store>) {
    if let Some(database) = database {
        database.close().await;
    }
}

/// `DELETE /v1/tenants/{slug}`. Its database is kept, unless it is erased.
pub(super) async fn remove(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    let query = call.query()?;
    if query.flag("erase")? {
        return erase(call, &query).await;
    }
    let (wait, expected) = (query.wait()?, expected(&call.head.headers)?);
    call.with_editor(|editor| editor.check_owner(slug)).await??;
    let registry = call.api.registry().await?;
    let write = RegistryWrite { slug: slug.to_owned(), change: RegistryChange::Remove, expected };
    let written = registry.write(&[write], Timestamp::now(), &call.caller.name).await?;
    let Some(RegistryWritten::Removed(revision)) = written.first() else {
        return Err(OperatorRefusal::UnknownTenant { slug: slug.to_owned() });
    };
    call.api.following()?.look_soon();
    tracing::info!(tenant = slug, revision, by = call.caller.name, "tenant removed through the operator API");
    let behind = wait_for(call, registry, *revision, &[slug], wait).await.map_err(OperatorRefusal::after_write)?;
    let status = if behind.is_empty() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut body = json!({ "data": { "slug": slug, "revision": revision } });
    if !behind.is_empty() {
        body["waiting_for"] = Value::from(behind);
    }
    Ok(Reply::json(status, &body))
}

/// Checks the object of a tenant.
pub(super) async fn check(
    call: &Call<'_>,
    slug: &str,
    object: &Map<String, Value>,
) -> Result<Checked, OperatorRefusal> {
    let text = json::to_text(slug, object).map_err(OperatorRefusal::Faults)?;
    Ok(call.with_editor(|editor| editor.check(slug, text)).await??)
}

/// Refuses tenants that would share a SQLite file with another tenant, under whichever names. Those of `removed` go away.
pub(super) fn check_files(
    call: &Call<'_>,
    wanted: &[&RegisteredTenant],
    removed: &[&str],
) -> Result<(), (usize, OperatorRefusal)> {
    let directory = call.api.directory.load_full();
    let is_new = |tenant: &&&RegisteredTenant| {
        let served = directory.config(&tenant.config.slug);
        served.is_none_or(|served| served.database != tenant.config.database)
    };
    // A tenant that keeps its database was compared when it got it.
    if !wanted.iter().any(|tenant| is_new(&tenant)) {
        return Ok(());
    }
    let leaving: HashSet<&str> =
        wanted.iter().map(|tenant| &*tenant.config.slug).chain(removed.iter().copied()).collect();
    let others = directory.configs().filter(|other| !leaving.contains(&*other.slug));
    let checked = tokio::task::block_in_place(|| editing::check_files(wanted, others));
    checked.map_err(|(at, refused)| match refused {
        EditRefused::Write(refused) => (at, OperatorRefusal::of_write(refused, &[(String::new(), &wanted[at].config)])),
        other => (at, other.into()),
    })
}

/// Refuses a tenant whose database turned out to be that of a tenant of a file, at another address. The registry knows those
/// of its own tenants.
pub(super) fn check_database(call: &Call<'_>, checked: &Checked) -> Result<(), EditRefused> {
    let directory = call.api.directory.load_full();
    let owner = checked.found().and_then(|found| directory.owners().owner_in_file(found));
    let Some(owner) = owner.filter(|owner| owner.slug != checked.tenant.config.slug) else { return Ok(()) };
    let (what, place) = ("the database".to_owned(), owner.origin.file_and_line());
    Err(EditRefused::OfFile { key: "database", what, slug: owner.slug.to_string(), place })
}

/// Creates the tables of a tenant, or migrates them to this version. Creates the folder of a SQLite file only below that of the
/// configuration, as relative paths are: elsewhere, one that is missing is a mistake, or a disk that is not mounted.
pub(super) async fn make_tables(call: &Call<'_>, tenant: &Arc<TenantConfig>) -> Result<(), OperatorRefusal> {
    let folder = tenant.database.file().and_then(Path::parent);
    let own = &call.api.following()?.config().folder;
    if let Some(folder) = folder.filter(|folder| !folder.starts_with(own)) {
        let found = tokio::task::block_in_place(|| regular_file::metadata_of_folder(folder));
        if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let message = format!("the folder `{}` of the database does not exist: create it first", folder.display());
            return Err(OperatorRefusal::of("database", message));
        }
    }
    let failed = |error: store::StoreError| {
        let remedy = store::remedy(&error, &tenant.database, &tenant.slug);
        OperatorRefusal::Migration { cause: format!("could not create the tables: {}; {remedy}", with_causes(&error)) }
    };
    store::migrate_within(&tenant.database, Reach::Served, MIGRATE_LIMIT).await.map(|_| ()).map_err(failed)
}

/// What `If-Match` and `If-None-Match` ask for.
pub(super) fn expected(headers: &HeaderMap) -> Result<Option<Option<i64>>, OperatorRefusal> {
    let malformed = || OperatorRefusal::Malformed("expected If-Match with one ETag, or If-None-Match: *".to_owned());
    let one = |name: HeaderName| {
        let mut values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim());
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(malformed()),
            (value, None) => Ok(value),
        }
    };
    match (one(IF_MATCH)?, one(IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (None, Some("*")) => Ok(Some(None)),
        (Some(tag), None) => {
            let text = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(malformed)?;
            if text.contains('"') {
                return Err(malformed());
            }
            // A tag that was never given out matches nothing.
            let revision = text.parse().ok().filter(|revision: &i64| revision.to_string() == text);
            Ok(Some(Some(revision.unwrap_or(-1))))
        }
        _ => Err(malformed()),
    }
}

fn with_etag(reply: Reply, revision: i64) -> Reply {
    let tag = HeaderValue::try_from(format!("\"{revision}\"")).expect("digits and quotes are ASCII");
    reply.with_header(ETAG, tag)
}

/// A tenant of a file: without the address of its database, which this API did not set.
fn of_config(config: &TenantConfig) -> Value {
    json!({
        "slug": &*config.slug,
        "owner": "file",
        "place": config.origin.file_and_line(),
        "tenant": {
            "slug": &*config.slug,
            "name": &*config.name,
            "address": config.address.as_str(),
            "domains": config.domains.iter().map(crate::host::HostName::as_str).collect::<Vec<_>>(),
            "requests_per_minute": config.requests_per_minute,
        },
    })
}
