//! `formgate serve`: runs the gateway until a signal stops it.
//!
//! Owns the order of startup and the signals. Everything that runs in between belongs to [`gateway`].

use std::future::pending;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigFile, on_runtime};
use crate::config::{Config, Mode};
use crate::edge::Drained;
use crate::gateway::{self, Running};
use crate::systemd::{self, InheritedSockets};
use crate::telemetry::DefaultLog;

/// The options of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Try a restored backup with a copy of the configuration: respond to requests, and act on nothing else.
    ///
    /// Turns off, whatever the file says: webhooks, tests of receivers, domains and certificate orders, writes to the registry
    /// (the node is in no list), Redis, sign-in through OpenID, traces, and the deletion of old rows. Requests write to the
    /// databases that the file names; the log says which.
    #[arg(long)]
    drill: bool,
}

pub(super) fn run(command: &ServeArgs) -> Result<()> {
    let ServeArgs { file, drill } = command;
    let (mode, log) = if *drill { (Mode::Drill, DefaultLog::Drill) } else { (Mode::Production, DefaultLog::Serving) };
    // First, because it changes the environment, which everything later may read.
    let inherited = InheritedSockets::take()?;
    // Read before there is a runtime, because it sets the number of worker threads.
    let config = file.load()?.in_mode(mode);
    on_runtime(Some(config.gateway.threads), log, serve(file, inherited, config))
}

async fn serve(file: &ConfigFile, inherited: InheritedSockets, config: Config) -> Result<()> {
    gateway::raise_limit();
    let stop = StopSignals::new()?;
    config.log_warnings();
    let running = gateway::start(&config, inherited).await?;
    let reloader = running.reloader();
    let tenants = reloader.tenants();
    let hangups = signal(SignalKind::hangup())
        .inspect_err(|error| tracing::error!(%error, "SIGHUP cannot be received; only changes of files cause a reload"))
        .ok();
    let _watching = gateway::watch(&file.config, config, reloader, hangups);
    let _watchdog = systemd::notify_watchdog();
    announce(&running, tenants);
    serve_until_stopped(running, stop).await
}

fn announce(running: &Running, tenants: usize) {
    for address in running.addresses() {
        tracing::info!(%address, tenants, "listening");
    }
    if let Some(address) = running.admin_address() {
        tracing::info!(%address, "admin listening");
    }
    systemd::notify_ready(tenants, "");
}

/// The signals that stop the process: SIGTERM and SIGINT, and SIGHUP if it lives as long as its terminal.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Installs the handlers; from now on, the signals no longer kill the process.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("can't wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("can't wait for SIGINT")?,
            hangup: None,
        })
    }

    /// The same for a process that ends with its terminal, which sends SIGHUP when it is closed: unless `nohup` started it.
    pub(super) fn of_terminal() -> Result<Self> {
        let hangup = (!ignores_hangups()).then(|| signal(SignalKind::hangup())).transpose();
        Ok(Self { hangup: hangup.context("can't wait for SIGHUP")?, ..Self::new()? })
    }

    async fn next(&mut self) {
        let Self { terminate, interrupt, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = hangup => {}
        }
    }
}

/// Whether whoever started the process had SIGHUP ignored (proc_pid_status(5)).
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    // The lowest bit is signal 1.
    ignored.is_some_and(|signals| signals & 1 == 1)
}

/// Waits for a signal, then stops gracefully; a second signal stops immediately.
pub(super) async fn serve_until_stopped(running: Running, mut signals: StopSignals) -> Result<()> {
    signals.next().await;
    tracing::info!("stopping");
    systemd::notify_stopping();
    let hurry = async {
        signals.next().await;
        tracing::warn!("stopping at once: received a second signal");
    };
    match running.stop(hurry).await {
        Drained::Finished => tracing::info!("stopped"),
        Drained::Cut(connections) => tracing::warn!(connections, "stopped; connections were cut at the deadline"),
    }
    Ok(())
}
