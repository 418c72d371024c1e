//! Why formgate can't write to a SQLite file: a missing right, or another process that holds the write lock.
//!
//! Inspects the file system and the kernel's list of locks; opens no file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::database_file::{SHARED_MEMORY, next_to};
use crate::regular_file;
use crate::rights;

/// A SQLite file can be read and not written.
#[derive(Debug, thiserror::Error)]
#[error("the SQLite file `{}` can only be read{}", file.display(), after_colon(missing_right.as_deref()))]
pub struct ReadOnlyFile {
    file: PathBuf,
    /// The missing right and the owner of the file, if that is the reason.
    missing_right: Option<String>,
    /// SQLite's error, if a write was attempted.
    source: Option<sqlx::Error>,
}

impl ReadOnlyFile {
    pub(in crate::store) fn new(file: &Path, source: sqlx::Error) -> Box<Self> {
        Box::new(Self { file: file.to_owned(), missing_right: missing_right(file), source: Some(source) })
    }

    /// A file that this process has no right to write to.
    pub(super) fn without_right(file: &Path) -> Option<Box<Self>> {
        let missing_right = Some(missing_right(file)?);
        Some(Box::new(Self { file: file.to_owned(), missing_right, source: None }))
    }

    /// Wraps this as the error of a statement. [`crate::store::StoreError`] unwraps it.
    pub(in crate::store) fn refuses(file: &Path, source: sqlx::Error) -> sqlx::Error {
        sqlx::Error::Decode(Self::new(file, source))
    }
}

/// `: text`, or nothing.
pub(super) fn after_colon(text: Option<&str>) -> String {
    text.map(|text| format!(": {text}")).unwrap_or_default()
}

/// The right that this process lacks for writing to a file, or for creating SQLite's log next to it.
fn missing_right(file: &Path) -> Option<String> {
    // SQLite creates the log next to the target of a symbolic link.
    let file = regular_file::ask(file, Path::canonicalize).unwrap_or_else(|_| file.to_owned());
    let of_folder =
        || rights::missing(file.parent()?, Access::WRITE_OK | Access::EXEC_OK, "create the log of SQLite in");
    rights::missing(&file, Access::WRITE_OK, "write to").or_else(of_folder)
}

/// The process that holds the write lock of a file, if the kernel lists it: not on another machine or in another
/// container.
#[cfg(target_os = "linux")]
pub(super) fn lock_holder(file: &Path) -> Option<String> {
    use procfs::process::Process;
    use procfs::{Current, LockKind, Locks};

    /// The bytes that SQLite locks: in WAL mode in the shared memory file, otherwise in the database file (os_unix.c,
    /// os.h).
    const WAL_WRITE_LOCK: u64 = 120;
    const RESERVED_BYTE: u64 = 0x4000_0001;

    let locks_at = [(next_to(file, SHARED_MEMORY), WAL_WRITE_LOCK), (file.to_owned(), RESERVED_BYTE)];
    let inodes = locks_at.map(|(path, byte)| regular_file::metadata(&path).ok().map(|data| (data.ino(), byte)));
    let locks = Locks::current().ok()?.0;
    let holds = |lock: &&procfs::Lock| {
        matches!(lock.kind, LockKind::Write)
            && inodes.iter().flatten().any(|(inode, byte)| {
                lock.inode == *inode && lock.offset_first <= *byte && lock.offset_last.is_none_or(|last| *byte <= last)
            })
    };
    let id = locks.iter().find(holds)?.pid.filter(|id| *id > 0)?;
    let process = Process::new(id).ok()?;
    let name = process.stat().ok()?.comm;
    // The subcommand is named only for formgate itself: arguments of other programs may contain secrets.
    let command = process.cmdline().unwrap_or_default().into_iter().nth(1).filter(|_| name == env!("CARGO_PKG_NAME"));
    Some(match command {
        Some(command) => format!("process {id} (`{name} {command}`)"),
        None => format!("process {id} (`{name}`)"),
    })
}

/// Other systems have no such list.
#[cfg(not(target_os = "linux"))]
pub(super) fn lock_holder(_file: &Path) -> Option<String> {
    None
}
