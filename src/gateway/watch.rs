//! The background task that reloads the configuration: on SIGHUP, if it has one, when a watched file changes, and when a
//! periodic comparison finds a change that no watch reported.
//!
//! Owns when a reload is due; [`Reloader`] performs it.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio_util::task::AbortOnDropHandle;

use super::changes::{ChangeKind, FileChanges, FolderWatcher};
use super::reload::{RefusedConfig, Reloader, ServedState};
use crate::background::{self, Run, Task};
use crate::config::{Config, Sources};
use crate::systemd;

/// Reloads when a file changes, and on each signal of `hangups`, until the handle is dropped.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping it ends the watch"]
pub fn watch(path: &Path, served: Config, reloader: Reloader, hangups: Option<Signal>) -> AbortOnDropHandle<()> {
    let served = Arc::new(ServedState::of(served));
    // Created before this returns, so that a change made as soon as the gateway reports ready is noticed.
    let changes = FolderWatcher::of(path, &served.databases, served.folders.clone(), served.read_at);
    let metrics = reloader.pipeline.metrics.tasks.clone();
    let sources = served.sources.clone();
    let task =
        Reload { path: path.to_owned(), served, reloader, changes, hangups, refused: None, sources, trigger: None };
    background::start(task, &metrics)
}

/// How often the files are compared with what was read. Changes are noticed immediately if folders can be watched; on
/// some network file systems they can't be.
///
/// Larger: a change there applies later. Smaller: all files are checked more often for nothing.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// Why a configuration is read again.
enum Trigger {
    Signal,
    Files(FileChanges),
}

/// The background task that reloads the configuration.
struct Reload {
    path: PathBuf,
    served: Arc<ServedState>,
    reloader: Reloader,
    changes: FolderWatcher,
    hangups: Option<Signal>,
    /// The last configuration, if it was refused.
    refused: Option<Arc<RefusedConfig>>,
    /// The files as they were last read, refused or not.
    sources: Sources,
    trigger: Option<Trigger>,
}

impl Task for Reload {
    const NAME: &'static str = "reload";

    fn interval(&self) -> Duration {
        COMPARE_INTERVAL
    }

    async fn woken(&mut self) {
        let Self { hangups, changes, trigger, .. } = self;
        let hangup = async {
            match hangups {
                Some(hangups) => drop(hangups.recv().await),
                None => pending().await,
            }
        };
        *trigger = Some(tokio::select! {
            () = hangup => Trigger::Signal,
            changed = changes.next() => Trigger::Files(changed),
        });
    }

    async fn run(&mut self) -> Run {
        let is_due = match self.trigger.take() {
            Some(Trigger::Signal) => true,
            Some(Trigger::Files(changed)) => self.is_reload_due(changed).await,
            None => !self.changes.are_pending() && !are_unchanged(&self.sources).await,
        };
        if is_due {
            self.reload().await;
        }
        Run::Succeeded
    }
}

impl Reload {
    /// Whether a change requires a reload. If only certificates may have changed, they are compared with their files
    /// instead.
    async fn is_reload_due(&mut self, changed: FileChanges) -> bool {
        if changed.most != ChangeKind::Certificates && !are_unchanged(&self.sources).await {
            return true;
        }
        match changed.written {
            // A log file may be in the same folder as the configuration, and a reload writes to the log.
            Some(files) if !self.reloader.is_any_read(&files, &self.sources, self.refused.as_ref()).await => false,
            _ if self.refused.is_none() => {
                self.reloader.compare_certificates();
                false
            }
            // A missing certificate file may be the only fault of a refused configuration.
            _ => true,
        }
    }

    async fn reload(&mut self) {
        systemd::notify_reloading();
        let mut read_at = SystemTime::now();
        let outcome = self.reloader.reload(&self.path, Arc::clone(&self.served)).await;
        self.reloader.compare_certificates();
        let (folders, note);
        match outcome {
            Ok(state) => {
                read_at = state.read_at;
                (folders, note) = (state.folders.clone(), "");
                self.sources = state.sources.clone();
                self.served = Arc::new(state);
                self.refused = None;
            }
            Err(refused) => {
                let mut both = refused.folders.clone();
                both.configuration.extend(self.served.folders.configuration.iter().cloned());
                both.certificates.extend(self.served.folders.certificates.iter().cloned());
                (folders, note) = (both, "; a changed configuration was refused");
                self.sources = refused.sources.clone();
                self.refused = Some(Arc::from(refused));
            }
        }
        if folders != self.changes.folders || self.served.databases != self.changes.databases {
            self.changes = FolderWatcher::of(&self.path, &self.served.databases, folders, read_at);
        }
        systemd::notify_ready(self.reloader.tenants(), note);
    }
}

async fn are_unchanged(sources: &Sources) -> bool {
    let sources = sources.clone();
    tokio::task::spawn_blocking(move || sources.are_unchanged()).await.unwrap_or(false)
}
