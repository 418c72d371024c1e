//! Watches the folders that a configuration is read from, and reports what changed in them.
//!
//! Owns when changes are complete (files are quiet for a moment) and which files are ignored: databases.
//!
//! By inotify rather than by a library for several systems: those ask the kernel for each time that a file is opened or written,
//! and a SQLite database in such a folder is written all the time. Handling and dropping these events took 7 % of the CPU of a
//! node whose databases were written a lot.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::Metadata;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep};

use crate::config::WatchedFolders;
use crate::regular_file;

/// What is reported of the files of a folder: that one was written and closed, came, went, or has other rights. Not each write.
const REPORTED: WatchMask = WatchMask::CLOSE_WRITE
    .union(WatchMask::CREATE)
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// How many bytes of events are read at once. An event has at most 272: the kernel's 16, and the name of a file.
///
/// Larger: more memory for good. Smaller: more system calls.
const EVENT_BYTES: usize = 4096;

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
/// Larger: more memory per change. Smaller: files that are none of the configuration cause more reloads of a refused one.
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

/// The events of the kernel.
#[derive(Debug)]
struct Events {
    stream: EventStream<Vec<u8>>,
    folders: HashMap<WatchDescriptor, PathBuf>,
}

/// Reports changes of files in the folders of a configuration. Watches folders rather than files: a file is more often
/// replaced by a rename than written to, and a watch on it would stay with the old file.
pub(super) struct FolderWatcher {
    pub(super) folders: WatchedFolders,
    pub(super) databases: HashSet<u64>,
    /// `None` if files can't be watched.
    events: Option<Events>,
    /// Changes since the last quiet moment.
    collected: Option<FileChanges>,
}

impl FolderWatcher {
    pub(super) fn of(path: &Path, databases: &HashSet<u64>, folders: WatchedFolders, read_at: SystemTime) -> Self {
        let events = Events::of(&folders)
            .inspect_err(|error| tracing::warn!(%error, "files cannot be watched; changes are noticed within a minute, or on SIGHUP"))
            .ok();
        let may_have_changed = changed_since(read_at, path, &folders);
        let collected = may_have_changed.then_some(FileChanges { most: ChangeKind::Configuration, written: None });
        Self { folders, databases: databases.clone(), events, collected }
    }

    /// Waits for a change, then until no more follow for a while, and returns all of them. Cancel-safe: the next call
    /// returns what this one collected.
    pub(super) async fn next(&mut self) -> FileChanges {
        while self.collected.is_none() {
            let event = self.next_event().await;
            self.collect(event);
        }
        let latest = Instant::now() + MAX_WAIT;
        loop {
            sleep(QUIET_TIME).await;
            let is_quiet = !self.collect_present();
            if (is_quiet || Instant::now() >= latest)
                && let Some(all) = self.collected.take()
            {
                return all;
            }
        }
    }

    /// Whether changes have come and more may follow.
    pub(super) fn are_pending(&mut self) -> bool {
        self.collect_present();
        self.collected.is_some()
    }

