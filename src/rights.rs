//! Whether this process may use a file, and who owns it if not.
//!
//! Asks the system for the permissions of this process, which accounts for access control lists and read-only file
//! systems. Opens nothing: closing a file would release the locks that SQLite holds on it in this process (fcntl(2)).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::regular_file;

/// Why this process may not do something (`to`) to a file, and the remedy.
pub(crate) fn denied(path: &Path, right: Access, to: &str) -> Option<String> {
    let missing = missing(path, right, to)?;
    let shown = path.display();
    match access(path, right) {
        Err(Errno::ROFS) => Some(format!("{missing}: remount it for writing")),
        _ if path.exists() => {
            let us = user(geteuid().as_raw());
            Some(format!("{missing}: chown {us} '{shown}', and run every command as the user that serves"))
        }
        _ => unreachable(path).or(Some(missing)),
    }
}

/// The permission that this process lacks to do something (`to`) to a file.
pub(crate) fn missing(path: &Path, right: Access, to: &str) -> Option<String> {
    if regular_file::metadata_of_folder(path).is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
        return None;
    }
    let shown = path.display();
    match access(path, right) {
        Err(Errno::ROFS) => Some(format!("`{shown}` is on a file system that is mounted read-only")),
        Err(Errno::ACCESS | Errno::PERM) => {
            let us = user(geteuid().as_raw());
            let Ok(data) = fs::metadata(path) else { return Some(format!("{us} may not {to} `{shown}`")) };
            let (owner, mode) = (user(data.uid()), data.permissions().mode() & 0o7777);
            Some(format!("`{shown}` belongs to {owner} (mode {mode:04o}), and {us} may not {to} it"))
        }
        _ => None,
    }
}

/// The outermost folder above a file that this process may not enter, and the remedy.
pub(crate) fn unreachable(file: &Path) -> Option<String> {
    let folders: Vec<_> = file.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).collect();
    folders.into_iter().rev().find_map(|folder| denied(folder, Access::EXEC_OK, "enter"))
}

/// Why this process can't read a file, and the remedy.
pub(crate) fn unreadable(file: &Path) -> Option<String> {
    unreachable(file).or_else(|| denied(file, Access::READ_OK, "read"))
}

/// The name of the user that this process runs as, or its number.
pub(crate) fn current_user() -> String {
    user(geteuid().as_raw())
}

/// The name of a user, or the number if it has no name.
pub(crate) fn user(id: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("user {id}"))
}
