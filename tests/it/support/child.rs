//! Child processes that cannot outlive the test process.
//!
//! `setpriv --pdeathsig` asks the kernel to signal a child when its parent dies. For the kernel the parent is the
//! *thread* that made the child, and each test has a thread of its own; so one thread makes all children, and it ends
//! with the process only.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How often a wait looks again: short beside every start-up, long beside the look.
pub(crate) const GLANCE: Duration = Duration::from_millis(10);

type Order = (Command, mpsc::Sender<io::Result<std::process::Child>>);

/// A child process; killed on drop.
pub(crate) struct Child(std::process::Child);

/// A command for `program` that receives `signal` when the test process ends; the options are `setpriv`'s.
pub(crate) fn bound_to_us(program: impl AsRef<std::ffi::OsStr>, signal: &str, options: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(options).args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

impl Child {
    /// Starts a command of [`bound_to_us`].
    pub(crate) fn spawn(command: Command) -> Self {
        static KEEPER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
            let (orders, taken) = mpsc::channel::<Order>();
            thread::spawn(move || {
                for (mut command, reply) in taken {
                    let _ = reply.send(command.spawn());
                }
            });
            Mutex::new(orders)
        });
        let (reply, spawned) = mpsc::channel();
        KEEPER.lock().expect("sending does not panic").send((command, reply)).expect("the keeper lives as long as we");
        let spawned = spawned.recv().expect("the keeper answers each order");
        Self(spawned.expect("setpriv is installed (Debian: apt-get install util-linux)"))
    }

    /// The process id, which is the program's own: `setpriv` turns into it.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// The pipes of the child.
    pub(crate) fn pipes(&mut self) -> &mut std::process::Child {
        &mut self.0
    }

    /// How the child ended, if it did.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child can be waited for")
    }

    /// How the child ended, or nothing when it still runs after `limit`.
    pub(crate) fn wait_at_most(&mut self, limit: Duration) -> Option<ExitStatus> {
        until(limit, || self.exited())
    }

    /// Sends a signal by name (`TERM`, `HUP`); a child that has ended gets none.
    pub(crate) fn signal(&mut self, name: &str) {
        if self.exited().is_none() {
            // The shell's own `kill`: not every machine has the program.
            let done = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &self.id().to_string()]).status();
            assert!(done.expect("there is a shell").success(), "signal {name} could not be sent");
        }
    }

    /// Kills the child and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a process runs that the test has not waited for.
pub(crate) fn is_alive(id: u32) -> bool {
    // `PID (name) state …`; a zombie has ended.
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Looks until there is something to see, or gives up after `limit`.
pub(crate) fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if start.elapsed() > limit {
            return None;
        }
        thread::sleep(GLANCE);
    }
}

/// Ports below those that Linux gives to connections, which would take one between our look and the start of a server.
const PORTS: std::ops::Range<u16> = 16_000..32_000;

/// A port of 127.0.0.1 on which no process listens at the moment; every call returns a different one. Another process may
/// take it before the test does, so a test checks that the server that answers is its own.
pub(crate) fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));
    PORTS
        .map(|_| PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("there are free ports")
}

/// Whether the tests run as root, whom permissions of files don't hold.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").expect("Linux has /proc").uid() == 0
}
