//! `formgate check`: everything that would keep a tenant from being served, all at once.

mod chains;
mod exposed;
mod nodes;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::{StreamExt, stream};

use super::ConfigFile;
use super::output::print;
use crate::config::{Config, Examination, Problem, Problems, TenantConfig};
use crate::explain::{Finding, Guide, Way};
use crate::gateway::Share;
use crate::shared::trial;
use crate::store::{DatabaseConcern, Pooler, Store, remedy, with_causes};

/// How many databases are tried at once.
const AT_ONCE: usize = 16;

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    file: ConfigFile,
    /// Walk every tenant's way too, as `explain` does for one: certificates that expire soon, tokens, budgets.
    #[arg(long)]
    deep: bool,
}

pub(super) async fn run(Check { file, deep }: &Check) -> Result<()> {
    // A fault elsewhere does not keep a database from being tried: an operator learns of everything at once.
    let examination = Config::examine(&file.config, None);
    let (redis, eviction) = try_redis(&examination).await;
    let Examination { gateway, tenants, sources, mut problems, warnings, .. } = examination;
    let tried: Vec<_> = stream::iter(&tenants).map(|tenant| try_database(tenant)).buffered(AT_ONCE).collect().await;
    problems.extend(redis);
    problems.extend(reached_twice(&tenants, &tried));
    let (faults, concerns): (Vec<_>, Vec<_>) = tried.into_iter().map(|tried| (tried.fault, tried.concerns)).unzip();
    problems.extend(faults.into_iter().flatten());
    for warning in warnings {
        print(&format!("{warning}\n"))?;
    }
    for tenant in &tenants {
        if let Some(pooler) = tenant.database.detected_pooler() {
            let slug = &tenant.slug;
            print(&format!("warning: the database of the tenant `{slug}` is behind {pooler}: {}", Pooler::REMEDY))?;
        }
    }
    let lowered = gateway.as_ref().map(|gateway| Share::once_raised(gateway).lowered(gateway)).unwrap_or_default();
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
    let faults = match Problems::none_of(problems) {
        Err(problems) => {
            print(&problems.to_string())?;
            problems.len()
        }
        Ok(()) => {
            let tenants = tenants.len();
            if gateway.is_some_and(|gateway| gateway.certificate.is_none()) {
                print("no entry of `listen` speaks TLS: certificates are neither needed nor looked at")?;
            }
            let noun = if tenants == 1 { "tenant" } else { "tenants" };
            print(&format!("{}: no faults, {tenants} {noun}", file.config.display()))?;
            0
        }
    };
    let stopped = match deep.then(|| file.load()) {
        Some(Ok(config)) => walk_all(&config).await?,
        // It is another one than a moment ago.
        Some(Err(problems)) if faults == 0 => return Err(problems),
        // It is not asked for, or the configuration is too faulty to walk by.
        _ => 0,
    };
    match (faults, stopped) {
        (0, 0) => Ok(()),
        (0, _) => bail!("{stopped} would not be served"),
        (1, _) => bail!("1 fault"),
        _ => bail!("{faults} faults"),
    }
}

/// Tells of the tenants that somebody should look at. Returns how many would not be served.
async fn walk_all(config: &Config) -> Result<usize> {
    let guide = Guide::new(config).await;
    let guide = &guide;
    let walks = stream::iter(&config.tenants).map(|tenant| async move { (tenant, guide.walk_tenant(tenant).await) });
    let (mut warned, mut stopped) = (0, 0);
    let mut walked = std::pin::pin!(walks.buffered(AT_ONCE));
    while let Some((tenant, way)) = walked.next().await {
        if way.stop().is_some() {
            stopped += 1;
        } else if warns(&way) {
            warned += 1;
        } else {
            continue;
        }
        print(&format!("\n{} ({})\n{way}", tenant.slug, tenant.address))?;
    }
    let served = config.tenants.len() - stopped;
    print(&format!("walked: {served} would be served, {warned} of them with a warning; {stopped} would not"))?;
    Ok(stopped)
}

fn warns(way: &Way) -> bool {
    way.steps().iter().any(|step| matches!(step.finding, Finding::Warns { .. }))
}

/// What keeps the nodes from using Redis, and a warning about one that they can use.
async fn try_redis(examination: &Examination) -> (Option<Problem>, Option<String>) {
    let Some(redis) = examination.gateway.as_ref().and_then(|gateway| gateway.redis.as_ref()) else {
        return (None, None);
    };
    match trial::run(&redis.target).await {
        Ok(warning) => (None, warning.map(|warning| format!("warning: {warning}"))),
        Err(failed) => {
            let problem = examination.redis_problem(format!("Redis can't be used: {}", failed.cause));
            (problem.map(|problem| problem.help(failed.remedy)), None)
        }
    }
}

/// What was found of a tenant's database.
struct Tried {
    /// What keeps it from being served.
    fault: Option<Problem>,
    /// Warnings about one that is.
    concerns: Vec<String>,
    /// Where it is, if the server says so.
    place: Option<String>,
}

/// A fault for each tenant whose URL leads to the database of another one. URLs that differ in the name of the host, for
/// example, only show this once they are connected to.
fn reached_twice(tenants: &[Arc<TenantConfig>], tried: &[Tried]) -> Vec<Problem> {
    let mut seen = HashMap::new();
    let mut problems = Vec::new();
    for (tenant, place) in tenants.iter().zip(tried).filter_map(|(tenant, tried)| Some((tenant, tried.place.as_ref()?)))
    {
        match seen.entry(place) {
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

async fn try_database(tenant: &TenantConfig) -> Tried {
    let (location, slug) = (&tenant.database, &*tenant.slug);
    let tried = async {
        let store = Store::open(location, 1).await?;
        let (concerns, place) = (store.concerns().await, store.physical_id().await);
        store.close().await;
        location.require_writable()?;
        Ok((concerns?, place))
    };
    match tried.await {
        Ok((concerns, place)) => {
            let warning =
                |concern: DatabaseConcern| format!("warning: tenant `{slug}`: {concern}: {}", concern.remedy(slug));
            Tried { fault: None, concerns: concerns.into_iter().map(warning).collect(), place }
        }
        Err(error) => {
            let problem = tenant.database_problem(with_causes(&error));
            let fault = Some(problem.help(remedy(&error, location, slug)));
            Tried { fault, concerns: Vec::new(), place: None }
        }
    }
}
