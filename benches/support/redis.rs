//! A `redis-server` of the bench's own: without persistence, on a free port of 127.0.0.1, gone when the bench is.
//!
//! Its CPU is read from the kernel, to the nanosecond and without asking the server. What is read is the main thread's,
//! which runs every command.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A server is up within 0.1 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running server; killed on drop, and by the kernel when the thread that started it ends first.
pub(crate) struct Server {
    port: String,
    process: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server with further options, and waits until it answers.
    pub(crate) fn start(options: &[&str]) -> anyhow::Result<Self> {
        let program = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        program.context("this bench needs `redis-server` in the PATH (Debian: apt-get install redis-server)")?;
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        // In a session of its own, as a service has (process.rs tells why).
        let mut command = Command::new("setsid");
        command.args(["setpriv", "--pdeathsig", "KILL", "--", "redis-server", "--port", &port, "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--tcp-backlog", "4096"]).args(options);
        command.arg("--dir").arg(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let process =
            command.spawn().context("this bench needs `setsid` and `setpriv` (Debian: apt-get install util-linux)")?;
        let mut server = Self { port, process, _folder: folder };
        let began = Instant::now();
        while !server.answers() {
            if let Some(status) = server.process.try_wait()? {
                bail!("redis-server ended at once: {status}");
            }
            if began.elapsed() > START_LIMIT {
                bail!("redis-server does not answer within {START_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Whether this very process answers, not a stranger who took the port before it.
    fn answers(&self) -> bool {
        let ask = || -> redis::RedisResult<String> { redis::cmd("INFO").arg("server").query(&mut self.connect()?) };
        ask().is_ok_and(|info| info.contains(&format!("\r\nprocess_id:{}\r\n", self.process.id())))
    }

    /// Its port on 127.0.0.1.
    pub(crate) fn port(&self) -> &str {
        &self.port
    }

    /// A connection that waits for its answers.
    pub(crate) fn connect(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?.get_connection()
    }

    /// How long its main thread has run so far. Exact while the server waits for a command, as after the answer to the
    /// last one.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = std::fs::read_to_string(path).context("the kernel tells no CPU times of processes")?;
        let run = text.split(' ').next().context("the first number is the time on a CPU")?;
        Ok(Duration::from_nanos(run.parse()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
