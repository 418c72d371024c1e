//! What keeps this process from using a SQLite file: that it is missing, or whose it and its folder are.
//!
//! Commands run as root leave files that the service can't open, which SQLite reports as "unable to open database file"
//! and no more. Asks for the rights of this process, and opens no file: closing one would release the locks that SQLite
//! holds on it here (fcntl(2)).

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

/// What is wrong with the file at a path, its folder, or the log next to it, and the remedy.
pub(super) fn of_path(file: &Path, slug: &str) -> Option<String> {
    match fs::metadata(file) {
        Ok(data) if data.is_dir() => {
            return Some(format!("`{}` is a folder: name a file in `database` of `{slug}`", file.display()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(missing(file, slug)),
        Err(_) => return folders(file).find_map(|folder| denied(folder, Access::EXEC_OK, "enter")),
    }
    let next_to_it = |end: &str| {
        // SQLite puts the others next to the file that a link leads to.
        let mut name = file.canonicalize().unwrap_or_else(|_| file.to_owned()).into_os_string();
        name.push(OsString::from(end));
        PathBuf::from(name)
    };
    let all = ["", "-wal", "-shm"].map(next_to_it);
    let readable = all.iter().find_map(|file| denied(file, Access::READ_OK, "read"));
    let writable = || all.iter().find_map(|file| denied(file, Access::WRITE_OK, "write"));
    let folder = || denied(all[0].parent()?, Access::WRITE_OK, "create the log of SQLite in");
    readable.or_else(writable).or_else(folder)
}

fn missing(file: &Path, slug: &str) -> String {
    let path = file.display();
    // The nearest folder that exists is where creating the others begins.
    let blocked = folders(file).find(|folder| folder.exists()).and_then(|folder| denied(folder, Access::WRITE_OK, "create files in"));
    match blocked {
        Some(blocked) => format!("`{path}` does not exist yet; {blocked}"),
        None => format!("`{path}` does not exist: `formgate migrate --tenant {slug}` creates it; or correct the path in `database`"),
    }
}

fn folders(file: &Path) -> impl Iterator<Item = &Path> {
    file.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty())
}

/// Whose a file is, where this process may not do something to it that its caller names.
fn denied(path: &Path, right: Access, to: &str) -> Option<String> {
    let shown = path.display();
    match access(path, right) {
        Err(Errno::ROFS) => Some(format!("`{shown}` is on a file system that is mounted read-only: mount it for writing")),
        Err(Errno::ACCESS | Errno::PERM) => {
            let us = user(geteuid().as_raw());
            let Ok(data) = fs::metadata(path) else {
                return Some(format!("{us} may not {to} `{shown}`"));
            };
            let (owner, mode) = (user(data.uid()), data.permissions().mode() & 0o7777);
            let all = if data.is_dir() { "" } else { "*" };
            let stem = shown.to_string();
            let stem = stem.trim_end_matches("-wal").trim_end_matches("-shm");
            Some(format!(
                "`{shown}` belongs to {owner} (mode {mode:04o}), and {us} may not {to} it: chown {us} {stem}{all}; run every command as the user that serves"
            ))
        }
        _ => None,
    }
}

/// The name of a user, or the number where the system has no name for it.
fn user(id: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| id.to_string())
}

/// By the primary code, which is the low byte (sqlite.org/rescode.html).
pub(super) fn of_error(error: &sqlx::Error, file: &Path, slug: &str) -> Option<String> {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i64>().ok());
    let path = file.display();
    Some(match code.unwrap_or_default() & 0xff {
        // BUSY, LOCKED
        5 | 6 => format!("another program holds `{path}` locked: wait for it, or end it (`fuser {path}` names it)"),
        // CORRUPT
        11 => format!("`{path}` is damaged: restore a backup"),
        // FULL
        13 => format!("free space on the file system of `{path}`"),
        // NOTADB
        26 => format!("`{path}` is no SQLite database: correct the path in `database`, or restore a backup"),
        other => match of_path(file, slug) {
            Some(remedy) => remedy,
            // READONLY
            None if other == 8 => format!("`{path}` can't be written: check the rights to it, its folder and its disk"),
            // IOERR
            None if other == 10 => format!("the disk of `{path}` fails: look into the system's log"),
            None => return None,
        },
    })
}
