//! `formgate changes`: the change log of a tenant.

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use super::output::print;
use super::{OfTenant, TenantChoice, actor};
use crate::store::WaitingEvents;

#[derive(Debug, Subcommand)]
pub(super) enum ChangesCommand {
    /// Begin the log again, after a backup was restored: whoever follows it loads everything again.
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub(super) struct ResetArgs {
    #[command(flatten)]
    choice: TenantChoice,
    /// Send no webhooks about what was written until now: what waits is dropped, and each subscription begins with the next
    /// event.
    #[arg(long)]
    skip_webhooks: bool,
}

pub(super) async fn run(command: &ChangesCommand) -> Result<()> {
    let ChangesCommand::Reset(ResetArgs { choice, skip_webhooks }) = command;
    let (tenant, store) = choice.open().await?;
    let waiting = if *skip_webhooks { WaitingEvents::Dropped } else { WaitingEvents::Kept };
    store.reset_changes(waiting, &actor()).await.of_tenant(&tenant)?;
    store.close().await;
    print(&format!("{}: the change log begins again; whoever follows it loads everything again", tenant.slug))
        .context("the change log begins again")
}
