//! A folder whose file system does not answer: a mount of FUSE that no program serves, as a server of the network that is gone.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::child::{self, Child};

/// Mounts, says so, and holds the mount until it is killed.
const MOUNT: &str = r"
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
failed = libc.mount(b'hanging', sys.argv[1].encode(), b'fuse', 0, options)
print('failed' if failed else 'mounted', flush=True)
time.sleep(1 if failed else 600)
";

/// The folder; on drop, what was there before is back.
pub(crate) struct HangingFolder {
    path: PathBuf,
    server: Child,
}

impl HangingFolder {
    /// Lets a folder hang from now on. None where this process may not mount: then nothing real can hang.
    pub(crate) fn over(path: &Path) -> Option<Self> {
        let mut command = child::bound_to_us("python3", "KILL", &[]);
        command.args(["-c", MOUNT]).arg(path).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Child::spawn(command);
        let mut said = String::new();
        let stdout = server.pipes().stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("a pipe can be read");
        (said.trim_end() == "mounted").then(|| Self { path: path.to_owned(), server })
    }
}

impl Drop for HangingFolder {
    fn drop(&mut self) {
        // Whoever waits for the file system fails then.
        self.server.kill();
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
