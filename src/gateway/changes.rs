//! Watches the folders that a configuration is read from, and reports what changed in them.
//!
//! Owns when changes are complete (files are quiet for a moment) and which files are ignored: databases, and files
//! that are written to but not read, such as logs.

use std::collections::{BTreeSet, HashSet};
use std::fs::Metadata;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::config::WatchedFolders;
use crate::regular_file;

/// How long files must be quiet before they are read: an editor, or a renewal of certificates, writes several.
///
/// Larger: a change applies later. Smaller: half-written files are read.
const QUIET_TIME: Duration = Duration::from_millis(200);

/// How long files may stay busy before they are read all the same.
///
/// Larger: a change next to a busy file applies later. Smaller: half-written files are read.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// How many written files are reported by name. More at once are seldom logs, and are reported as any other change.
///
/// Larger: more memory per change. Smaller: a folder with many logs causes more comparisons.
const MAX_WRITTEN: usize = 16;

/// How far the time of a change may lie behind the system clock: the kernel updates file times once per tick, of at
/// most 10 ms.
///
/// Larger: a change from before the reading is examined again. Smaller: a change right after the reading may be
/// missed.
const TICK: Duration = Duration::from_millis(10);

/// What a change affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChangeKind {
    /// Possibly certificate files.
    Certificates,
    /// Possibly the configuration, and certificate files.
    Configuration,
}

/// All changes since the last call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileChanges {
    /// The most that any of them affects.
    pub(super) most: ChangeKind,
    /// The files that were written to; `None` if anything else happened, to these or to other files.
    pub(super) written: Option<BTreeSet<PathBuf>>,
}

impl FileChanges {
    fn and(self, other: Self) -> Self {
        let written = match (self.written, other.written) {
            (Some(files), Some(more)) => Some(&files | &more).filter(|files| files.len() <= MAX_WRITTEN),
            _ => None,
        };
        Self { most: self.most.max(other.most), written }
    }
}

/// Changes noticed by the watcher.
#[derive(Debug, Default)]
struct PendingChanges {
    changed: Option<FileChanges>,
    /// Files whose writes are ignored.
    ignored: BTreeSet<PathBuf>,
}

impl PendingChanges {
    /// Records a change and returns whether it is the first since the last call.
    fn note(&mut self, changed: FileChanges) -> bool {
        match &changed.written {
            Some(files) if files.is_subset(&self.ignored) => return false,
            Some(_) => {}
            // A file may have a new meaning, or a new file its name.
            None => self.ignored.clear(),
        }
        let is_first = self.changed.is_none();
        self.changed = Some(match self.changed.take() {
            Some(before) => before.and(changed),
            None => changed,
        });
        is_first
    }
}

/// Reports changes of files in the folders of a configuration. Watches folders rather than files: a file is more often
/// replaced by a rename than written to, and a watch on it would stay with the old file.
pub(super) struct FolderWatcher {
    pub(super) folders: WatchedFolders,
    pub(super) databases: Arc<HashSet<u64>>,
    /// Stops watching when dropped.
    _watcher: Option<RecommendedWatcher>,
    /// Only the first change wakes the waiting task: a log in the same folder changes with every request.
    pending: Arc<watch::Sender<PendingChanges>>,
    /// Changes since the last quiet moment.
    collected: Option<FileChanges>,
}

