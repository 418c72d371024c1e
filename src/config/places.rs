//! What a configuration names on this machine: addresses to listen on, and the folders of files that a node creates.
//!
//! Only `formgate check` looks whether they are there: other commands work without them, and a reload keeps what is open.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::problem::Problem;
use super::source::SourceSpan;
use crate::{regular_file, rights};

/// The places, with where they are configured.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Addresses of every listener.
    pub(super) listen: Vec<(SocketAddr, SourceSpan)>,
    /// The sockets of the operator API.
    pub(super) sockets: Vec<(PathBuf, SourceSpan)>,
    /// The SQLite file of the registry, whose folder is created with it.
    pub(super) registry: Option<(PathBuf, SourceSpan)>,
    /// The snapshot of the registry, if its place is configured.
    pub(super) snapshot: Option<(PathBuf, SourceSpan)>,
}

/// The folder whose own folders systemd creates when it starts a service (`RuntimeDirectory=`).
const RUNTIME: &str = "/run";

/// How each SQLite database begins (sqlite.org/fileformat2.html).
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";

impl Places {
    /// What would keep a node from using them. Looks at the file system.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let addresses = self.listen.iter().filter_map(|(address, span)| {
            // A port that is in use may be that of a node that runs.
            let is_missing =
                TcpListener::bind((address.ip(), 0)).is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable);
            let problem = || Problem::at(span, format!("`{}` is not an address of this machine", address.ip()));
            is_missing.then(|| problem().help("`ip address` lists them; `0.0.0.0` and `[::]` are all of them"))
        });
        let sockets = self.sockets.iter().filter_map(|(path, span)| {
            let is_taken = path.symlink_metadata().is_ok_and(|file| !file.file_type().is_socket());
            if is_taken {
                return Some(
                    Problem::at(span, "there is a file at the path of the socket")
                        .help("remove it, or choose another path"),
                );
            }
            of_folder(path, span, "the socket")
        });
        let registry = self.registry.iter().filter_map(|(path, span)| {
            if let Some(problem) = of_other_kind(path, span, "the registry") {
                return Some(problem);
            }
            let there = path.ancestors().skip(1).find(|folder| folder.exists()).filter(|_| !path.exists())?;
            not_writable(there, span, "the registry")
        });
        let snapshot = self.snapshot.iter().filter_map(|(path, span)| {
            of_other_kind(path, span, "the snapshot")
                .or_else(|| of_folder(path, span, "the snapshot"))
                .or_else(|| of_no_database(path, span, "the snapshot"))
        });
        addresses.chain(sockets).chain(registry).chain(snapshot).collect()
    }
}

/// That there is something at the path of a file that is none, such as a named pipe.
fn of_other_kind(path: &Path, span: &SourceSpan, what: &str) -> Option<Problem> {
    let is_other = regular_file::metadata(path).is_ok_and(|data| !data.is_file());
    let problem = || Problem::at(span, format!("the path of {what} leads to something that is not a regular file"));
    is_other.then(|| problem().help("remove it, or choose another path"))
}

/// That there is a file which is no SQLite database. Closing a file releases the locks that SQLite has on it in this process
/// (fcntl(2)), which must not have it open.
fn of_no_database(path: &Path, span: &SourceSpan, what: &str) -> Option<Problem> {
    let begin = |path: &Path| {
        let mut begin = Vec::new();
        File::open(path)?.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut begin)?;
        Ok(begin)
    };
    // An empty file is a database without tables.
    let is_other = regular_file::ask(path, begin).is_ok_and(|begin| !begin.is_empty() && begin != SQLITE_MAGIC);
    let problem = || Problem::at(span, format!("the file of {what} is no SQLite database"));
    is_other.then(|| problem().help("choose another path, or remove the file if nothing else needs it"))
}

/// What keeps a file from being created in its folder.
fn of_folder(path: &Path, span: &SourceSpan, what: &str) -> Option<Problem> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    if !folder.is_dir() {
        let problem = Problem::at(span, format!("the folder of {what} does not exist"));
        return Some(match folder.parent() == Some(Path::new(RUNTIME)) && !folder.exists() {
            true => problem
                .help(format!("systemd creates `{shown}` with `RuntimeDirectory=` when it starts the service"))
                .into_warning(),
            false => {
                problem.help(format!("create `{shown}`, owned by the user that runs formgate, or correct the path"))
            }
        });
    }
    not_writable(folder, span, what)
}

fn not_writable(folder: &Path, span: &SourceSpan, what: &str) -> Option<Problem> {
    let missing = rights::missing(folder, Access::WRITE_OK | Access::EXEC_OK, "create files in")?;
    Some(Problem::at(span, format!("{what} can't be created")).label(missing))
}
