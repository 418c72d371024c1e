//! Whether anything may have been committed to a SQLite database, told without opening it.
//!
//! A commit writes to the database's file or, in WAL mode, to the log beside it, and a write shows in what the file
//! system says of the file. Opening costs a hundred times as much: SQLite reads the whole schema first.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::database_file::{LOG, next_to};
use super::location::DatabaseLocation;
use crate::file_stamp::FileStamp;

/// How old a write must be for the next one to show: file systems keep times in steps, the longest (FAT) of two seconds.
/// Longer, and a database is opened more often after a write; shorter than such a step, and a write goes unnoticed.
const TIMESTAMP_STEP: Duration = Duration::from_secs(3);

/// The state of a database's files; equal for two looks between which nothing was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitStamp {
    file: FileStamp,
    log: Option<FileStamp>,
}

impl CommitStamp {
    /// As they are now. None where a commit might not show: in files that were written a moment ago or can't be looked at,
    /// and on Postgres, which has no file here.
    pub async fn of(location: &DatabaseLocation) -> Option<Self> {
        let file = location.file()?.to_owned();
        // In a thread that may wait for the disk.
        tokio::task::spawn_blocking(move || Self::read_at(&file, SystemTime::now())).await.ok()?
    }

    fn read_at(file: &Path, now: SystemTime) -> Option<Self> {
        // An empty log is what the first connection makes and the last one takes away.
        let log = FileStamp::of(&next_to(file, LOG)).filter(|log| log.size() > 0);
        let file = FileStamp::of(file)?;
        let settled = |stamp: &FileStamp| stamp.changed_before(now - TIMESTAMP_STEP);
        (settled(&file) && log.as_ref().is_none_or(settled)).then_some(Self { file, log })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Reach;
    use crate::store::engine::raw;
    use crate::store::migrate;

    /// Late enough for any write until now to show.
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
        // It opens, reads and closes.
        raw::select(&location, "SELECT name FROM tokens").await;
        assert_eq!(read_at(&file), Some(before));
        assert_eq!(read_at(&link), Some(before));

        let open = location.connect_for_maintenance();
        let mut writer = open.begin().await.unwrap();
        let mut insert = writer.sql();
        insert.push("INSERT INTO forms (id, name, anonymous, disabled) VALUES (1, 'One', 0, 0)");
        writer.execute(insert).await.unwrap();
        writer.commit().await.unwrap();
        let committed = read_at(&file).expect("a stamp");
        assert_ne!(committed, before, "it stands in the log");
        assert_eq!(read_at(&link), Some(committed));
        open.close().await;
        let closed = read_at(&file).expect("a stamp");
        assert!(closed != committed && closed != before, "it stands in the file");
    }

    #[tokio::test]
    async fn what_a_commit_might_not_show_in_has_no_stamp() {
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
