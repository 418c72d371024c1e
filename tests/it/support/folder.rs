//! The one folder of a test run, for databases, certificates and configurations.
//!
//! It is named after the process, so that runs don't meet, and it goes when the process goes, however that ends: a
//! shell waits on a pipe that closes with us. Should the shell be killed too, the next run sweeps the folder away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// What a run's folder is called, before the id of its process.
const PREFIX: &str = "formgate-tests-";

struct Folder {
    path: PathBuf,
    /// Holds the writing end of the pipe: it closes when this process ends, and not before.
    _janitor: Child,
}

/// The folder of this run; made at the first call.
pub(crate) fn of_this_run() -> &'static Path {
    static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
        sweep();
        let path = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).expect("the temporary folder can be written");
        let janitor = Command::new("sh")
            // A second, for the servers that end with us to write their last.
            .args(["-c", r#"cat; sleep 1; rm -rf -- "$0""#])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        Folder { path, _janitor: janitor }
    });
    &FOLDER.path
}

/// A fresh folder within [`of_this_run`], removed on drop.
pub(crate) fn temporary(kind: &str) -> tempfile::TempDir {
    let prefix = format!("{kind}-");
    tempfile::Builder::new().prefix(&prefix).tempdir_in(of_this_run()).expect("the folder of this run can be written")
}

/// Removes the folders of runs whose process is gone. What can't be removed belongs to somebody else.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|id| id.parse::<u32>().ok());
        // An own id means that an earlier process had it: this one has made no folder yet.
        if run.is_some_and(|id| id == std::process::id() || !Path::new(&format!("/proc/{id}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The name of a file's owner.
pub(crate) fn owner_of(path: &Path) -> String {
    let done = Command::new("stat").args(["--format", "%U"]).arg(path).output().expect("stat is a part of coreutils");
    String::from_utf8(done.stdout).expect("UTF-8").trim().to_owned()
}

/// Makes a named pipe, which blocks whoever opens it to read.
pub(crate) fn make_pipe(path: &Path) {
    let made = rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0);
    made.expect("the folder can be written");
}
