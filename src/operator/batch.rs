//! `POST /v1/batch`: changes of many tenants, all or none.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Call;
use super::nodes::wait_for;
use super::refusal::OperatorRefusal;
use super::tenants::{check, check_database, check_files, make_tables};
use crate::config::registered::json::Faults;
use crate::registry::editing::Checked;
use crate::reply::Reply;
use crate::store::registry::{RegistryChange, RegistryWrite, RegistryWritten};

/// The largest number of operations.
///
/// Larger: other writers wait longer. Smaller: an operator who moves in needs more calls.
const MAX_OPERATIONS: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    operations: Vec<Operation>,
}

/// `{"put": SLUG, "tenant": {…}}` or `{"remove": SLUG}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    put: Option<String>,
    tenant: Option<Map<String, Value>>,
    remove: Option<String>,
}

/// An operation that was checked.
enum Operated {
    Put(Box<Checked>),
    Remove(String),
}

pub(super) async fn run(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let query = call.query()?;
    let (migrate, wait) = (query.flag("migrate")?, query.wait()?);
    let BatchBody { operations } = call.body()?;
    if operations.len() > MAX_OPERATIONS {
        return Err(OperatorRefusal::of("operations", format!("there may be at most {MAX_OPERATIONS} operations")));
    }
    let (mut faults, mut named) = (Faults::new(), BTreeSet::new());
    let (mut changes, mut configs) = (Vec::with_capacity(operations.len()), Vec::new());
    for (at, operation) in operations.iter().enumerate() {
        let mut fault = |key: &str, text: String| {
            let key = if key.is_empty() { format!("operations.{at}") } else { format!("operations.{at}.{key}") };
            faults.entry(key).or_default().push(text);
        };
        let slug = match (&operation.put, &operation.tenant, &operation.remove) {
            (Some(slug), Some(_), None) | (None, None, Some(slug)) => slug,
            _ => {
                fault("", "expected `put` and `tenant`, or `remove`".to_owned());
                continue;
            }
        };
        if !named.insert(slug.as_str()) {
            fault("", format!("the tenant `{slug}` is named twice"));
            continue;
        }
        match &operation.tenant {
            None => {
                call.with_editor(|editor| editor.check_owner(slug)).await??;
                changes.push(Operated::Remove(slug.clone()));
            }
            Some(object) => match check(call, slug, object).await {
                Ok(checked) => {
                    configs.push((at, Arc::clone(&checked.tenant.config)));
                    changes.push(Operated::Put(Box::new(checked)));
                }
                Err(OperatorRefusal::Faults(faulty)) => {
                    faulty.into_iter().for_each(|(key, texts)| texts.into_iter().for_each(|text| fault(&key, text)));
                }
                Err(other) => return Err(other.below(&format!("operations.{at}"))),
            },
        }
    }
    if !faults.is_empty() {
        return Err(OperatorRefusal::Faults(faults));
    }
    let removed: Vec<_> = operations.iter().filter_map(|operation| operation.remove.as_deref()).collect();
    let mut wanted = Vec::with_capacity(configs.len());
    for change in &changes {
        if let Operated::Put(checked) = change {
            wanted.push(&checked.tenant);
        }
    }
    check_files(call, &wanted, &removed)
        .map_err(|(at, refusal)| refusal.below(&format!("operations.{}", configs[at].0)))?;
    if migrate {
        let _share = call.begin_to_use_database().await?;
        for (at, config) in &configs {
            make_tables(call, config).await.map_err(|refusal| refusal.below(&format!("operations.{at}")))?;
        }
    }
    let registry = call.api.registry().await?;
    let mut writes = Vec::with_capacity(changes.len());
    for (at, change) in changes.into_iter().enumerate() {
        writes.push(match change {
            Operated::Put(mut checked) => {
                let identified = checked.identify(registry, migrate).await;
                let checking = identified.and_then(|()| check_database(call, &checked));
                checking.map_err(|refused| OperatorRefusal::from(refused).below(&format!("operations.{at}")))?;
                checked.write(None)
            }
            Operated::Remove(slug) => RegistryWrite { slug, change: RegistryChange::Remove, expected: None },
        });
    }
    let written = registry.write(&writes, Timestamp::now(), &call.caller.name).await.map_err(|refused| {
        let prefixed = configs.iter().map(|(at, config)| (format!("operations.{at}."), config));
        OperatorRefusal::of_write(refused, &prefixed.collect::<Vec<_>>())
    })?;
    call.api.following()?.look_soon();
    let (mut data, mut newest) = (Vec::with_capacity(written.len()), 0);
    for (write, written) in writes.iter().zip(&written) {
        let (status, revision) = match *written {
            RegistryWritten::Created(revision) => ("created", Some(revision)),
            RegistryWritten::Changed(revision) => ("changed", Some(revision)),
            RegistryWritten::Same(revision) => ("same", Some(revision)),
            RegistryWritten::Removed(revision) => ("removed", Some(revision)),
            RegistryWritten::Absent => ("absent", None),
        };
        newest = revision.unwrap_or(0).max(newest);
        data.push(json!({ "slug": write.slug, "status": status, "revision": revision }));
    }
    tracing::info!(
        operations = data.len(),
        revision = newest,
        by = call.caller.name,
        "applied a batch through the operator API"
    );
    let slugs: Vec<_> = writes.iter().map(|write| write.slug.as_str()).collect();
    let behind = wait_for(call, registry, newest, &slugs, wait).await.map_err(OperatorRefusal::after_write)?;
    let status = if behind.is_empty() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut body = json!({ "data": data });
    if !behind.is_empty() {
        body["waiting_for"] = Value::from(behind);
    }
    Ok(Reply::json(status, &body))
}
