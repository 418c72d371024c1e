//! Finds out why this process can't use a SQLite file: it is missing, or the process lacks a right to it or its
//! folder.
//!
//! Commands run as root leave files that the service can't open, which SQLite reports only as "unable to open database
//! file". Checks access rights and opens no file: closing one would release the locks that SQLite holds on it in this
//! process (fcntl(2)).

use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::Access;

use crate::regular_file;
use crate::rights::{self, denied};
use crate::store::engine::database_file::{LOG, SHARED_MEMORY, next_to};

/// What is wrong with the file at a path, its folder or the log next to it, with the remedy.
pub(super) fn of_path(file: &Path, slug: &str) -> Option<String> {
    match regular_file::metadata(file) {
        Ok(data) if data.is_dir() => {
            return Some(format!("`{}` is a folder: name a file in `database` of `{slug}`", file.display()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(missing(file, slug)),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            return Some(format!(
                "the file system of `{}` does not answer: look into the system's log",
                file.display()
            ));
        }
        Err(_) => return rights::unreachable(file),
    }
    let all = ["", LOG, SHARED_MEMORY].map(|end| next_to(file, end));
    let readable = all.iter().find_map(|file| denied(file, Access::READ_OK, "read"));
    let writable = || all.iter().find_map(|file| denied(file, Access::WRITE_OK, "write"));
    let folder = || denied(all[0].parent()?, Access::WRITE_OK, "create the log of SQLite in");
    readable.or_else(writable).or_else(folder)
}

fn missing(file: &Path, slug: &str) -> String {
    let path = file.display();
    // The missing folders are created in the nearest one that exists.
    let blocked = file
        .ancestors()
        .skip(1)
        .find(|folder| folder.exists())
        .and_then(|folder| denied(folder, Access::WRITE_OK, "create files in"));
    match blocked {
        Some(blocked) => format!("`{path}` does not exist yet; {blocked}"),
        None => format!(
            "`{path}` does not exist: `formgate migrate --tenant {slug}` creates it; or correct the path in `database`"
        ),
    }
}

/// The remedy by the primary result code, the low byte (sqlite.org/rescode.html).
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
            None if other == 10 => format!(
                "the disk of `{path}` fails, or the system limits the size of files (`ulimit -f`, `LimitFSIZE=`): look into its log"
            ),
            None => return None,
        },
    })
}
