//! `/v1/tenants/{slug}/domains` and `/v1/domains`: hosts that need a certificate, and where each is in its life.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use http::StatusCode;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::Call;
use super::credentials::{find, of_tenant, open_own};
use super::nodes::wait_for;
use super::refusal::OperatorRefusal;
use crate::domains::{
    Claimed, DomainClaim, await_check, chosen, claim, describe, describe_unwatched, entry_of_added, entry_of_removed,
};
use crate::host::HostName;
use crate::reply::Reply;
use crate::store::AuditEntry;
use crate::store::registry::{DomainFilter, DomainRecord, DomainState, Requester};

/// The largest and the default number of domains in a list.
const MAX_LIMIT: u64 = 1_000;
const DEFAULT_LIMIT: u64 = 100;

/// How long a call waits for a check if it does not say so.
///
/// Larger: callers whose name servers hang hold connections for longer. Smaller: more responses without the new state.
const LOOK_WAIT: Duration = Duration::from_secs(15);

/// `GET /v1/domains`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let tenant = query.text("tenant").map(|slug| plain("tenant", slug)).transpose()?;
    page_of(call, &query, tenant).await
}

/// `GET /v1/tenants/{slug}/domains`.
pub(super) async fn list_of_tenant(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    let query = call.query()?;
    page_of(call, &query, Some(slug)).await
}

/// The domains of one tenant, or of all.
async fn page_of(call: &Call<'_>, query: &super::body::Query, slug: Option<&str>) -> Result<Reply, OperatorRefusal> {
    let domains = call.api.domains()?;
    if let Some(slug) = slug
        && !is_known(call, slug).await?
    {
        return Err(OperatorRefusal::UnknownTenant { slug: slug.to_owned() });
    }
    let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let state = query.text("state").map(read_state).transpose()?;
    let after = plain("after", query.text("after").unwrap_or_default())?;
    let filter = DomainFilter { slug, state, after: after.split_once('/').unwrap_or((after, "")) };
    let rows = call.api.registry().await?.list_domains(&filter, limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    let shown = &rows[..rows.len().min(limit as usize)];
    let last = shown.last().map_or_else(|| after.to_owned(), |row| format!("{}/{}", row.host, row.slug));
    let data: Vec<_> = shown.iter().map(|row| describe(row, domains.config())).collect();
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data, "meta": { "after": last, "has_more": has_more } })))
}

/// A text of visible ASCII, which both databases take.
fn plain<'t>(key: &str, text: &'t str) -> Result<&'t str, OperatorRefusal> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then_some(text).ok_or_else(|| OperatorRefusal::of(key, format!("`{key}` has characters that no name has")))
}

fn read_state(text: &str) -> Result<DomainState, OperatorRefusal> {
    DomainState::parse(text).ok_or_else(|| {
        let all: Vec<_> = DomainState::ALL.iter().map(|state| format!("`{}`", state.as_str())).collect();
        OperatorRefusal::of("state", format!("`state` must be one of {}", all.join(", ")))
    })
}

/// `GET /v1/tenants/{slug}/domains/{host}`.
pub(super) async fn read(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let (slug, host) = (call.slug(), call.host());
    call.query()?;
    let domains = call.api.domains()?;
    let host = parse(host)?;
    let data = match chosen(call.api.registry().await?, &host, Some(slug)).await? {
        Some(row) => describe(&row, domains.config()),
        None if is_of_table(call, slug, &host) => describe_unwatched(host.as_str(), slug),
        None => return Err(unknown(call, slug, &host).await?),
    };
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data })))
}

