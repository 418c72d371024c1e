//! Reads a SQLite file when no file can be created next to it: on a read-only file system, in another user's folder,
//! or on a full disk.
//!
//! In WAL mode even readers create a log and shared memory next to the file. If they can't, and no log with changes
//! exists, the file is opened with SQLite's `immutable` flag. Such a connection takes no locks, so another program
//! could write to the file at the same time. The connection is therefore closed after one checkout, and each of its
//! statements fails if the file has changed since it was opened.

use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::database_file::{LOG, next_to};
use super::failure::is_damaged;
use crate::file_stamp::FileStamp;
use crate::metrics::DatabaseFailure;

/// The suffix of the rollback journal, for a file that is not in WAL mode.
const JOURNAL: &str = "-journal";

/// A file, and its stamp when it was opened.
#[derive(Debug)]
pub(super) struct ImmutableFile {
    path: PathBuf,
    stamp: FileStamp,
}

impl ImmutableFile {
    /// The file at a path, unless a log or journal has changes that are not in it yet.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let has_changes = |end| FileStamp::often_of(&next_to(path, end)).is_some_and(|log| log.size() > 0);
        let stamp = FileStamp::often_of(path)?;
        (!has_changes(LOG) && !has_changes(JOURNAL)).then(|| Self { path: path.to_owned(), stamp })
    }

    /// Whether the file is unchanged since it was opened.
    pub(super) fn is_unchanged(&self) -> bool {
        Self::of(&self.path).is_some_and(|now| now.stamp == self.stamp)
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<SqliteConnection, sqlx::Error> {
        let options = SqliteConnectOptions::new().filename(&self.path).read_only(true).immutable(true);
        SqliteConnection::connect_with(&options.disable_statement_logging()).await
    }
}

/// Whether a file could not be opened because no file can be created next to it.
pub(super) fn is_caused_by_writing(error: &sqlx::Error) -> bool {
    if is_damaged(error) {
        return false;
    }
    // SQLite returns CANTOPEN if it may not create a file, and IOERR if there is no space for the shared memory.
    matches!(
        DatabaseFailure::of(error),
        Some(
            DatabaseFailure::ReadOnly
                | DatabaseFailure::OutOfSpace
                | DatabaseFailure::Unreachable
                | DatabaseFailure::Other
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DatabaseLocation;
    use crate::store::Reach;
    use crate::store::migrate;

    #[tokio::test]
    async fn a_file_is_immutable_only_as_long_as_no_log_has_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acme.db");
        assert!(ImmutableFile::of(&path).is_none(), "there is no file");
        migrate(&DatabaseLocation::parse("sqlite:acme.db", folder.path()).unwrap(), Reach::Served).await.unwrap();
        let file = ImmutableFile::of(&path).expect("no connection is open");
        assert!(file.is_unchanged());
        let mut connection = file.open().await.unwrap();
        let forms = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM forms");
        assert_eq!(forms.fetch_one(&mut connection).await.unwrap(), 0);

        let mut writer = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path)).await.unwrap();
        sqlx::query("INSERT INTO forms (id, name) VALUES (1, 'Leave')").execute(&mut writer).await.unwrap();
        assert!(!file.is_unchanged(), "a log has changes");
        assert!(ImmutableFile::of(&path).is_none(), "the log would not be read");
        writer.close().await.unwrap();
        assert!(!file.is_unchanged(), "the changes are in the file");
        assert!(ImmutableFile::of(&path).is_some_and(|file| file.is_unchanged()));
    }
}
