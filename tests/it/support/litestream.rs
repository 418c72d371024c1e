//! A real Litestream, with the configuration of the repository, next to the files of a folder.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, Child};
use super::process::python;
use super::prometheus::deploy;

/// It looks for changes once a second.
const LIMIT: Duration = Duration::from_secs(60);

/// Litestream, with a folder as the object storage; killed on drop.
pub(crate) struct Litestream {
    folder: PathBuf,
    accounts: PathBuf,
    server: Child,
}

impl Litestream {
    /// Starts one for the files of a folder. All that it writes is in another folder.
    pub(crate) fn replicating(accounts: &Path, folder: &Path) -> Self {
        fs::create_dir_all(accounts).expect("a folder can be made");
        fs::create_dir_all(folder).expect("a folder can be made");
        let shipped = fs::read_to_string(deploy("litestream/litestream.yml")).expect("the repository has it");
        let replaced = [
            ("dir: /var/lib/formgate/accounts", format!("dir: {}", accounts.display())),
            ("meta-dir: /var/lib/formgate-litestream", format!("meta-dir: {}", folder.join("notes").display())),
            ("type: s3", "type: file".to_owned()),
            ("      bucket: formgate-backup\n", String::new()),
            ("      region: eu-central-1\n", String::new()),
            ("path: accounts", format!("path: {}", folder.join("replica").display())),
        ];
        let config = replaced.into_iter().fold(shipped, |config, (old, new)| {
            assert_eq!(config.matches(old).count(), 1, "{old}");
            config.replace(old, &new)
        });
        fs::write(folder.join("litestream.yml"), config).expect("a file can be written");
        Self { folder: folder.to_owned(), accounts: accounts.to_owned(), server: Self::start(folder) }
    }

    fn start(folder: &Path) -> Child {
        let program = program();
        assert!(program.exists(), "tests/run installs Litestream");
        let mut command = child::bound_to_us(program, "KILL", &[]);
        let log = File::options().create(true).append(true).open(folder.join("log")).expect("a file can be made");
        command.args(["replicate", "-config"]).arg(folder.join("litestream.yml"));
        command.stdout(log.try_clone().expect("a file has several handles")).stderr(log);
        Child::spawn(command)
    }

    /// Ends it as systemd does, after a last look, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.server.signal("TERM");
        self.server.wait_at_most(LIMIT).expect("it ends");
        self.server = Self::start(&self.folder);
    }

    /// Restores the newest state of a file, after a last look.
    pub(crate) fn restore_newest(&mut self, file: &Path, new: &Path) {
        self.server.signal("TERM");
        self.server.wait_at_most(LIMIT).expect("it ends");
        let below = file.strip_prefix(&self.accounts).expect("it is of the folder");
        let replica = format!("file://{}", self.folder.join("replica").join(below).display());
        let mut command = Command::new(program());
        let output = command.args(["restore", "-o"]).arg(new).arg(replica).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// Its configuration.
    pub(crate) fn config(&self) -> String {
        self.folder.join("litestream.yml").display().to_string()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until it has a copy of a file.
    pub(crate) fn wait_for(&self, file: &Path) {
        let below = file.strip_prefix(&self.accounts).expect("it is of the folder");
        let copy = self.folder.join("replica").join(below).join("ltx/0");
        let has_part = || fs::read_dir(&copy).ok()?.next().map(drop);
        child::until(LIMIT, has_part).unwrap_or_else(|| panic!("no copy of {}: {}", below.display(), self.log()));
    }
}

fn program() -> PathBuf {
    python().with_file_name("litestream")
}

/// A `PATH` on which it is found.
pub(crate) fn path_with_litestream() -> OsString {
    let folder = program().parent().expect("it is in a folder").to_owned();
    let others = env::var_os("PATH").unwrap_or_default();
    env::join_paths([folder].into_iter().chain(env::split_paths(&others))).expect("no folder has a colon")
}
