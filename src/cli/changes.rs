//! `formgate changes`: the change log of a tenant.

use anyhow::{Context, Result};
use clap::Subcommand;

use super::output::print;
use super::{OfTenant, TenantChoice, actor};

#[derive(Debug, Subcommand)]
pub(super) enum ChangesCommand {
    /// Begin the log again, after a backup was restored: whoever follows it loads everything again.
    Reset(TenantChoice),
}

pub(super) async fn run(command: &ChangesCommand) -> Result<()> {
    let ChangesCommand::Reset(choice) = command;
    let (tenant, store) = choice.open().await?;
    store.reset_changes(&actor()).await.of_tenant(&tenant)?;
    store.close().await;
    print(&format!("{}: the change log begins again; whoever follows it loads everything again", tenant.slug))
        .context("the change log begins again")
}