impl FolderWatcher {
    pub(super) fn of(path: &Path, databases: &HashSet<u64>, folders: WatchedFolders, read_at: SystemTime) -> Self {
        let pending = Arc::<watch::Sender<PendingChanges>>::default();
        let databases = Arc::new(databases.clone());
        let watcher = notify::recommended_watcher({
            let (pending, databases, folders) = (Arc::clone(&pending), Arc::clone(&databases), folders.clone());
            move |event: notify::Result<Event>| {
                if let Some(changed) = event.ok().and_then(|event| what_changed(event, &folders, &databases)) {
                    pending.send_if_modified(|pending| pending.note(changed));
                }
            }
        });
        let mut watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "files cannot be watched; changes are noticed within a minute, or on SIGHUP"))
            .ok();
        if let Some(watcher) = &mut watcher {
            watch_folders(watcher, &folders);
        }
        if changed_since(read_at, path, &folders) {
            let changed = FileChanges { most: ChangeKind::Configuration, written: None };
            pending.send_if_modified(|pending| pending.note(changed));
        }
        Self { folders, databases, _watcher: watcher, pending, collected: None }
    }

    /// Waits for a change, then until no more follow for a while, and returns all of them. Cancel-safe: the next call
    /// returns what this one collected.
    pub(super) async fn next(&mut self) -> FileChanges {
        if self.collected.is_some() {
            sleep(QUIET_TIME).await;
        } else {
            // We hold the sender, so this returns only after a change.
            let _ = self.pending.subscribe().wait_for(|pending| pending.changed.is_some()).await;
        }
        let latest = Instant::now() + MAX_WAIT;
        loop {
            let more = self.take();
            let is_quiet = more.is_none() || Instant::now() >= latest;
            self.collected = match (self.collected.take(), more) {
                (Some(all), Some(more)) => Some(all.and(more)),
                (all, more) => all.or(more),
            };
            if is_quiet && let Some(all) = self.collected.take() {
                return all;
            }
            sleep(QUIET_TIME).await;
        }
    }

    /// Whether changes have come and more may follow.
    pub(super) fn are_pending(&self) -> bool {
        self.collected.is_some() || self.pending.borrow().changed.is_some()
    }

    fn take(&self) -> Option<FileChanges> {
        let mut taken = None;
        self.pending.send_if_modified(|pending| {
            taken = pending.changed.take();
            false
        });
        taken
    }

    /// Ignores writes to these files, as to logs, until something else happens in the folders.
    pub(super) fn ignore(&self, files: BTreeSet<PathBuf>) {
        self.pending.send_if_modified(|pending| {
            // Something else may have happened already.
            if pending.changed.as_ref().is_none_or(|changed| changed.written.is_some()) {
                pending.ignored.extend(files);
            }
            false
        });
    }

    /// Reports writes to all files again: from now on, other files may be read.
    pub(super) fn ignore_none(&self) {
        self.pending.send_if_modified(|pending| {
            pending.ignored.clear();
            false
        });
    }
}

fn watch_folders(watcher: &mut RecommendedWatcher, folders: &WatchedFolders) {
    for folder in &folders.configuration {
        if let Err(error) = watch_folder(watcher, folder) {
            tracing::warn!(folder = %folder.display(), %error, "folder cannot be watched; changes in it are noticed within a minute, or on SIGHUP");
        }
    }
    let mut first = None;
    for folder in folders.certificates.difference(&folders.configuration) {
        if let Err(error) = watch_folder(watcher, folder) {
            first.get_or_insert((folder, error));
        }
    }
    if let Some((folder, error)) = first {
        let meaning =
            "folder of certificates cannot be watched; a renewed certificate is noticed when a client asks for it";
        tracing::warn!(folder = %folder.display(), %error, "{meaning}");
    }
}

/// Watches a folder. One on a file system that does not answer is not watched: that would wait for it.
fn watch_folder(watcher: &mut RecommendedWatcher, folder: &Path) -> notify::Result<()> {
    regular_file::metadata_of_folder(folder).map_err(notify::Error::io)?;
    watcher.watch(folder, RecursiveMode::NonRecursive)
}

/// Whether a change may have happened between reading the configuration and watching its folders. An unrelated change
/// in one of the folders costs a reload that changes nothing.
fn changed_since(read_at: SystemTime, path: &Path, folders: &WatchedFolders) -> bool {
    let is_later =
        |found: io::Result<Metadata>| found.and_then(|data| data.modified()).is_ok_and(|at| at + TICK >= read_at);
    let mut folders = folders.configuration.union(&folders.certificates);
    is_later(regular_file::metadata(path)) || folders.any(|folder| is_later(regular_file::metadata_of_folder(folder)))
}

pub(super) fn is_watched(file: &Path, folders: &WatchedFolders) -> bool {
    let within = |folder| folders.configuration.contains(folder) || folders.certificates.contains(folder);
    file.parent().is_some_and(within)
}

