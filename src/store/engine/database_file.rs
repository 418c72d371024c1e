//! The files of a SQLite database: whether one was replaced, and whether two databases are one file.
//!
//! A backup is often restored by moving it to the path of the running database. Open connections would go on using the
//! old, now unlinked file, so each request checks that the path still leads to the open file. The check takes a
//! microsecond.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::file_stamp::FileStamp;
use crate::regular_file;

/// The file that was at a path when the database was opened.
#[derive(Clone, Debug)]
pub(in crate::store) struct DatabaseFile {
    path: PathBuf,
    stamp: Option<FileStamp>,
}

impl DatabaseFile {
    /// The file at a path.
    pub(in crate::store) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), stamp: FileStamp::often_of(path) }
    }

    /// Whether the path still leads to it.
    pub(in crate::store) fn is_in_place(&self) -> bool {
        match (&self.stamp, FileStamp::often_of(&self.path)) {
            (Some(opened), Some(found)) => opened.is_of_same_file(&found),
            _ => false,
        }
    }

    /// The log and the shared memory at the path, if this process has them open and they so belong to the old file.
    /// SQLite does not delete them when its file is gone, and would apply the log to the new file.
    pub(in crate::store) fn logs_left_behind(&self) -> Vec<PathBuf> {
        [LOG, SHARED_MEMORY].map(|end| next_to(&self.path, end)).into_iter().filter(|log| is_open_here(log)).collect()
    }
}

/// The suffix of the write-ahead log.
pub(crate) const LOG: &str = "-wal";

/// The suffix of the shared memory file, an index of the log.
pub(crate) const SHARED_MEMORY: &str = "-shm";

/// The suffix of the rollback journal, until the database is in WAL mode.
pub(crate) const JOURNAL: &str = "-journal";

/// The suffixes of the files that SQLite keeps next to a database.
pub(crate) const BESIDE: [&str; 3] = [LOG, SHARED_MEMORY, JOURNAL];

/// A file under whichever of its names. Paths that lead to one file are not always equal when they are resolved: it may have
/// hard links, be on a file system that ignores case, or be mounted twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that is at a path now, and whether it has several hard links. `None` if there is none.
    pub(crate) fn at(path: &Path) -> Option<(Self, bool)> {
        let data = regular_file::metadata(path).ok()?;
        Some((Self { device: data.dev(), inode: data.ino() }, data.nlink() > 1))
    }

    /// The files that SQLite keeps next to a database.
    pub(crate) fn beside(database: &Path) -> impl Iterator<Item = Self> {
        BESIDE.into_iter().filter_map(move |end| Some(Self::at(&next_to(database, end))?.0))
    }
}

/// The file that SQLite creates next to a database, or next to the target of a symbolic link, with this suffix.
pub(crate) fn next_to(database: &Path, end: &str) -> PathBuf {
    // Looking for links in the whole path takes a call of the system for each folder, and leads to the same folder.
    let is_link = regular_file::link_metadata_often(database).is_ok_and(|data| data.is_symlink());
    let target = if is_link { regular_file::ask(database, Path::canonicalize).ok() } else { None };
    with_suffix(target.as_deref().unwrap_or(database), end)
}

/// The same of a file that is no symbolic link.
pub(super) fn with_suffix(database: &Path, end: &str) -> PathBuf {
    let mut path = database.to_owned().into_os_string();
    path.push(end);
    path.into()
}

/// Whether this process has a file open.
fn is_open_here(path: &Path) -> bool {
    let Some(wanted) = FileStamp::of(path) else { return false };
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|descriptor| FileStamp::of(&descriptor.path())).any(|stamp| stamp.is_of_same_file(&wanted))
}