/// `PUT /v1/tenants/{slug}/domains/{host}`.
pub(super) async fn put(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let (slug, host) = (call.slug(), call.host());
    let wait = call.query()?.wait()?;
    let domains = call.api.domains()?;
    let text = decoded(host);
    let host = call.with_editor(|editor| editor.check_domain(slug, &text)).await??;
    let registry = call.api.registry().await?;
    let Claimed { claim, domain, is_new, first_look } = claim(registry, slug, &host).await?;
    if is_new {
        record(call, entry_of_added(&host, claim == DomainClaim::Contested)).await;
    }
    let (status, revision) = match claim {
        DomainClaim::Added(revision) => (StatusCode::CREATED, revision),
        DomainClaim::Same(revision) => (StatusCode::OK, revision),
        DomainClaim::Contested => {
            domains.wake();
            tracing::info!(
                tenant = slug,
                host = host.as_str(),
                by = call.caller.name,
                "domain of another tenant claimed"
            );
            let row = domain.map(|row| describe(&row, domains.config()));
            return Ok(conflict(&format!("another tenant has proved the host `{host}`"), row));
        }
        DomainClaim::Taken { owner } => {
            return Ok(conflict(&format!("the host `{host}` is in the table of the tenant `{owner}`"), None));
        }
        DomainClaim::UnknownTenant => return Err(OperatorRefusal::UnknownTenant { slug: slug.to_owned() }),
    };
    domains.wake();
    let began = Instant::now();
    if status == StatusCode::CREATED {
        tracing::info!(
            tenant = slug,
            host = host.as_str(),
            revision,
            by = call.caller.name,
            "domain added through the operator API"
        );
        // If the records are right already, the first check proves it.
        let (wait, _waiting) = call.begin_to_wait(wait.unwrap_or_default());
        await_check(registry, &host, slug, first_look, wait).await.map_err(after_write)?;
    }
    let revision = registry.find(slug).await.map_err(after_write)?.map_or(revision, |row| row.revision);
    let left = wait.map(|wait| wait.saturating_sub(began.elapsed()));
    let behind = wait_for(call, registry, revision, &[slug], left).await.map_err(after_write)?;
    // What the check has found.
    let found = chosen(registry, &host, Some(slug)).await.map_err(after_write)?.or(domain);
    let data = match &found {
        Some(row) => describe(row, domains.config()),
        None => describe_unwatched(host.as_str(), slug),
    };
    Ok(served(status, &data, &behind))
}

fn after_write(error: impl Into<OperatorRefusal>) -> OperatorRefusal {
    error.into().after_write()
}

/// `DELETE /v1/tenants/{slug}/domains/{host}`.
pub(super) async fn remove(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let (slug, host) = (call.slug(), call.host());
    let wait = call.query()?.wait()?;
    let domains = call.api.domains()?;
    call.with_editor(|editor| editor.check_owner(slug)).await??;
    let host = parse(host)?;
    let registry = call.api.registry().await?;
    let removed = registry.remove_domain(slug, host.as_str(), Timestamp::now(), &call.caller.name).await?;
    let Some(revision) = removed else {
        if registry.owner_of(host.as_str()).await?.is_some_and(|owner| owner.slug == slug) {
            let message =
                format!("the host `{host}` is in the table of the tenant `{slug}`: put the tenant without it");
            return Err(OperatorRefusal::Conflict { key: "host".to_owned(), message });
        }
        return Err(unknown(call, slug, &host).await?);
    };
    call.api.following()?.look_soon();
    domains.wake();
    record(call, entry_of_removed(&host)).await;
    tracing::info!(
        tenant = slug,
        host = host.as_str(),
        revision,
        by = call.caller.name,
        "domain removed through the operator API"
    );
    let behind = wait_for(call, registry, revision, &[slug], wait).await.map_err(after_write)?;
    let data = json!({ "host": host.as_str(), "tenant": slug, "revision": revision });
    Ok(served(StatusCode::OK, &data, &behind))
}

/// Writes a change into the audit log of the tenant. The change is in the registry, so it is there also if the database of the
/// tenant is not.
async fn record(call: &Call<'_>, entry: AuditEntry) {
    // Without room too: the change is made already.
    let _share = call.api.waits.begin(&call.caller.name);
    let recording = async {
        let tenant = find(call, call.slug()).await?;
        let store = open_own(call, &tenant).await?;
        let recorded = store.audit(&call.caller.actor(), entry, Timestamp::now()).await;
        store.close().await;
        recorded.map_err(|error| of_tenant(&tenant, &error))
    };
    if let Err(refusal) = recording.await {
        let (tenant, cause) = (call.slug(), refusal.message());
        tracing::warn!(tenant, cause, "could not write a change of a domain to the audit log of the tenant");
    }
}

