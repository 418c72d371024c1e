//! A folder whose file system does not answer: a mount of FUSE that no program serves, as a server of the network that is gone.
//!
//! Nothing but a mount can make `stat` hang. Root mounts by itself; for other users fusermount3 does, the helper of the package
//! `fuse3`, which has the right to. Both need `/dev/fuse`, and root in a container needs `CAP_SYS_ADMIN`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::child::{self, Child};

/// Mounts, says so, and holds the mount until it is killed. fusermount3 passes the open device through a socket.
const MOUNT: &str = r"
import array, ctypes, os, socket, subprocess, sys, time
def mount(folder):
    fuse = os.open('/dev/fuse', os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f'fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other'
    if libc.mount(b'hanging', folder.encode(), b'fuse', 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fuse
def mount_by_helper(folder):
    ours, theirs = socket.socketpair()
    helper = ['fusermount3', '-o', 'fsname=hanging', '--', folder]
    environment = dict(os.environ, _FUSE_COMMFD=str(theirs.fileno()))
    subprocess.run(helper, env=environment, pass_fds=[theirs.fileno()], check=True)
    _, parts, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    return array.array('i', parts[0][2])[0]
try:
    held = mount(sys.argv[1])
except OSError as refused:
    print(f'mount: {refused}', file=sys.stderr)
    held = mount_by_helper(sys.argv[1])
print('mounted', flush=True)
time.sleep(600)
";

/// What to do if neither way is open.
const NEEDED: &str = "this test needs a file system that hangs: run it as root, with --device /dev/fuse --cap-add SYS_ADMIN in a \
     container, or install fuse3 for other users (see tests/README.md)";

/// The folder; on drop, what was there before is back.
pub(crate) struct HangingFolder {
    path: PathBuf,
    server: Child,
}

impl HangingFolder {
    /// Lets a folder hang from now on.
    pub(crate) fn over(path: &Path) -> Self {
        let mut command = child::bound_to_us("python3", "KILL", &[]);
        command.args(["-c", MOUNT]).arg(path).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Child::spawn(command);
        let (mut said, mut cause) = (String::new(), String::new());
        let pipes = server.pipes();
        let (stdout, stderr) = (pipes.stdout.take(), pipes.stderr.take());
        BufReader::new(stdout.expect("it is piped")).read_line(&mut said).expect("a pipe can be read");
        if said.trim_end() != "mounted" {
            stderr.expect("it is piped").read_to_string(&mut cause).expect("a pipe can be read");
            panic!("{NEEDED}\n{cause}");
        }
        Self { path: path.to_owned(), server }
    }
}

impl Drop for HangingFolder {
    fn drop(&mut self) {
        // Whoever waits for the file system fails then.
        self.server.kill();
        for command in [["umount", "--lazy"].as_slice(), &["fusermount3", "-u", "-z"]] {
            let done = Command::new(command[0]).args(&command[1..]).arg(&self.path).stderr(Stdio::null()).status();
            if done.is_ok_and(|status| status.success()) {
                return;
            }
        }
    }
}