    async fn next_event(&mut self) -> io::Result<EventOwned> {
        match &mut self.events {
            Some(events) => events.stream.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into())),
            None => pending().await,
        }
    }

    /// Collects the events that are there. Returns whether one of them is a change.
    fn collect_present(&mut self) -> bool {
        let mut is_changed = false;
        while let Some(event) = self.next_event().now_or_never() {
            is_changed |= self.collect(event);
        }
        is_changed
    }

    fn collect(&mut self, event: io::Result<EventOwned>) -> bool {
        let changed = match event {
            Ok(event) => self.what_changed(event),
            Err(error) => {
                tracing::warn!(%error, "files are no longer watched; changes are noticed within a minute, or on SIGHUP");
                self.events = None;
                None
            }
        };
        let Some(changed) = changed else { return false };
        self.collected = Some(match self.collected.take() {
            Some(before) => before.and(changed),
            None => changed,
        });
        true
    }

    /// What an event may have changed.
    fn what_changed(&self, event: EventOwned) -> Option<FileChanges> {
        // Events were lost, and it is unknown which.
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Some(FileChanges { most: ChangeKind::Configuration, written: None });
        }
        // The watch has ended, which another event says too.
        if event.mask.contains(EventMask::IGNORED) {
            return None;
        }
        let folder = self.events.as_ref()?.folders.get(&event.wd)?;
        let path = event.name.map_or_else(|| folder.clone(), |name| folder.join(name));
        let text = path.to_string_lossy();
        let text = ["-wal", "-shm", "-journal"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(&text);
        if self.databases.contains(&fingerprint(Path::new(text))) {
            return None;
        }
        let is_of_configuration = self.folders.configuration.contains(folder);
        let most = if is_of_configuration { ChangeKind::Configuration } else { ChangeKind::Certificates };
        let written = event.mask.contains(EventMask::CLOSE_WRITE).then(|| [path].into());
        Some(FileChanges { most, written })
    }
}

impl Events {
    fn of(folders: &WatchedFolders) -> io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; EVENT_BYTES])?;
        let mut events = Self { stream, folders: HashMap::new() };
        for folder in &folders.configuration {
            if let Err(error) = events.watch(folder) {
                tracing::warn!(folder = %folder.display(), %error, "folder cannot be watched; changes in it are noticed within a minute, or on SIGHUP");
            }
        }
        let mut first = None;
        for folder in folders.certificates.difference(&folders.configuration) {
            if let Err(error) = events.watch(folder) {
                first.get_or_insert((folder, error));
            }
        }
        if let Some((folder, error)) = first {
            let meaning =
                "folder of certificates cannot be watched; a renewed certificate is noticed when a client asks for it";
            tracing::warn!(folder = %folder.display(), %error, "{meaning}");
        }
        Ok(events)
    }

    /// Watches a folder. One on a file system that does not answer is not watched: that would wait for it.
    fn watch(&mut self, folder: &Path) -> io::Result<()> {
        regular_file::metadata_of_folder(folder)?;
        let watched = self.stream.watches().add(folder, REPORTED)?;
        // A folder with two paths stays the first one, which may be that of the configuration.
        self.folders.entry(watched).or_insert_with(|| folder.to_owned());
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    /// Longer than it takes to report a change.
    const LONG: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_file_is_reported_once_it_is_closed_and_a_database_never() {
        let folder = tempfile::tempdir().unwrap();
        let [log, database, wal, other, named] =
            ["a.log", "acme.db", "acme.db-wal", "other", "tenants.toml"].map(|name| folder.path().join(name));
        fs::write(&log, "").unwrap();
        let folders = WatchedFolders { configuration: [folder.path().to_owned()].into(), ..WatchedFolders::default() };
        let read_at = SystemTime::now() + Duration::from_secs(60);
        let mut changes = FolderWatcher::of(&named, &[fingerprint(&database)].into(), folders, read_at);
        let mut open = OpenOptions::new().append(true).open(&log).unwrap();
        writeln!(open, "a line").unwrap();
        fs::write(&wal, "pages").unwrap();
        assert!(tokio::time::timeout(LONG, changes.next()).await.is_err());
        assert!(!changes.are_pending());
        drop(open);
        let of_log = FileChanges { most: ChangeKind::Configuration, written: Some([log].into()) };
        assert_eq!(changes.next().await, of_log);

        // That it came is more than that it was written.
        fs::write(&other, "").unwrap();
        let anything = FileChanges { most: ChangeKind::Configuration, written: None };
        assert_eq!(changes.next().await, anything);
        fs::rename(&other, &named).unwrap();
        assert_eq!(changes.next().await, anything);
        fs::remove_file(&named).unwrap();
        assert_eq!(changes.next().await, anything);
        fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(changes.next().await, anything);
    }
}
