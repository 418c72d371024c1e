//! What changes on the disk in the folders that a configuration is read from.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::config::WatchedFolders;

/// How long files must be quiet before they are read: an editor, or a renewal of certificates, writes several.
const QUIET: Duration = Duration::from_millis(200);

/// Files that never get quiet are read after this all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Files of certificates, maybe.
    Certificates,
    /// The configuration, maybe, and files of certificates.
    Configuration,
}

/// Changes of files in the folders of a configuration. Folders are watched and not files: a file is replaced by a rename
/// more often than it is written to, and a watch on it would stay with the old one.
pub(super) struct Changes {
    pub(super) folders: WatchedFolders,
    pub(super) databases: Arc<HashSet<u64>>,
    /// Ends its watch when it is dropped.
    _watcher: Option<RecommendedWatcher>,
    /// The most that changed since it was last looked. Only the first change wakes who waits for one: a log beside the
    /// configuration changes with every request.
    most: watch::Sender<Option<Change>>,
}

impl Changes {
    pub(super) fn of(path: &Path, databases: &HashSet<u64>, folders: WatchedFolders, read_at: SystemTime) -> Self {
        let most = watch::Sender::new(None);
        let databases = Arc::new(databases.clone());
        let watcher = notify::recommended_watcher({
            let (most, databases, folders) = (most.clone(), Arc::clone(&databases), folders.clone());
            move |event: notify::Result<notify::Event>| {
                if let Some(change) = event.ok().and_then(|event| what_changed(&event, &folders, &databases)) {
                    note(&most, change);
                }
            }
        });
        let mut watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "files can't be watched: send SIGHUP after a change"))
            .ok();
        if let Some(watcher) = &mut watcher {
            watch_folders(watcher, &folders);
        }
        if changed_since(read_at, path, &folders) {
            note(&most, Change::Configuration);
        }
        Self { folders, databases, _watcher: watcher, most }
    }

    /// Waits for a change, and then until no other has come for a while; the most that changed.
    pub(super) async fn come(&self) -> Change {
        // The sender is ours: waiting does not end before a change has come.
        let _ = self.most.subscribe().wait_for(Option::is_some).await;
        let patience_ends = Instant::now() + PATIENCE;
        let mut most = None;
        loop {
            let more = self.most.send_replace(None);
            most = most.max(more);
            if let Some(most) = most
                && (more.is_none() || Instant::now() >= patience_ends)
            {
                return most;
            }
            sleep(QUIET).await;
        }
    }
}

fn note(most: &watch::Sender<Option<Change>>, change: Change) {
    most.send_if_modified(|most| std::mem::replace(most, (*most).max(Some(change))) < *most);
}

fn watch_folders(watcher: &mut RecommendedWatcher, folders: &WatchedFolders) {
    for folder in &folders.configuration {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            tracing::warn!(folder = %folder.display(), %error, "send SIGHUP after a change in this folder");
        }
    }
    let mut first = None;
    for folder in folders.certificates.difference(&folders.configuration) {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            first.get_or_insert((folder, error));
        }
    }
    if let Some((folder, error)) = first {
        let meaning = "renewed certificates there, and maybe elsewhere, are noticed when they are asked for";
        tracing::warn!(folder = %folder.display(), %error, "{meaning}");
    }
}

/// Whether a change may have come between the reading of a configuration and the watch over it. That something else
/// changed in one of the folders costs a reload that changes nothing.
fn changed_since(read_at: SystemTime, path: &Path, folders: &WatchedFolders) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).is_ok_and(|at| at >= read_at);
    changed(path) || folders.configuration.union(&folders.certificates).any(|folder| changed(folder))
}

pub(super) fn is_watched(file: &Path, folders: &WatchedFolders) -> bool {
    let within = |folder| folders.configuration.contains(folder) || folders.certificates.contains(folder);
    file.parent().is_some_and(within)
}

/// A number for a path, the same throughout this process: there may be one a tenant.
pub(super) fn fingerprint(path: &Path) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(path)
}

/// What an event may have changed. Reading a file is an event, too, and reading is what a reload does.
fn what_changed(event: &notify::Event, folders: &WatchedFolders, databases: &HashSet<u64>) -> Option<Change> {
    if matches!(event.kind, EventKind::Access(_)) {
        return None;
    }
    let changed = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let text = ["-wal", "-shm", "-journal"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(&text);
        if databases.contains(&fingerprint(Path::new(text))) {
            return None;
        }
        let within = |folders: &std::collections::BTreeSet<PathBuf>| {
            folders.contains(path) || path.parent().is_some_and(|folder| folders.contains(folder))
        };
        Some(if within(&folders.configuration) { Change::Configuration } else { Change::Certificates })
    };
    event.paths.iter().filter_map(changed).max()
}
