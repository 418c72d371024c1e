//! `formgate serve`.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::ConfigFile;
use crate::edge::Drained;
use crate::gateway::{self, Running};

pub(super) async fn run(file: &ConfigFile) -> Result<()> {
    let config = file.load()?;
    let running = gateway::start(&config).await?;
    announce(&running, config.tenants.len());
    let _watching = gateway::watch(&file.config, config, running.reloader());
    until_told_to_stop(running).await
}

fn announce(running: &Running, tenants: usize) {
    for address in running.addresses() {
        tracing::info!(%address, tenants, "listening");
    }
    if let Some(address) = running.admin_address() {
        tracing::info!(%address, "admin listening");
    }
}

/// Waits for SIGTERM or SIGINT, then stops in good order.
pub(super) async fn until_told_to_stop(running: Running) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("can't wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't wait for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    match running.stop().await {
        Drained::Finished => tracing::info!("stopped"),
        Drained::Cut(connections) => tracing::warn!(connections, "stopped; connections were cut at the deadline"),
    }
    Ok(())
}
