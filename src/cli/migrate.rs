//! `formgate migrate`: migrates all tenants, including the registry's, or one.
//!
//! Each tenant is migrated on its own, so a failure leaves the others migrated. The migrations are the store's.

use anyhow::{Context, Result, bail};
use clap::Args;

use super::output::{print, print_stderr};
use super::{ConfigFile, OfTenant, report};
use crate::config::TenantConfig;
use crate::store::{self, DatabaseConcern, Reach, Store};

/// How many parts of a schema that can't be restored are named; most have the same cause.
///
/// Larger: more lines of the same. Smaller: more repetitions of the command to see all causes.
const FAILURES: usize = 3;

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Migrate only this tenant; without it, all of them.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
    /// Remove what only nodes of an older version need, which makes writes cheaper. Run it once no such node remains.
    #[arg(long)]
    finish: bool,
}

pub(super) async fn run(command: &MigrateArgs) -> Result<()> {
    let tenants = match &command.tenant {
        Some(slug) => vec![command.file.find_tenant(slug).await?],
        None => command.file.load_all().await?.tenants,
    };
    let reach = if command.finish { Reach::Newest } else { Reach::Served };
    let (mut failed, mut printed) = (0, Ok(()));
    for tenant in &tenants {
        // A migration settles too, and a part that is missing may refuse that. Before the first migration, this fails.
        let before_it = repair_schema(tenant).await.ok();
        // A failure does not keep the other tenants from being migrated.
        let versions = match store::migrate(&tenant.database, reach).await.of_tenant(tenant) {
            Ok(versions) => versions,
            Err(error) => {
                failed += 1;
                print_stderr(&report(&error));
                continue;
            }
        };
        let (repaired, versions) = match (before_it, versions) {
            (Some(left), (before, after)) if before == after => (Ok(left), format!("at version {after}")),
            (_, (before, after)) if before == after => (repair_schema(tenant).await, format!("at version {after}")),
            (_, (before, after)) => (repair_schema(tenant).await, format!("from version {before} to {after}")),
        };
        printed = printed.and(print(&format!("{}: {versions}", tenant.slug)));
        warn(tenant, |_| true).await;
        if let Err(error) = repaired.and_then(|left| left.require_none(tenant)) {
            failed += 1;
            print_stderr(&report(&error));
        }
    }
    if failed > 0 {
        bail!("{failed} of {} tenants could not be migrated", tenants.len());
    }
    printed.context("the tenants are migrated")
}

/// How many parts of a schema a command could not restore.
#[must_use]
pub(super) struct PartsLeft(usize);

impl PartsLeft {
    /// Fails if there are any.
    pub(super) fn require_none(&self, tenant: &TenantConfig) -> Result<()> {
        let slug = &tenant.slug;
        match self.0 {
            0 => Ok(()),
            1 => bail!("tenant `{slug}`: 1 part of the schema could not be restored"),
            left => bail!("tenant `{slug}`: {left} parts of the schema could not be restored"),
        }
    }
}

/// Restores the schema of a tenant's database where it was altered, and prints on standard error what was done, and what is
/// left.
pub(super) async fn repair_schema(tenant: &TenantConfig) -> Result<PartsLeft> {
    let slug = &tenant.slug;
    let repair = store::repair_schema(&tenant.database).await.of_tenant(tenant)?;
    if repair.restored > 0 {
        print_stderr(&format!("warning: tenant `{slug}`: restored {} altered parts of the schema", repair.restored));
    }
    for left in repair.left.iter().take(FAILURES) {
        print_stderr(&format!("warning: tenant `{slug}`: can't restore the schema: {left}"));
    }
    Ok(PartsLeft(repair.left.len()))
}

/// Prints some of the warnings about a tenant.
pub(super) async fn warn(tenant: &TenantConfig, is_printed: fn(&DatabaseConcern) -> bool) {
    let Ok(store) = Store::open(&tenant.database, 1).await else { return };
    for concern in store.concerns().await.unwrap_or_default().iter().filter(|concern| is_printed(concern)) {
        print_stderr(&format!("warning: tenant `{}`: {concern}: {}", tenant.slug, concern.remedy(&tenant.slug)));
    }
    store.close().await;
}
