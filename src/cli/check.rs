//! `formgate check`: everything that would keep a tenant from being served, all at once.

use anyhow::{Result, bail};
use futures_util::{StreamExt, stream};

use super::{ConfigFile, print};
use crate::config::{Config, Examination, Problem, Problems, TenantConfig};
use crate::store::{Store, StoreError};

/// How many databases are tried at once.
const AT_ONCE: usize = 16;

pub(super) async fn run(file: &ConfigFile) -> Result<()> {
    // A fault elsewhere does not keep a database from being tried: an operator learns of everything at once.
    let Examination { tenants, mut problems, .. } = Config::examine(&file.config, None);
    let tried: Vec<_> = stream::iter(&tenants).map(|tenant| try_database(tenant)).buffered(AT_ONCE).collect().await;
    problems.extend(tried.into_iter().flatten());
    if let Err(problems) = Problems::none_of(problems) {
        return report(&problems);
    }
    let tenants = tenants.len();
    print(&format!("{}: no faults, {tenants} tenant{}", file.config.display(), if tenants == 1 { "" } else { "s" }));
    Ok(())
}

fn report(problems: &Problems) -> Result<()> {
    print(&problems.to_string());
    match problems.len() {
        1 => bail!("1 fault"),
        faults => bail!("{faults} faults"),
    }
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
