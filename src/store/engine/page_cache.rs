//! How many pages of a SQLite file a connection keeps in memory.
//!
//! SQLite keeps up to 2,000 KiB for each connection. A call on a small account reads a few dozen pages, and the next call
//! reads others, so that with thousands of open files a third of their memory was pages that the operating system has
//! as well. Reading one from there takes a microsecond or two. In a large file, a search reads the
//! inner pages of its indexes thousands of times, and there they have to stay.

use sqlx::sqlite::SqliteConnectOptions;

use crate::file_stamp::FileStamp;

/// How many bytes of a file one byte of pages is kept for.
///
/// Larger: searches of medium accounts read more pages again. Smaller: more of an open file's memory is pages.
const FILE_SHARE: u64 = 8;

/// The KiB of pages of a small file.
///
/// Larger: thousands of open files take more memory. Smaller: a call reads pages again that it has just read.
const LEAST_KIB: u64 = 128;

/// The KiB of pages of a large file: SQLite's default.
///
/// Larger: an account that is searched takes more memory. Smaller: its searches read pages again.
const MOST_KIB: u64 = 2_000;

/// The options with a page cache for the current size of the file. Asks the file system, which does not read the disk for a
/// file that is about to be opened anyway.
pub(super) fn with_page_cache(options: &SqliteConnectOptions) -> SqliteConnectOptions {
    let bytes = FileStamp::often_of(options.get_filename()).map_or(0, |file| file.size());
    // A negative number is one of KiB.
    options.clone().pragma("cache_size", format!("-{}", kib_for(bytes)))
}

fn kib_for(file_bytes: u64) -> u64 {
    (file_bytes / 1024 / FILE_SHARE).clamp(LEAST_KIB, MOST_KIB)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, SqliteConnection};

    use super::*;

    #[test]
    fn a_cache_grows_with_the_file_between_two_bounds() {
        assert_eq!(kib_for(0), LEAST_KIB);
        assert_eq!(kib_for(4 * 1024 * 1024), 512);
        assert_eq!(kib_for(1024 * 1024 * 1024), MOST_KIB);
    }

    #[tokio::test]
    async fn a_connection_has_the_cache_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("acme.db")).create_if_missing(true);
        let kib = async || {
            let mut connection = SqliteConnection::connect_with(&with_page_cache(&options)).await.unwrap();
            let kib: i64 = sqlx::query_scalar("PRAGMA cache_size").fetch_one(&mut connection).await.unwrap();
            let grow = "CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (zeroblob(4194304))";
            sqlx::raw_sql(grow).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            kib
        };
        assert_eq!(kib().await, -128);
        assert_eq!(kib().await, -513);
    }
}
