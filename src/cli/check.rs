//! `formgate check`: reports everything that would prevent a tenant from being served, in one run.

mod chains;
mod exposed;
mod nodes;
mod sign_in;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::{StreamExt, stream};

use super::ConfigFile;
use super::output::print;
use crate::config::{Config, Examination, GatewayConfig, Problem, Problems, RegisteredTenant, TenantConfig};
use crate::domains::{MissingKey, missing_keys};
use crate::explain::{Finding, Trace, Tracer};
use crate::gateway::DescriptorShare;
use crate::registry::{self, FileTenants, Following, LoadError};
use crate::seal;
use crate::shared::diagnosis;
use crate::store::registry::{RegistryUse, registry_remedy};
use crate::store::{DatabaseConcern, Orphans, Pooler, Registry, Store, count_orphans, remedy, with_causes};

/// How many databases are checked at the same time. Larger: a database server gets that many connections at once.
/// Smaller: checking many tenants takes longer.
const CONCURRENT_CHECKS: usize = 16;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Trace a request to every tenant too, as `explain` does for one: certificates that expire soon, tokens, budgets.
    /// Compare every submission with the change log, and check every foreign key.
    #[arg(long)]
    deep: bool,
}

pub(super) async fn run(CheckArgs { file, deep }: &CheckArgs) -> Result<()> {
    // Check databases despite other faults, so that one run reports everything.
    let examination = Config::examine(&file.config, None);
    let (redis, eviction) = check_redis(&examination).await;
    let (registered, faults_of_registry, missing_registry) = read_registry(&examination).await;
    let places = examination.place_problems();
    let Examination { gateway, mut tenants, sources, mut problems, mut warnings, .. } = examination;
    let (of_places, faulty_places): (Vec<_>, Vec<_>) = places.into_iter().partition(Problem::is_warning);
    warnings.extend(of_places);
    problems.extend(faulty_places);
    tenants.extend(registered);
    problems.extend(faults_of_registry);
    let seals = gateway.as_ref().map(|gateway| gateway.webhooks.seals.prefixes().collect());
    let known_seals: Vec<String> = seals.unwrap_or_default();
    let checked: Vec<_> = stream::iter(&tenants)
        .map(|tenant| check_database(tenant, &known_seals, *deep))
        .buffered(CONCURRENT_CHECKS)
        .collect()
        .await;
    problems.extend(redis);
    problems.extend(shared_databases(&tenants, &checked));
    let (faults, concerns): (Vec<_>, Vec<_>) =
        checked.into_iter().map(|checked| (checked.fault, checked.concerns)).unzip();
    problems.extend(faults.into_iter().flatten());
    for warning in warnings {
        print(&format!("{warning}\n"))?;
    }
    if let Some(warning) = missing_registry {
        print(&warning)?;
    }
    for tenant in &tenants {
        if let Some(pooler) = tenant.database.detected_pooler() {
            let slug = &tenant.slug;
            print(&format!("warning: the database of the tenant `{slug}` is behind {pooler}: {}", Pooler::REMEDY))?;
        }
    }
    let lowered =
        gateway.as_ref().map(|gateway| DescriptorShare::once_raised(gateway).lowered(gateway)).unwrap_or_default();
    for warning in lowered {
        print(&format!("warning: {warning}, as far as this shell may raise it"))?;
    }
    let others = exposed::warnings(gateway.as_ref(), &tenants, &sources);
    let others = others.into_iter().chain(chains::warnings(gateway.as_ref(), &tenants));
    for warning in
        others.chain(nodes::warning(gateway.as_ref(), &tenants)).chain(eviction).chain(concerns.into_iter().flatten())
    {
        print(&warning)?;
    }
    for line in sign_in::lines(gateway.as_ref(), &tenants) {
        print(&line)?;
    }
    let faults = match Problems::none_of(problems) {
        Err(problems) => {
            print(&problems.to_string())?;
            problems.len()
        }
        Ok(()) => {
            let tenants = tenants.len();
            if gateway.is_some_and(|gateway| gateway.certificate.is_none() && gateway.acme.is_none()) {
                print("no entry of `listen` speaks TLS: certificates are neither needed nor looked at")?;
            }
            let noun = if tenants == 1 { "tenant" } else { "tenants" };
            print(&format!("{}: no faults, {tenants} {noun}", file.config.display()))?;
            0
        }
    };
    let walked = if *deep { Some(file.load_all().await) } else { None };
    let stopped = match walked {
        Some(Ok(config)) => trace_all(&config).await?,
        // The files have changed since they were checked.
        Some(Err(problems)) if faults == 0 => return Err(problems),
        // Not requested, or the configuration is too faulty.
        _ => 0,
    };
    match (faults, stopped) {
        (0, 0) => Ok(()),
        (0, _) => bail!("{stopped} would not be served"),
        (1, _) => bail!("1 fault"),
        _ => bail!("{faults} faults"),
    }
}

