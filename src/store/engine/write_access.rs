//! Why formgate can't write to a SQLite file: a missing right, or another process that holds the write lock.
//!
//! Inspects the file system and the kernel's list of locks; opens no file.
//!
//! SQLite gives the files next to a database its mode at that time. So those that were created while the database could only be
//! read stay as they are when the right is given back, and keep writes out until somebody sees them: [`is_given_back`] mends them.

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::database_file::{LOG, SHARED_MEMORY, next_to};
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

/// Whether a file may be written after all, to which a write was refused. Files of this process's user next to it are given its
/// mode for that.
pub(super) fn is_given_back(file: &Path) -> bool {
    let Ok(mode) = regular_file::metadata(file).map(|data| data.permissions()) else { return false };
    if right_to_file(file).is_none() {
        for beside in [LOG, SHARED_MEMORY].map(|end| next_to(file, end)) {
            if rights::missing(&beside, Access::WRITE_OK, "write to").is_some()
                && let Err(error) = fs::set_permissions(&beside, mode.clone())
            {
                tracing::debug!(error = ?error, "a file next to a database can't be given its mode");
            }
        }
    }
    missing_right(file).is_none()
}

/// The right that this process lacks for writing to a file, for creating SQLite's log next to it, or for writing to that.
fn missing_right(file: &Path) -> Option<String> {
    right_to_file(file).or_else(|| {
        let mut beside = [LOG, SHARED_MEMORY].map(|end| next_to(file, end)).into_iter();
        beside.find_map(|beside| rights::missing(&beside, Access::WRITE_OK, "write to"))
    })
}

fn right_to_file(file: &Path) -> Option<String> {
    // SQLite creates the log next to the target of a symbolic link.
    let file = regular_file::ask(file, Path::canonicalize).unwrap_or_else(|_| file.to_owned());
    let of_folder =
        || rights::missing(file.parent()?, Access::WRITE_OK | Access::EXEC_OK, "create the log of SQLite in");
    rights::missing(&file, Access::WRITE_OK, "write to").or_else(of_folder)
}

/// The process that holds the write lock of a file, if the kernel lists it: not on another machine or in another container. Only Linux
/// has such a list.
pub(super) fn lock_holder(file: &Path) -> Option<String> {
    /// The bytes that SQLite locks: in WAL mode in the shared memory file, otherwise in the database file (os_unix.c,
    /// os.h).
    const WAL_WRITE_LOCK: u64 = 120;
    const RESERVED_BYTE: u64 = 0x4000_0001;

    let locks_at = [(next_to(file, SHARED_MEMORY), WAL_WRITE_LOCK), (file.to_owned(), RESERVED_BYTE)];
    let inodes = locks_at.map(|(path, byte)| regular_file::metadata(&path).ok().map(|data| (data.ino(), byte)));
    let is_held = |lock: &WriteLock| {
        inodes.iter().flatten().any(|(inode, byte)| lock.inode == *inode && lock.bytes.contains(byte))
    };
    let id = fs::read_to_string("/proc/locks").ok()?.lines().filter_map(WriteLock::parse).find(is_held)?.process;
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?.trim_end().to_owned();
    let command = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    // The subcommand is named only for formgate itself: arguments of other programs may contain secrets.
    let command = command.split('\0').nth(1).filter(|_| name == env!("CARGO_PKG_NAME"));
    Some(match command {
        Some(command) => format!("process {id} (`{name} {command}`)"),
        None => format!("process {id} (`{name}`)"),
    })
}

/// A write lock that a process holds.
#[derive(Debug, PartialEq, Eq)]
struct WriteLock {
    process: u32,
    inode: u64,
    bytes: RangeInclusive<u64>,
}

impl WriteLock {
    /// Reads a line of proc_locks(5). Nothing for read locks, for locks that are waited for (`->`), and for those that belong to an
    /// open file instead of a process (-1).
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, "WRITE", process, file, first, last] = fields[..] else { return None };
        let last = if last == "EOF" { u64::MAX } else { last.parse().ok()? };
        let (_, inode) = file.rsplit_once(':')?;
        Some(Self { process: process.parse().ok()?, inode: inode.parse().ok()?, bytes: first.parse().ok()?..=last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_locks_of_processes_are_read_from_the_kernels_list() {
        let lock = |bytes| Some(WriteLock { process: 5433, inode: 7_864_448, bytes });
        let parse = WriteLock::parse;
        assert_eq!(parse("1: POSIX  ADVISORY  WRITE 5433 08:01:7864448 120 120"), lock(120..=120));
        assert_eq!(parse("2: FLOCK  ADVISORY  WRITE 5433 08:01:7864448 0 EOF"), lock(0..=u64::MAX));
        for other in [
            "1: -> POSIX  ADVISORY  WRITE 5433 08:01:7864448 120 120",
            "3: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128",
            "4: OFDLCK ADVISORY  WRITE -1 08:01:7864448 0 EOF",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
