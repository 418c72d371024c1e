//! What changes on the disk in the folders that a configuration is read from.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::config::WatchedFolders;

/// How long files must be quiet before they are read: an editor, or a renewal of certificates, writes several.
const QUIET: Duration = Duration::from_millis(200);

/// Files that never get quiet are read after this all the same.
const LONGEST_UNQUIET: Duration = Duration::from_secs(2);

/// How many files that were written to are told by name. More at a time are seldom logs, and are taken for any other change.
const MOST_WRITTEN: usize = 16;

/// How far the time of a change may be behind our clock: the kernel stamps files once a tick, of 10 ms at most. Larger: a
/// change from before the reading is looked at once more. Smaller: a change right after the reading may be lost.
const TICK: Duration = Duration::from_millis(10);

/// What a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Files of certificates, maybe.
    Certificates,
    /// The configuration, maybe, and files of certificates.
    Configuration,
}

/// All that changed since it was last looked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// The most that it is of.
    pub(super) most: Change,
    /// The files that were written to; none where anything else was done, to these or to others.
    pub(super) written: Option<BTreeSet<PathBuf>>,
}

impl Changed {
    fn and(self, other: Self) -> Self {
        let written = match (self.written, other.written) {
            (Some(files), Some(more)) => Some(&files | &more).filter(|files| files.len() <= MOST_WRITTEN),
            _ => None,
        };
        Self { most: self.most.max(other.most), written }
    }
}

/// What was noticed.
#[derive(Debug, Default)]
struct Noticed {
    changed: Option<Changed>,
    /// Files of which it does not matter that they are written to.
    passed_over: BTreeSet<PathBuf>,
}

impl Noticed {
    /// Notes a change, and tells whether it is the first since it was last looked.
    fn note(&mut self, changed: Changed) -> bool {
        match &changed.written {
            Some(files) if files.is_subset(&self.passed_over) => return false,
            Some(_) => {}
            // A file may have got another meaning, or another file its name.
            None => self.passed_over.clear(),
        }
        let is_first = self.changed.is_none();
        self.changed = Some(match self.changed.take() {
            Some(before) => before.and(changed),
            None => changed,
        });
        is_first
    }
}

/// Changes of files in the folders of a configuration. Folders are watched and not files: a file is replaced by a rename
/// more often than it is written to, and a watch on it would stay with the old one.
pub(super) struct Changes {
    pub(super) folders: WatchedFolders,
    pub(super) databases: Arc<HashSet<u64>>,
    /// Ends its watch when it is dropped.
    _watcher: Option<RecommendedWatcher>,
    /// Only the first change wakes who waits for one: a log beside the configuration changes with every request.
    noticed: Arc<watch::Sender<Noticed>>,
    /// What came since the last quiet moment.
    gathered: Option<Changed>,
}

