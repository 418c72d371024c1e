//! Redis servers without persistence, each on a free port of 127.0.0.1.
//!
//! A test that stops, fills or flushes a server starts its own; the others share one, and are kept apart by their keys.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use super::child::{self, Child};
use super::folder;

/// A server is up within 0.1 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A port is taken by somebody else between our look and the server's bind once in a blue moon, not three times.
const ATTEMPTS: u32 = 3;

/// A running Redis; killed on drop.
pub(crate) struct Redis {
    port: u16,
    server: Child,
}

impl Redis {
    /// The server that every test of the process shares.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: LazyLock<Redis> = LazyLock::new(Redis::start);
        &SHARED
    }

    /// A server of the caller's own.
    pub(crate) fn start() -> Self {
        (0..ATTEMPTS).find_map(|_| serve(child::free_port())).expect(
            "redis-server starts and answers (Debian: apt-get install redis-server, or run tests/run); \
             its log is above",
        )
    }

    /// Ends the server as a crash would: connections are refused from then on.
    pub(crate) fn stop(&mut self) {
        self.server.kill();
    }

    /// Starts an empty server on the same port.
    pub(crate) fn start_again(&mut self) {
        *self = (0..ATTEMPTS).find_map(|_| serve(self.port)).expect("nobody else took the port meanwhile");
    }

    /// Stops the server in its tracks: connections stay, and nothing answers.
    pub(crate) fn freeze(&mut self) {
        self.server.signal("STOP");
    }

    /// Lets a frozen server go on.
    pub(crate) fn thaw(&mut self) {
        self.server.signal("CONT");
    }

    /// How many commands the server has run, this one and what scripts called among them.
    pub(crate) fn commands(&self) -> u64 {
        let stats = ask(self.port, "INFO stats").expect("Redis answers");
        let count = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        count.expect("Redis counts its commands").parse().expect("a count is a number")
    }

    /// Where the server is, as a configuration says it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// Starts a server and waits until it answers; nothing when it ends instead.
fn serve(port: u16) -> Option<Redis> {
    let log = folder::of_this_run().join(format!("redis-{port}.log"));
    let mut command = child::bound_to_us("redis-server", "KILL", &[]);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder::of_this_run()).arg("--logfile").arg(&log);
    command.stdin(Stdio::null()).stdout(Stdio::null()); // setpriv says on standard error when there is no redis-server
    let mut server = Child::spawn(command);
    let ready = child::until(START_LIMIT, || match server.exited() {
        Some(_) => Some(false),
        None => is_ready(port, server.id()).then_some(true),
    });
    if ready == Some(true) {
        return Some(Redis { port, server });
    }
    eprintln!("{}", std::fs::read_to_string(log).unwrap_or_default());
    None
}

/// Whether this very server answers: `PING` alone would also be answered by a stranger who took the port before it.
fn is_ready(port: u16, id: u32) -> bool {
    ask(port, "INFO server").is_ok_and(|answer| answer.contains(&format!("\r\nprocess_id:{id}\r\n")))
}

/// Runs one command on a connection of its own.
fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