/// The tenants of the registry, the faults of their texts, and the faults of files that conflict with them.
/// A warning if there is no registry yet.
async fn read_registry(examination: &Examination) -> (Vec<Arc<TenantConfig>>, Vec<Problem>, Option<String>) {
    let gateway = examination.gateway.as_ref();
    let Some((gateway, config)) = gateway.and_then(|gateway| Some((gateway, gateway.registry.as_ref()?))) else {
        return (Vec::new(), Vec::new(), None);
    };
    let loaded = match registry::load_existing(config, &gateway.webhooks.seals).await {
        Ok(Some(loaded)) => loaded,
        // As before the first start.
        Ok(None) => return (Vec::new(), Vec::new(), Some(format!("warning: {}", config.missing()))),
        Err(error) => {
            let problem = examination.registry_problem(with_causes(&error)).map(|problem| match &error {
                LoadError::Away { cause, .. } => problem.help(registry_remedy(cause)),
                LoadError::Silent { .. } => problem,
            });
            return (Vec::new(), problem.into_iter().collect(), None);
        }
    };
    let mut tenants = Vec::with_capacity(loaded.rows.len());
    let files = FileTenants::of(&examination.tenants);
    let mut problems = registry::conflicts(&files, Following::tenants_of(&loaded));
    if let Some(registry) = &loaded.registry {
        problems.extend(check_rights(examination, gateway, registry).await);
    }
    if let Some((registry, acme)) = loaded.registry.as_ref().zip(gateway.acme.as_ref()) {
        match missing_keys(registry, &acme.seals).await {
            Ok(missing) => problems.extend(
                missing
                    .into_iter()
                    .filter_map(|key| Some(examination.registry_problem(key.to_string())?.help(MissingKey::NEXT_STEP))),
            ),
            Err(error) => problems.extend(examination.registry_problem(with_causes(&error))),
        }
    }
    for (row, _) in loaded.rows {
        // Again, with certificates.
        let text = row.text.as_deref().unwrap_or_default();
        match RegisteredTenant::read(&row.slug, text, config, Some(gateway)) {
            Ok(tenant) => tenants.push(tenant.with_domains(&row.domains).config),
            Err(faults) => problems.extend(faults.iter().cloned().map(|fault| fault.of_registered(&row.slug))),
        }
    }
    if let Some(registry) = &loaded.registry {
        registry.close().await;
    }
    (tenants, problems, None)
}

/// A fault if the role of the registry lacks rights that a node with this configuration needs.
async fn check_rights(examination: &Examination, gateway: &GatewayConfig, registry: &Registry) -> Option<Problem> {
    let mut uses = vec![RegistryUse::Follow];
    uses.extend(gateway.operator.as_ref().map(|_| RegistryUse::Operate));
    uses.extend(gateway.domains.as_ref().map(|_| RegistryUse::WorkOnDomains));
    if let Some(Err(error)) = gateway.registry.as_ref().map(|registry| registry.database.require_writable()) {
        let problem = examination.registry_problem(with_causes(&error))?;
        return Some(problem.help(registry_remedy(&error)));
    }
    match registry.missing_rights(&uses).await {
        Ok(missing) if missing.is_empty() => None,
        Ok(missing) => {
            let problem =
                examination.registry_problem(format!("the role of `registry` lacks rights: {}", missing.join(", ")))?;
            Some(problem.help("grant them, as `Rights of a node` in deploy/registry.md shows"))
        }
        Err(error) => examination.registry_problem(with_causes(&error)),
    }
}

/// Reports the tenants that need attention. Returns how many would not be served.
async fn trace_all(config: &Config) -> Result<usize> {
    let tracer = Tracer::new(config).await;
    let tracer = &tracer;
    let traces = stream::iter(&config.tenants).map(|tenant| async move { (tenant, tracer.trace_tenant(tenant).await) });
    let (mut warned, mut stopped) = (0, 0);
    let mut traced = std::pin::pin!(traces.buffered(CONCURRENT_CHECKS));
    while let Some((tenant, trace)) = traced.next().await {
        if trace.stop().is_some() {
            stopped += 1;
        } else if warns(&trace) {
            warned += 1;
        } else {
            continue;
        }
        print(&format!("\n{} ({})\n{trace}", tenant.slug, tenant.address))?;
    }
    let served = config.tenants.len() - stopped;
    print(&format!("walked: {served} would be served, {warned} of them with a warning; {stopped} would not"))?;
    Ok(stopped)
}

