//! `formgate seal`: changes the key that seals the keys of certificates.

use anyhow::{Result, bail};
use clap::Subcommand;

use super::ConfigFile;
use super::output::print;
use super::registry::OpenRegistry;
use crate::domains::{Resealed, reseal};

#[derive(Debug, Subcommand)]
pub(super) enum SealCommand {
    /// Seal every key with the first of `seal_keys` of `[gateway.acme]`, so that the others can be taken out.
    Rotate(ConfigFile),
}

pub(super) async fn run(command: &SealCommand) -> Result<()> {
    let SealCommand::Rotate(file) = command;
    let registry = OpenRegistry::open(file).await?;
    let Some(acme) = &registry.gateway().acme else {
        bail!("no certificates are obtained: there is no `[gateway.acme]`");
    };
    let resealed = reseal(&registry.registry, &acme.seals).await?;
    registry.registry.close().await;
    let Resealed { certificates, orders, account, busy, unopened } = &resealed;
    let account = u64::from(*account);
    print(&format!(
        "sealed with the first key: {}, {}, {}",
        counted(*certificates, "certificate"),
        counted(*orders, "order"),
        counted(account, "account key"),
    ))?;
    if !unopened.is_empty() {
        bail!("no key of `seal_keys` opens what is stored for: {}", unopened.join(", "));
    }
    if !busy.is_empty() {
        bail!("a node works on these; run this command again in a minute: {}", busy.join(", "));
    }
    Ok(())
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
