//! `formgate check`: everything that would keep a tenant from being served, all at once.

mod exposed;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::{StreamExt, stream};

use super::ConfigFile;
use super::output::print;
use crate::config::{Config, Examination, Problem, Problems, TenantConfig};
use crate::explain::{Finding, Guide, Way};
use crate::gateway::Share;
use crate::store::{Pooler, Store, StoreError};

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
    let Examination { gateway, tenants, sources, mut problems, .. } = Config::examine(&file.config, None);
    let tried: Vec<_> = stream::iter(&tenants).map(|tenant| try_database(tenant)).buffered(AT_ONCE).collect().await;
    problems.extend(tried.into_iter().flatten());
    for tenant in &tenants {
        if let Some(pooler) = tenant.database.noticed_pooler() {
            let slug = &tenant.slug;
            print(&format!("warning: the database of the tenant `{slug}` is behind {pooler}: {}", Pooler::REMEDY))?;
        }
    }
    let lowered = gateway.as_ref().map(|gateway| Share::once_raised(gateway).lowered(gateway)).unwrap_or_default();
    for warning in lowered {
        print(&format!("warning: {warning}, as far as this shell may raise it"))?;
    }
    for warning in exposed::warnings(gateway.as_ref(), &tenants, &sources) {
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

async fn try_database(tenant: &TenantConfig) -> Option<Problem> {
    match Store::open(&tenant.database, 1).await {
        Ok(store) => {
            store.close().await;
            None
        }
        Err(error @ StoreError::SchemaOlder { .. }) => {
            let mend = format!("{error}: run `formgate migrate --tenant {}`", tenant.slug);
            Some(tenant.database_problem(mend))
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            Some(tenant.database_problem(format!("{error}{cause}")))
        }
    }
}