impl Changes {
    pub(super) fn of(path: &Path, databases: &HashSet<u64>, folders: WatchedFolders, read_at: SystemTime) -> Self {
        let noticed = Arc::<watch::Sender<Noticed>>::default();
        let databases = Arc::new(databases.clone());
        let watcher = notify::recommended_watcher({
            let (noticed, databases, folders) = (Arc::clone(&noticed), Arc::clone(&databases), folders.clone());
            move |event: notify::Result<Event>| {
                if let Some(changed) = event.ok().and_then(|event| what_changed(event, &folders, &databases)) {
                    noticed.send_if_modified(|noticed| noticed.note(changed));
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
            let changed = Changed { most: Change::Configuration, written: None };
            noticed.send_if_modified(|noticed| noticed.note(changed));
        }
        Self { folders, databases, _watcher: watcher, noticed, gathered: None }
    }

    /// Waits for a change, and then until no other has come for a while; all that changed. Dropped meanwhile, it keeps what
    /// has come for the next call.
    pub(super) async fn next(&mut self) -> Changed {
        if self.gathered.is_some() {
            sleep(QUIET).await;
        } else {
            // The sender is ours: waiting does not end before a change has come.
            let _ = self.noticed.subscribe().wait_for(|noticed| noticed.changed.is_some()).await;
        }
        let latest = Instant::now() + LONGEST_UNQUIET;
        loop {
            let more = self.take();
            let is_quiet = more.is_none() || Instant::now() >= latest;
            self.gathered = match (self.gathered.take(), more) {
                (Some(all), Some(more)) => Some(all.and(more)),
                (all, more) => all.or(more),
            };
            if is_quiet && let Some(all) = self.gathered.take() {
                return all;
            }
            sleep(QUIET).await;
        }
    }

    /// Whether changes have come and more may follow.
    pub(super) fn are_coming(&self) -> bool {
        self.gathered.is_some() || self.noticed.borrow().changed.is_some()
    }

    fn take(&self) -> Option<Changed> {
        let mut taken = None;
        self.noticed.send_if_modified(|noticed| {
            taken = noticed.changed.take();
            false
        });
        taken
    }

    /// Says nothing any more when these files are written to, as logs are, until something else happens in the folders.
    pub(super) fn pass_over(&self, files: BTreeSet<PathBuf>) {
        self.noticed.send_if_modified(|noticed| {
            // It may have happened already.
            if noticed.changed.as_ref().is_none_or(|changed| changed.written.is_some()) {
                noticed.passed_over.extend(files);
            }
            false
        });
    }

    /// Tells of all files again: those that are read may be others from now on.
    pub(super) fn pass_over_none(&self) {
        self.noticed.send_if_modified(|noticed| {
            noticed.passed_over.clear();
            false
        });
    }
}

fn watch_folders(watcher: &mut RecommendedWatcher, folders: &WatchedFolders) {
    for folder in &folders.configuration {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            tracing::warn!(folder = %folder.display(), %error, "folder cannot be watched; changes in it are noticed within a minute, or on SIGHUP");
        }
    }
    let mut first = None;
    for folder in folders.certificates.difference(&folders.configuration) {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            first.get_or_insert((folder, error));
        }
    }
    if let Some((folder, error)) = first {
        let meaning =
            "folder of certificates cannot be watched; a renewed certificate is noticed when a client asks for it";
        tracing::warn!(folder = %folder.display(), %error, "{meaning}");
    }
}

/// Whether a change may have come between the reading of a configuration and the watch over it. That something else
/// changed in one of the folders costs a reload that changes nothing.
fn changed_since(read_at: SystemTime, path: &Path, folders: &WatchedFolders) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).is_ok_and(|at| at + TICK >= read_at);
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
fn what_changed(event: Event, folders: &WatchedFolders, databases: &HashSet<u64>) -> Option<Changed> {
    // Events were lost: it is not known which.
    if event.need_rescan() {
        return Some(Changed { most: Change::Configuration, written: None });
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
        Some(if within(&folders.configuration) { Change::Configuration } else { Change::Certificates })
    };
    let most = event.paths.iter().filter_map(changed).max()?;
    let is_written = matches!(event.kind, EventKind::Modify(ModifyKind::Data(_)));
    Some(Changed { most, written: is_written.then(|| event.paths.into_iter().collect()) })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use tempfile::TempDir;

    use super::*;

    /// Longer than it takes to tell of a change.
    const LONG: Duration = Duration::from_secs(1);

    fn watched(folder: &TempDir) -> Changes {
        let folders = WatchedFolders { configuration: [folder.path().to_owned()].into(), ..WatchedFolders::default() };
        let read_at = SystemTime::now() + Duration::from_secs(60);
        Changes::of(&folder.path().join("tenants.toml"), &HashSet::new(), folders, read_at)
    }

    fn write(file: &Path) {
        let file = OpenOptions::new().append(true).open(file);
        writeln!(file.expect("it is there"), "a line").expect("it can be written");
    }

    fn written(files: &[&Path]) -> Changed {
        let files = files.iter().map(|file| file.to_path_buf()).collect();
        Changed { most: Change::Configuration, written: Some(files) }
    }

    #[tokio::test]
    async fn a_file_that_was_passed_over_is_told_again_once_something_else_has_happened() {
        let folder = tempfile::tempdir().unwrap();
        let [log, other] = ["a.log", "other"].map(|name| folder.path().join(name));
        for file in [&log, &other] {
            fs::write(file, "").unwrap();
        }
        let mut changes = watched(&folder);
        write(&log);
        let told = changes.next().await;
        assert_eq!(told, written(&[&log]));
        changes.pass_over(told.written.unwrap());

        write(&log);
        assert!(tokio::time::timeout(LONG, changes.next()).await.is_err());
        write(&log);
        write(&other);
        assert_eq!(changes.next().await, written(&[&other]));

        fs::rename(&other, folder.path().join("tenants.toml")).unwrap();
        write(&log);
        assert_eq!(changes.next().await, Changed { most: Change::Configuration, written: None });
        write(&log);
        assert_eq!(changes.next().await, written(&[&log]));
        changes.pass_over([log.clone()].into());
        changes.pass_over_none();
        write(&log);
        assert_eq!(changes.next().await, written(&[&log]));
    }

    #[test]
    fn what_was_done_meanwhile_keeps_files_from_being_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let changes = watched(&folder);
        let note = |changed| changes.noticed.send_if_modified(|noticed| noticed.note(changed));
        let file = Path::new("a.log");
        assert!(note(Changed { most: Change::Certificates, written: None }));
        changes.pass_over([file.to_owned()].into());
        assert_eq!(changes.take(), Some(Changed { most: Change::Certificates, written: None }));
        assert!(note(written(&[file])));
        assert!(!note(written(&[file])));
        changes.pass_over([file.to_owned()].into());
        assert_eq!(changes.take(), Some(written(&[file])));
        assert!(!note(written(&[file])));
        assert_eq!(changes.take(), None);
    }
}
