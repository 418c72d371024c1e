//! `formgate seal`: changes the key that seals the keys of certificates.

use anyhow::{Result, bail};
use clap::Subcommand;

use super::ConfigFile;
use super::output::{print, print_stderr};
use super::registry::OpenRegistry;
use crate::domains::{MissingKey, Resealed, UnopenedKey, UnreadyNodes, reseal, unready_nodes};
use crate::store::Registry;

#[derive(Debug, Subcommand)]
pub(super) enum SealCommand {
    /// Seal every key with the first of `seal_keys` of `[gateway.acme]`, so that the others can be taken out.
    Rotate(ConfigFile),
}

pub(super) async fn run(command: &SealCommand) -> Result<()> {
    let SealCommand::Rotate(file) = command;
    let registry = OpenRegistry::open_existing(file).await?;
    let Some(acme) = &registry.gateway().acme else {
        bail!("no certificates are obtained: there is no `[gateway.acme]`");
    };
    let UnreadyNodes { lacking, sealing_with_another, silent } = unready_nodes(&registry.registry, &acme.seals).await?;
    require_first_key(&lacking, "nothing was sealed")?;
    if !silent.is_empty() {
        print_stderr(&format!(
            "warning: these nodes are of an earlier version, and do not report which keys they have: {}",
            silent.join(", ")
        ));
    }
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
        bail!("{}", in_words(unopened));
    }
    if !busy.is_empty() {
        bail!("a node works on these; run this command again in a minute: {}", busy.join(", "));
    }
    if !sealing_with_another.is_empty() {
        bail!(
            "these nodes still seal with another key: {}; make the first key the first one of `seal_keys` on every node, \
             restart them, and run this command again before you remove the other key",
            sealing_with_another.join(", ")
        );
    }
    Ok(())
}

/// Fails if running nodes could not open what the first key seals. `outcome`: what the command has done then.
pub(super) fn require_first_key(lacking: &[String], outcome: &str) -> Result<()> {
    if lacking.is_empty() {
        return Ok(());
    }
    bail!(
        "{outcome}, since these nodes lack the first key and could not open what it seals: {}; add it to `seal_keys` on every \
         node, restart them, and run this command again (a node that was killed counts as running for {} seconds)",
        lacking.join(", "),
        Registry::LIVE.as_secs()
    );
}

/// What could not be opened, and what to do about it.
fn in_words(unopened: &[UnopenedKey]) -> String {
    let name = |key: &UnopenedKey| key.host.clone().unwrap_or_else(|| "the account key".to_owned());
    let names = |is_missing: bool| {
        let of = unopened.iter().filter(|key| key.missing.is_some() == is_missing).map(name);
        of.collect::<Vec<_>>().join(", ")
    };
    let mut ids: Vec<_> = unopened.iter().filter_map(|key| key.missing.as_deref()).collect();
    ids.sort_unstable();
    ids.dedup();
    let (missing, damaged) = (names(true), names(false));
    let mut parts = Vec::new();
    if !ids.is_empty() {
        parts.push(format!(
            "`seal_keys` lacks the key `{}`, which sealed these: {missing}; {}",
            ids.join("`, `"),
            MissingKey::NEXT_STEP
        ));
    }
    if !damaged.is_empty() {
        parts.push(format!("what is stored for these is damaged: {damaged}; restore a backup of the registry"));
    }
    parts.join("\n")
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
