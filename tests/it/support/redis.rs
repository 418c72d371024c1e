//! Redis servers without persistence, each on a free port of 127.0.0.1.
//!
//! A test that stops, fills or flushes a server starts its own; the others share one, and are kept apart by their keys.
//! Several that belong together are [`super::redis_group`]'s.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
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
    settings: Vec<String>,
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
        Self::start_with(&[])
    }

    /// A server of the caller's own, with more arguments.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        (0..ATTEMPTS).find_map(|_| serve(child::free_port(), &settings)).expect(
            "redis-server starts and answers (Debian: apt-get install redis-server, or run tests/run); \
             its log is above",
        )
    }

    /// A Sentinel with a file of its own.
    pub(crate) fn start_sentinel(file: &Path) -> Self {
        Self::start_with(&[file.to_str().expect("the temporary folder has a UTF-8 name"), "--sentinel"])
    }

    /// Where the server is, as a configuration says it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where the server is, for another server.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Connects as the test's own client.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a valid URL");
        client.get_connection().expect("Redis takes connections")
    }

    /// Runs one command, which succeeds.
    pub(crate) fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let (name, arguments) = command.split_first().expect("a command has a name");
        let answer = redis::cmd(name).arg(arguments).query(&mut self.connect());
        answer.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Reads each command from now on, also those of scripts, as `MONITOR` writes them.
    pub(crate) fn monitor(&self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("Redis takes connections");
        stream.write_all(b"MONITOR\r\n").expect("Redis takes commands");
        let mut reader = BufReader::new(stream);
        let mut answer = String::new();
        reader.read_line(&mut answer).expect("Redis answers");
        assert_eq!(answer, "+OK\r\n");
        reader
    }

    /// How many commands the server has run, this one and what scripts called among them.
    pub(crate) fn commands(&self) -> u64 {
        let stats: String = self.run(&["INFO", "stats"]);
        let count = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        count.expect("Redis counts its commands").parse().expect("a count is a number")
    }

    /// Sends a signal by name, such as `STOP` and `CONT`.
    pub(crate) fn signal(&mut self, name: &str) {
        self.server.signal(name);
    }

    /// Kills the server as a crash would.
    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts a killed server again, at the same address and with nothing in it.
    pub(crate) fn restart(&mut self) {
        *self = serve(self.port, &self.settings).expect("the port is still free; the log is above");
    }
}

/// Starts a server and waits until it answers; nothing when it ends instead.
fn serve(port: u16, settings: &[String]) -> Option<Redis> {
    let log = folder::of_this_run().join(format!("redis-{port}.log"));
    let mut command = child::bound_to_us("redis-server", "KILL", &[]);
    // The settings first: a file can stand nowhere else.
    command.args(settings);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder::of_this_run()).arg("--logfile").arg(&log);
    command.stdin(Stdio::null()).stdout(Stdio::null()); // setpriv says on standard error when there is no redis-server
    let mut server = Child::spawn(command);
    let ready = child::until(START_LIMIT, || match server.exited() {
        Some(_) => Some(false),
        None => is_ready(port, server.id()).then_some(true),
    });
    if ready == Some(true) {
        return Some(Redis { port, settings: settings.to_vec(), server });
    }
    eprintln!("{}", std::fs::read_to_string(log).unwrap_or_default());
    None
}

/// Whether this very server answers: `PING` alone would also be answered by a stranger who took the port before it.
fn is_ready(port: u16, id: u32) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\nINFO server\r\n")?;
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        Ok(lines.next().as_deref() == Some("+PONG") && lines.any(|line| line == format!("process_id:{id}")))
    };
    ask().unwrap_or(false)
}
