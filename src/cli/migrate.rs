//! `formgate migrate`.

use anyhow::{Result, bail};
use clap::Args;

use super::{ConfigFile, find_tenant, print};
use crate::store;

#[derive(Debug, Args)]
pub(super) struct Migrate {
    #[command(flatten)]
    file: ConfigFile,
    /// Only this tenant; all where it is left out.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
}

pub(super) async fn run(command: &Migrate) -> Result<()> {
    let config = command.file.load()?;
    let tenants = match &command.tenant {
        Some(slug) => vec![find_tenant(config, slug)?],
        None => config.tenants,
    };
    let mut failed = 0;
    for tenant in &tenants {
        // One tenant's trouble is its own: the others are migrated all the same.
        match store::migrate(&tenant.database).await {
            Ok((before, after)) if before == after => print(&format!("{}: at version {after}", tenant.slug)),
            Ok((before, after)) => print(&format!("{}: from version {before} to {after}", tenant.slug)),
            Err(error) => {
                failed += 1;
                eprintln!("error: tenant `{}`: {:#}", tenant.slug, anyhow::Error::new(error));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} tenants could not be migrated", tenants.len());
    }
    Ok(())
}
