//! A changed configuration, taken into service without a restart and without a dropped request.
//!
//! Read and checked whole, by the same code as `formgate check`; one that is faulty changes nothing. Tenants that go on
//! keep their databases, windows and what is remembered of their tokens; requests in flight end as they began. What a
//! process can't change about itself (addresses, Redis, the window's span) is named in the log and waits for a restart.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use crate::config::Config;
use crate::edge::Certificates;
use crate::gate::Gate;
use crate::supervisor;
use crate::tenant::Directory;

/// How long files must be quiet before they are read: an editor, or a renewal of certificates, writes several.
const QUIET: Duration = Duration::from_millis(200);

/// Files that never get quiet are read after this all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// Puts configurations in place of the one that is served.
#[derive(Clone, Debug)]
pub struct Reloader {
    gate: Arc<Gate>,
    certificates: Arc<Certificates>,
}

impl Reloader {
    pub(super) fn new(gate: Arc<Gate>, certificates: Arc<Certificates>) -> Self {
        Self { gate, certificates }
    }

    /// Reads the configuration anew and serves it, or says in the log why not. Returns it when it is served.
    async fn reload(&self, path: &Path, served: &Config) -> Option<Config> {
        let outcome = {
            let (path, certificates) = (path.to_owned(), Arc::clone(&self.certificates));
            let reading = tokio::task::spawn_blocking(move || {
                let config = Config::load(&path).map_err(|problems| problems.to_string())?;
                let prepared = certificates.prepare(&config).map_err(|error| error.to_string())?;
                Ok::<_, String>((config, prepared))
            });
            reading.await.unwrap_or_else(|panic| Err(panic.to_string()))
        };
        let metrics = &self.gate.metrics;
        let (config, prepared) = match outcome {
            Ok(read) => read,
            Err(faults) => {
                metrics.reloads.with_label_values(&["refused"]).inc();
                tracing::error!(faults, "the changed configuration is refused; the one before it goes on");
                return None;
            }
        };
        // What goes is written first: its notes of used tokens would go with it.
        let before = self.gate.directory.load_full();
        self.gate.last_used.write(before.tenants()).await;
        // Certificates before tenants: a new tenant is served from its first handshake on.
        self.certificates.replace(prepared);
        self.gate.directory.store(Arc::new(Directory::new(&config, &before)));
        metrics.tenants.retain(|slug| self.gate.directory.load().find(slug).is_some());
        metrics.tenants_served.set(i64::try_from(config.tenants.len()).unwrap_or(i64::MAX));
        metrics.reloads.with_label_values(&["done"]).inc();
        metrics.last_reload.set(Timestamp::now().as_second());
        tracing::info!(tenants = config.tenants.len(), "the configuration is reloaded");
        for key in needs_restart(served, &config) {
            tracing::warn!(key, "a change of this key waits for a restart");
        }
        Some(config)
    }
}

/// The changed keys that the running process can't follow.
fn needs_restart(before: &Config, after: &Config) -> Vec<&'static str> {
    let (before, after) = (&before.gateway, &after.gateway);
    let changes = [
        ("listen", before.listen != after.listen),
        ("admin_listen", before.admin_listen != after.admin_listen),
        ("redis", before.redis != after.redis),
        ("databases", before.databases != after.databases),
        ("window_seconds", before.quota_window != after.quota_window),
        ("shutdown_delay_seconds", before.shutdown_delay != after.shutdown_delay),
        ("drain_seconds", before.drain != after.drain),
        ("tenant_metrics", before.tenant_labels != after.tenant_labels),
    ];
    changes.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
}

/// Reloads on SIGHUP and when a file changes, until it is dropped.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping it ends the watch"]
pub fn watch(path: &Path, served: Config, reloader: Reloader) -> AbortOnDropHandle<()> {
    // Before this returns, so that whoever was told that the gateway serves can change a file and see it noticed.
    let changes = Changes::of(path, &served);
    let hangups = signal(SignalKind::hangup());
    AbortOnDropHandle::new(tokio::spawn(watch_for_ever(path.to_owned(), served, reloader, changes, hangups)))
}

async fn watch_for_ever(
    path: PathBuf,
    mut served: Config,
    reloader: Reloader,
    mut changes: Changes,
    hangups: io::Result<Signal>,
) {
    let mut hangups = match hangups {
        Ok(hangups) => hangups,
        Err(error) => return tracing::error!(%error, "SIGHUP can't be waited for, so nothing is reloaded"),
    };
    loop {
        tokio::select! {
            _ = hangups.recv() => {}
            () = changes.come() => {}
        }
        supervisor::reloading();
        let reloaded = reloader.reload(&path, &served).await;
        let note = if reloaded.is_none() { "; a changed configuration was refused" } else { "" };
        if let Some(config) = reloaded {
            if config.folders != served.folders {
                changes = Changes::of(&path, &config);
            }
            served = config;
        }
        supervisor::ready(served.tenants.len(), note);
    }
}

/// Changes of files in the folders of a configuration. Folders are watched and not files: a file is replaced by a rename
/// more often than it is written to, and a watch on it would stay with the old one.
struct Changes {
    /// Ends its watch when it is dropped.
    _watcher: Option<RecommendedWatcher>,
    /// Kept, so that waiting goes on where nothing can be watched.
    _sender: UnboundedSender<()>,
    receiver: UnboundedReceiver<()>,
}

impl Changes {
    fn of(path: &Path, config: &Config) -> Self {
        let (sender, receiver) = unbounded_channel();
        let watcher = notify::recommended_watcher({
            let sender = sender.clone();
            let databases = databases(config);
            move |event: notify::Result<notify::Event>| {
                if event.is_ok_and(|event| matters(&event, &databases)) {
                    // Nobody listens any more only when the watch is about to end.
                    let _ = sender.send(());
                }
            }
        });
        let mut watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "files can't be watched: send SIGHUP after a change"))
            .ok();
        if let Some(watcher) = &mut watcher {
            for folder in &config.folders {
                if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                    tracing::warn!(folder = %folder.display(), %error, "send SIGHUP after a change in this folder");
                }
            }
        }
        if changed_since_read(path, config) {
            let _ = sender.send(());
        }
        Self { _watcher: watcher, _sender: sender, receiver }
    }

    /// Waits for a change, and then until no other has come for a while.
    async fn come(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        let quiet = async { while let Ok(Some(())) = tokio::time::timeout(QUIET, self.receiver.recv()).await {} };
        // The patience is the point, not the outcome.
        let _ = tokio::time::timeout(PATIENCE, quiet).await;
    }
}

/// Whether a change may have come between the reading of a configuration and the watch over it. That something else
/// changed in one of the folders costs a reload that changes nothing.
fn changed_since_read(path: &Path, config: &Config) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).is_ok_and(|at| at >= config.read_at);
    changed(path) || config.folders.iter().any(|folder| changed(folder))
}

/// The SQLite files that may lie beside the configuration, and are written all the time.
fn databases(config: &Config) -> HashSet<PathBuf> {
    let files = config.tenants.iter().filter_map(|tenant| tenant.database.file());
    files.map(Path::to_owned).collect()
}

/// Whether an event can be a change of the configuration. Reading a file is an event, too, and reading is what a reload
/// does.
fn matters(event: &notify::Event, databases: &HashSet<PathBuf>) -> bool {
    let is_database = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let text = ["-wal", "-shm", "-journal"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(&text);
        databases.contains(Path::new(text))
    };
    !matches!(event.kind, EventKind::Access(_)) && !event.paths.iter().all(is_database)
}
