//! Which file a SQLite database was opened from.
//!
//! A backup is often restored by moving it to the path of the running database. Open connections would keep using the old
//! file, which no longer has a name. So each request checks that the path still leads to the open file, which takes a
//! microsecond.

use std::fs;
use std::path::{Path, PathBuf};

use super::location::DatabaseLocation;
use crate::file_stamp::FileStamp;

/// A file as it was found at its path.
#[derive(Clone, Debug)]
pub(in crate::store) struct DatabaseFile {
    path: PathBuf,
    stamp: Option<FileStamp>,
}

impl DatabaseFile {
    /// The file at a location, if it is one.
    pub(in crate::store) fn at(location: &DatabaseLocation) -> Option<Self> {
        location.file().map(|path| Self { path: path.to_owned(), stamp: FileStamp::of(path) })
    }

    /// Whether the path still leads to it.
    pub(in crate::store) fn is_in_place(&self) -> bool {
        match (&self.stamp, FileStamp::of(&self.path)) {
            (Some(opened), Some(found)) => opened.is_of_same_file(&found),
            _ => false,
        }
    }

    /// The log and its index at the path, if this process has them open: then they belong to the old file. SQLite leaves them
    /// there when it finds that its file is gone, and would apply the log to the new file.
    pub(in crate::store) fn logs_left_behind(&self) -> Vec<PathBuf> {
        [LOG, SHARED_MEMORY].map(|end| next_to(&self.path, end)).into_iter().filter(|log| is_open_here(log)).collect()
    }
}

/// The end of the name of a file's log.
pub(crate) const LOG: &str = "-wal";

/// The end of the name of the memory that the users of a file share, which is an index of the log.
pub(crate) const SHARED_MEMORY: &str = "-shm";

/// The file with this end of its name that SQLite creates next to a database, or next to the one that a link leads to.
pub(crate) fn next_to(database: &Path, end: &str) -> PathBuf {
    let mut path = database.canonicalize().unwrap_or_else(|_| database.to_owned()).into_os_string();
    path.push(end);
    path.into()
}

/// Whether this process has a file open.
fn is_open_here(path: &Path) -> bool {
    let Some(wanted) = FileStamp::of(path) else { return false };
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|descriptor| FileStamp::of(&descriptor.path())).any(|stamp| stamp.is_of_same_file(&wanted))
}