/// `POST /v1/domains/{host}/check`.
pub(super) async fn check(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let host = call.host();
    let query = call.query()?;
    let tenant = query.text("tenant").map(|slug| plain("tenant", slug)).transpose()?;
    let wait = query.wait()?.unwrap_or(LOOK_WAIT);
    let domains = call.api.domains()?;
    let host = parse(host)?;
    let registry = call.api.registry().await?;
    let unknown = || OperatorRefusal::UnknownDomain { host: host.to_string() };
    let before = chosen(registry, &host, tenant).await?.ok_or_else(unknown)?;
    if before.state == DomainState::Gone {
        // It is not looked up any more.
        return Ok(Reply::json(StatusCode::OK, &json!({ "data": describe(&before, domains.config()) })));
    }
    let asked = registry.ask_for_check(host.as_str(), &before.slug, Requester::Operator).await?.ok_or_else(unknown)?;
    domains.wake();
    let (wait, _waiting) = call.begin_to_wait(wait);
    let (after, is_looked_at) = await_check(registry, &host, &before.slug, asked, wait).await?;
    let status = if is_looked_at { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(Reply::json(status, &json!({ "data": describe(&after.ok_or_else(unknown)?, domains.config()) })))
}

/// `GET /v1/domains/ask`: whether a server in front of this one may obtain a certificate for a host. The operator vouches
/// for the hosts of tables, so only an added domain without a certificate costs a statement.
pub(super) async fn ask(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let text = query.text("domain").ok_or_else(|| OperatorRefusal::of("domain", "missing query parameter `domain`"))?;
    let unknown = || OperatorRefusal::UnknownDomain { host: text.to_owned() };
    let host = HostName::parse_domain(text).map_err(|_| unknown())?;
    let tenant = call.api.directory.load().config_at(&host).cloned().ok_or_else(unknown)?;
    let is_of_table = tenant.table_hosts().any(|known| *known == host);
    if !is_of_table && call.api.following()?.certificates().find(&host, &tenant.slug).is_none() {
        let row = chosen(call.api.registry().await?, &host, Some(&*tenant.slug)).await?.ok_or_else(unknown)?;
        if !is_verified(&row) {
            return Err(OperatorRefusal::UnprovedDomain { host: host.to_string() });
        }
    }
    Ok(Reply::json(StatusCode::OK, &json!({ "data": { "host": host.as_str(), "tenant": &*tenant.slug } })))
}

/// Whether its owner has proved it.
fn is_verified(domain: &DomainRecord) -> bool {
    match domain.state {
        DomainState::Verified
        | DomainState::Queued
        | DomainState::Issuing
        | DomainState::Live
        | DomainState::Failing => true,
        DomainState::Claimed | DomainState::Dns | DomainState::Gone | DomainState::Removed => false,
    }
}

fn decoded(segment: &str) -> Cow<'_, str> {
    percent_decode_str(segment).decode_utf8_lossy()
}

fn parse(segment: &str) -> Result<HostName, OperatorRefusal> {
    let text = decoded(segment);
    HostName::parse_domain(&text).map_err(|_| OperatorRefusal::UnknownDomain { host: text.into_owned() })
}

async fn is_known(call: &Call<'_>, slug: &str) -> Result<bool, OperatorRefusal> {
    let is_served = call.api.directory.load().config(slug).is_some();
    Ok(is_served || call.api.registry().await?.find(slug).await?.is_some())
}

fn is_of_table(call: &Call<'_>, slug: &str, host: &HostName) -> bool {
    let directory = call.api.directory.load();
    directory.config(slug).is_some_and(|tenant| tenant.table_hosts().any(|known| known == host))
}

/// The tenant or its host is not known.
async fn unknown(call: &Call<'_>, slug: &str, host: &HostName) -> Result<OperatorRefusal, OperatorRefusal> {
    Ok(if is_known(call, slug).await? {
        OperatorRefusal::UnknownDomain { host: host.to_string() }
    } else {
        OperatorRefusal::UnknownTenant { slug: slug.to_owned() }
    })
}

/// 409, with the row that says how the domain can be moved.
fn conflict(text: &str, domain: Option<Value>) -> Reply {
    let mut body = json!({ "message": text, "errors": { "host": [text] } });
    if let Some(domain) = domain {
        body["data"] = domain;
    }
    Reply::json(StatusCode::CONFLICT, &body)
}

/// A change, or 202 if there are nodes that do not serve it yet.
fn served(status: StatusCode, data: &Value, behind: &[Value]) -> Reply {
    if behind.is_empty() {
        return Reply::json(status, &json!({ "data": data }));
    }
    Reply::json(StatusCode::ACCEPTED, &json!({ "data": data, "waiting_for": behind }))
}