fn warns(trace: &Trace) -> bool {
    trace.steps().iter().any(|step| matches!(step.finding, Finding::Warns { .. }))
}

/// A fault that prevents nodes from using Redis, or a warning about one that works.
async fn check_redis(examination: &Examination) -> (Option<Problem>, Option<String>) {
    let Some(redis) = examination.gateway.as_ref().and_then(|gateway| gateway.redis.as_ref()) else {
        return (None, None);
    };
    match diagnosis::diagnose(&redis.target).await {
        Ok(warning) => (None, warning.map(|warning| format!("warning: {warning}"))),
        Err(failed) => {
            let problem = examination.redis_problem(format!("Redis can't be used: {}", failed.cause));
            (problem.map(|problem| problem.help(failed.remedy)), None)
        }
    }
}

/// The result of checking a tenant's database.
struct CheckedDatabase {
    /// Why it can't be served.
    fault: Option<Problem>,
    /// Warnings about a database that can be served.
    concerns: Vec<String>,
    /// Its location as reported by the server, if it does.
    server_location: Option<String>,
}

/// A fault for each tenant whose URL leads to the database of another tenant. URLs that differ in the host name, for
/// example, only show this once connected.
fn shared_databases(tenants: &[Arc<TenantConfig>], checked: &[CheckedDatabase]) -> Vec<Problem> {
    let mut seen = HashMap::new();
    let mut problems = Vec::new();
    for (tenant, server_location) in
        tenants.iter().zip(checked).filter_map(|(tenant, checked)| Some((tenant, checked.server_location.as_ref()?)))
    {
        match seen.entry(server_location) {
            Entry::Vacant(first) => _ = first.insert(&tenant.slug),
            Entry::Occupied(first) => {
                let fault = format!("this is the database of the tenant `{}` too", first.get());
                problems
                    .push(tenant.database_problem(fault).help("give each tenant a database or a `schema` of its own"));
            }
        }
    }
    problems
}

async fn check_database(tenant: &TenantConfig, known_seals: &[String], deep: bool) -> CheckedDatabase {
    let (location, slug) = (&tenant.database, &*tenant.slug);
    let checked = async {
        let store = Store::open(location, 1).await?;
        let (concerns, server_location) = (store.concerns().await, store.physical_id().await);
        let sealed = store.count_secrets_without(seal::PREFIX, known_seals).await;
        let unnoticed = if deep { store.count_unnoticed().await } else { Ok(0) };
        store.close().await;
        let orphans = if deep { count_orphans(location).await? } else { Vec::new() };
        location.require_writable()?;
        Ok((concerns?, server_location, sealed?, unnoticed?, orphans))
    };
    match checked.await {
        Ok((concerns, server_location, sealed, unnoticed, orphans)) => {
            let orphans = orphans.into_iter().map(|Orphans { table, referenced, rows }| {
                format!(
                    "warning: tenant `{slug}`: {rows} rows of `{table}` refer to rows of `{referenced}` that do not exist, such \
                     as loads with disabled triggers leave them: delete them, or add what they refer to"
                )
            });
            let unnoticed = (unnoticed > 0).then(|| {
                format!(
                    "warning: tenant `{slug}`: {unnoticed} submissions changed without an entry in the change log, such as \
                     while its triggers were disabled: `formgate reindex --tenant {slug}` adds the entries"
                )
            });
            let sealed = (sealed > 0).then(|| {
                format!(
                    "warning: tenant `{slug}`: {sealed} subscriptions have a secret that is sealed with another key: \
                     set it as `secret_key` or `previous_secret_key` in `[gateway.webhooks]`"
                )
            });
            let warning =
                |concern: DatabaseConcern| format!("warning: tenant `{slug}`: {concern}: {}", concern.remedy(slug));
            CheckedDatabase {
                fault: None,
                concerns: concerns.into_iter().map(warning).chain(sealed).chain(unnoticed).chain(orphans).collect(),
                server_location,
            }
        }
        Err(error) => {
            let problem = tenant.database_problem(with_causes(&error));
            let fault = Some(problem.help(remedy(&error, location, slug)));
            CheckedDatabase { fault, concerns: Vec::new(), server_location: None }
        }
    }
}