/// A hash of a path, stable throughout this process. Stored instead of the path, since there may be one per tenant.
pub(super) fn fingerprint(path: &Path) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(path)
}

/// What an event may have changed. Reads are events too, and are ignored: a reload reads.
fn what_changed(event: Event, folders: &WatchedFolders, databases: &HashSet<u64>) -> Option<FileChanges> {
    // Events were lost, and it is unknown which.
    if event.need_rescan() {
        return Some(FileChanges { most: ChangeKind::Configuration, written: None });
    }
    if matches!(event.kind, EventKind::Access(_)) {
        return None;
    }
    let changed = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let text = ["-wal", "-shm", "-journal"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(&text);
        if databases.contains(&fingerprint(Path::new(text))) {
            return None;
        }
        let within = |folders: &BTreeSet<PathBuf>| {
            folders.contains(path) || path.parent().is_some_and(|folder| folders.contains(folder))
        };
        Some(if within(&folders.configuration) { ChangeKind::Configuration } else { ChangeKind::Certificates })
    };
    let most = event.paths.iter().filter_map(changed).max()?;
    let is_written = matches!(event.kind, EventKind::Modify(ModifyKind::Data(_)));
    Some(FileChanges { most, written: is_written.then(|| event.paths.into_iter().collect()) })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use tempfile::TempDir;

    use super::*;

    /// Longer than it takes to report a change.
    const LONG: Duration = Duration::from_secs(1);

    fn watched(folder: &TempDir) -> FolderWatcher {
        let folders = WatchedFolders { configuration: [folder.path().to_owned()].into(), ..WatchedFolders::default() };
        let read_at = SystemTime::now() + Duration::from_secs(60);
        FolderWatcher::of(&folder.path().join("tenants.toml"), &HashSet::new(), folders, read_at)
    }

    fn write(file: &Path) {
        let file = OpenOptions::new().append(true).open(file);
        writeln!(file.expect("it is there"), "a line").expect("it can be written");
    }

    fn written(files: &[&Path]) -> FileChanges {
        let files = files.iter().map(|file| file.to_path_buf()).collect();
        FileChanges { most: ChangeKind::Configuration, written: Some(files) }
    }

    #[tokio::test]
    async fn an_ignored_file_is_reported_again_once_something_else_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [log, other] = ["a.log", "other"].map(|name| folder.path().join(name));
        for file in [&log, &other] {
            fs::write(file, "").unwrap();
        }
        let mut changes = watched(&folder);
        write(&log);
        let reported = changes.next().await;
        assert_eq!(reported, written(&[&log]));
        changes.ignore(reported.written.unwrap());

        write(&log);
        assert!(tokio::time::timeout(LONG, changes.next()).await.is_err());
        write(&log);
        write(&other);
        assert_eq!(changes.next().await, written(&[&other]));

        fs::rename(&other, folder.path().join("tenants.toml")).unwrap();
        write(&log);
        assert_eq!(changes.next().await, FileChanges { most: ChangeKind::Configuration, written: None });
        write(&log);
        assert_eq!(changes.next().await, written(&[&log]));
        changes.ignore([log.clone()].into());
        changes.ignore_none();
        write(&log);
        assert_eq!(changes.next().await, written(&[&log]));
    }

    #[test]
    fn other_changes_meanwhile_keep_files_from_being_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let changes = watched(&folder);
        let note = |changed| changes.pending.send_if_modified(|pending| pending.note(changed));
        let file = Path::new("a.log");
        assert!(note(FileChanges { most: ChangeKind::Certificates, written: None }));
        changes.ignore([file.to_owned()].into());
        assert_eq!(changes.take(), Some(FileChanges { most: ChangeKind::Certificates, written: None }));
        assert!(note(written(&[file])));
        assert!(!note(written(&[file])));
        changes.ignore([file.to_owned()].into());
        assert_eq!(changes.take(), Some(written(&[file])));
        assert!(!note(written(&[file])));
        assert_eq!(changes.take(), None);
    }
}
