//! Detects whether anything may have been committed to a SQLite database, without opening it.
//!
//! A commit writes to the database file or, in WAL mode, to the log next to it, and a write changes the file's
//! metadata. Opening the database costs a hundred times as much as reading that metadata, because SQLite reads the
//! whole schema first.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::database_file::{LOG, next_to, with_suffix};
use super::location::DatabaseLocation;
use crate::file_stamp::FileStamp;
use crate::regular_file;

/// How old a write must be before the next one is sure to change the file's timestamp. The coarsest file system (FAT)
/// keeps timestamps in steps of two seconds.
///
/// Larger: a database is opened more often after a write. Smaller than such a step: a write goes unnoticed.
const TIMESTAMP_STEP: Duration = Duration::from_secs(3);

/// The state of a database's files. Two stamps are equal only if nothing was committed between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitStamp {
    file: FileStamp,
    log: Option<FileStamp>,
}

impl CommitStamp {
    /// The current stamp. None if a later commit might not change it: the files were written a moment ago or can't be
    /// read, or the database is on Postgres.
    pub async fn of(location: &DatabaseLocation) -> Option<Self> {
        let file = location.file()?.to_owned();
        // Reading metadata may wait for the disk.
        tokio::task::spawn_blocking(move || Self::read_at(&file, SystemTime::now())).await.ok()?
    }

    /// The current stamp, also if a later commit might not change it. None if the files can't be read, or the database is
    /// on Postgres. Blocks on the disk.
    pub fn latest(location: &DatabaseLocation) -> Option<Self> {
        Self::read(location.file()?)
    }

    /// When a file was last changed, in seconds and nanoseconds. For an order: a clock that was set back changes it too.
    #[must_use]
    pub fn changed(&self) -> (i64, i64) {
        self.log.iter().map(FileStamp::changed).fold(self.file.changed(), Ord::max)
    }

    fn read(file: &Path) -> Option<Self> {
        let found = regular_file::link_metadata_often(file).ok()?;
        // Thousands of files are looked at each second, and few are links.
        let (file, log) = if found.is_symlink() {
            (FileStamp::often_of(file)?, next_to(file, LOG))
        } else {
            (FileStamp::from(&found), with_suffix(file, LOG))
        };
        // The first connection creates an empty log, and the last one deletes it.
        Some(Self { file, log: FileStamp::often_of(&log).filter(|log| log.size() > 0) })
    }

    fn read_at(file: &Path, now: SystemTime) -> Option<Self> {
        let settled = |stamp: &FileStamp| stamp.changed_before(now - TIMESTAMP_STEP);
        Self::read(file).filter(|stamp| settled(&stamp.file) && stamp.log.as_ref().is_none_or(settled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Reach;
    use crate::store::engine::raw;
    use crate::store::migrate;
    use crate::store::statement::sql;

    /// Reads the stamp at a time when every write so far is old enough.
    fn read_at(file: &Path) -> Option<CommitStamp> {
        CommitStamp::read_at(file, SystemTime::now() + 2 * TIMESTAMP_STEP)
    }

    #[tokio::test]
    async fn a_commit_shows_and_reading_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("acme.db");
        let location = DatabaseLocation::parse("sqlite:acme.db", folder.path()).unwrap();
        migrate(&location, Reach::Served).await.unwrap();
        let link = folder.path().join("link.db");
        std::os::unix::fs::symlink(&file, &link).unwrap();

        let before = read_at(&file).expect("a stamp");
        // Opens the database, reads and closes it.
        raw::select(&location, "SELECT name FROM tokens").await;
        assert_eq!(read_at(&file), Some(before));
        assert_eq!(read_at(&link), Some(before));

        let open = location.connect_for_maintenance();
        let mut writer = open.begin().await.unwrap();
        let insert = sql!("INSERT INTO forms (id, name, anonymous, disabled) VALUES (1, 'One', 0, 0)");
        writer.execute(insert).await.unwrap();
        writer.commit().await.unwrap();
        let committed = read_at(&file).expect("a stamp");
        assert_ne!(committed, before, "it is in the log");
        assert_eq!(read_at(&link), Some(committed));
        open.close().await;
        let closed = read_at(&file).expect("a stamp");
        assert!(closed != committed && closed != before, "it is in the file");
    }

    #[tokio::test]
    async fn files_that_might_hide_a_commit_have_no_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("acme.db");
        assert_eq!(read_at(&file), None, "no file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(CommitStamp::read_at(&file, SystemTime::now()), None, "written a moment ago");
        assert_eq!(CommitStamp::read_at(&file, SystemTime::now() - 2 * TIMESTAMP_STEP), None, "written in the future");
        assert!(read_at(&file).is_some());
        let postgres = DatabaseLocation::parse("postgres://localhost/acme", folder.path()).unwrap();
        assert_eq!(CommitStamp::of(&postgres).await, None);
    }
}
