//! A file's metadata, to detect changes without reading the file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use crate::regular_file;

/// The state of a file; equal for two times between which it was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileStamp {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    /// A copy may preserve the modification time of its original, but not this one.
    changed: (i64, i64),
}

impl From<&Metadata> for FileStamp {
    fn from(data: &Metadata) -> Self {
        Self {
            file: (data.dev(), data.ino()),
            size: data.size(),
            written: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

impl FileStamp {
    /// The current state; `None` if the metadata can't be read, or not in time.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        regular_file::metadata(path).ok().map(|data| Self::from(&data))
    }

    /// The same for a file that is looked at again and again.
    pub(crate) fn often_of(path: &Path) -> Option<Self> {
        regular_file::metadata_often(path).ok().map(|data| Self::from(&data))
    }

    /// Whether both are of one file, under any name.
    pub(crate) fn is_of_same_file(&self, other: &Self) -> bool {
        self.file == other.file
    }

    /// The file's length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// When the file was last changed, in seconds and nanoseconds. For an order: a clock that was set back changes it too.
    pub(crate) fn changed(&self) -> (i64, i64) {
        self.changed
    }

    /// Whether the file's last change is older than an instant.
    pub(crate) fn changed_before(&self, instant: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let instant = instant.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (i128::from(seconds), i128::from(nanoseconds))
            < (i128::from(instant.as_secs()), i128::from(instant.subsec_nanos()))
    }
}
