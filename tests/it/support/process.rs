//! The real binary: single commands, and nodes that serve.
//!
//! Everything is bounded in time, and a node that its test leaves behind is killed. When a test fails, what its nodes
//! said on standard error is printed with it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::child::{self, Child};
use super::client::Client;

/// How long a single command may take: a debug build that imports much, on a loaded machine.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How long a node may take from its start to its first listener.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a node may keep the lines of requests before it writes them, and some more.
const GATHERED: Duration = Duration::from_millis(100);

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Output {
    /// The exit code.
    pub(crate) code: i32,
    /// The result.
    pub(crate) stdout: String,
    /// Everything else.
    pub(crate) stderr: String,
}

/// Runs a command without input and waits for its end.
pub(crate) fn formgate<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    formgate_with_input(arguments, b"")
}

/// Runs a command in a folder, with one more variable in its environment.
pub(crate) fn formgate_in<S: AsRef<OsStr>>(folder: &Path, variable: Option<(&str, &OsStr)>, arguments: &[S]) -> Output {
    let mut command = command(arguments);
    command.current_dir(folder).envs(variable);
    run(command, b"")
}

/// Runs a command that reads standard input and waits for its end.
pub(crate) fn formgate_with_input<S: AsRef<OsStr>>(arguments: &[S], input: &[u8]) -> Output {
    run(command(arguments), input)
}

/// Runs a command without input, with more in its environment.
pub(crate) fn formgate_with_environment<S: AsRef<OsStr>>(arguments: &[S], environment: &[(&str, &str)]) -> Output {
    let mut command = command(arguments);
    command.envs(environment.iter().copied());
    run(command, b"")
}

/// Runs a command without input for which permissions of files count, also where root runs it.
pub(crate) fn formgate_held_by_permissions<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    run(held_by_permissions(arguments), b"")
}

/// Runs a command whose result goes where `stdout` says, and the rest where `stderr` says; the exit code, and what the
/// test could read of both.
pub(crate) fn formgate_into<S: AsRef<OsStr>>(arguments: &[S], stdout: Writable, stderr: Writable) -> Output {
    let mut command = command(arguments);
    command.stdin(Stdio::null()).stdout(stdout.open()).stderr(stderr.open());
    wait_with(command, b"", if stderr == Writable::ReadSlowly { read_slowly } else { read_all })
}

/// Where a command's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writable {
    /// To the test, which reads all of it.
    Read,
    /// To a disk that is full.
    Full,
    /// To a reader that went away.
    Abandoned,
    /// Into a pipe that is full and that nobody reads.
    Unread,
    /// To the test, which reads it slowly.
    ReadSlowly,
}

/// How much a slow reader reads at once, and how long it rests before.
const SLOWLY: (usize, Duration) = (4096, Duration::from_millis(100));

/// How much a pipe takes before its writer waits (pipe(7)).
const CAPACITY: usize = 65_536;

impl Writable {
    fn open(self) -> Stdio {
        match self {
            Self::Read | Self::ReadSlowly => Stdio::piped(),
            Self::Unread => {
                let (reader, mut writer) = std::io::pipe().expect("a pipe can be made");
                writer.write_all(&[b'\n'; CAPACITY]).expect("a pipe takes as much as Linux documents");
                // Open until the test process ends, so that a writer waits.
                std::mem::forget(reader);
                writer.into()
            }
            Self::Full => File::create("/dev/full").expect("Linux has one").into(),
            Self::Abandoned => std::io::pipe().expect("a pipe can be made").1.into(),
        }
    }
}

/// The Python into which `tests/run` installs httpx and requests, or the one on the `PATH`.
pub(crate) fn python() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/python/bin/python");
    if installed.exists() { installed } else { "python3".into() }
}

fn run(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command, input)
}

fn wait(command: Command, input: &[u8]) -> Output {
    wait_with(command, input, read_all)
}

fn wait_with(command: Command, input: &[u8], read_stderr: fn(ChildStderr) -> String) -> Output {
    let mut child = Child::spawn(command);
    let pipes = child.pipes();
    let (stdin, stdout, stderr) = (pipes.stdin.take(), pipes.stdout.take(), pipes.stderr.take());
    thread::scope(|scope| {
        // A command that is content with the beginning of its input closes the pipe; that is its business.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let stdout = scope.spawn(|| stdout.map(read_all).unwrap_or_default());
        let stderr = scope.spawn(|| stderr.map(read_stderr).unwrap_or_default());
        let status = child.wait_at_most(COMMAND_LIMIT);
        child.kill(); // else the readers would wait on
        let stdout = stdout.join().expect("reading does not panic");
        let stderr = stderr.join().expect("reading does not panic");
        let code = status.and_then(|status| status.code());
        let code = code.unwrap_or_else(|| panic!("no exit within {COMMAND_LIMIT:?}, or by a signal:\n{stderr}"));
        Output { code, stdout, stderr }
    })
}

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = child::bound_to_us(env!("CARGO_BIN_EXE_formgate"), "KILL", &[]);
    command.args(arguments).env_remove("FORMGATE_CONFIG").env_remove("RUST_LOG");
    command
}

fn held_by_permissions<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let options: &[&str] = if child::is_root() { &["--bounding-set=-dac_override,-dac_read_search"] } else { &[] };
    let mut command = child::bound_to_us(env!("CARGO_BIN_EXE_formgate"), "KILL", options);
    command.args(arguments).env_remove("FORMGATE_CONFIG").env_remove("RUST_LOG");
    command
}

/// Runs a node on listening sockets to its end, which is near where it refuses them.
pub(crate) fn formgate_on(config: &Path, sockets: [&TcpListener; 2]) -> Output {
    let mut command = on_sockets(config, sockets, &[]);
    command.stderr(Stdio::piped());
    let mut child = Child::spawn(command);
    let stderr = child.pipes().stderr.take().expect("standard error is piped");
    let status = child.wait_at_most(START_LIMIT);
    child.kill();
    let code = status.and_then(|status| status.code()).expect("an exit by itself");
    Output { code, stdout: String::new(), stderr: read_all(stderr) }
}

/// `formgate serve` with two sockets at the numbers where systemd puts them. They travel as standard input and output,
/// because a child gets no other ones without unsafe code; the shell moves them and turns into the program.
fn on_sockets(config: &Path, sockets: [&TcpListener; 2], environment: &[(&str, &str)]) -> Command {
    let script = r#"exec 3<&0 4<&1 0</dev/null 1>/dev/null; LISTEN_PID=$$ LISTEN_FDS=2 exec "$0" "$@""#;
    let mut command = child::bound_to_us("sh", "KILL", &[]);
    command.args(["-c", script, env!("CARGO_BIN_EXE_formgate"), "serve", "--config"]).arg(config);
    command.env_remove("FORMGATE_CONFIG").env_remove("RUST_LOG").envs(environment.iter().copied());
    let [first, second] = sockets.map(|socket| OwnedFd::from(socket.try_clone().expect("a socket can be shared")));
    command.stdin(first).stdout(second);
    command
}

fn read_all(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8(bytes).expect("formgate writes UTF-8")
}

fn read_slowly(mut pipe: ChildStderr) -> String {
    let (most, rest) = SLOWLY;
    let (mut bytes, mut part) = (Vec::new(), vec![0; most]);
    loop {
        thread::sleep(rest);
        match pipe.read(&mut part).expect("a pipe can be read") {
            0 => return String::from_utf8(bytes).expect("formgate writes UTF-8"),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

/// A running gateway; killed on drop.
pub(crate) struct Node {
    /// Where callers connect: the first of the listeners.
    pub(crate) address: SocketAddr,
    child: Child,
    log: Arc<Mutex<String>>,
    /// Whether the log is not read at the moment.
    is_unread: Arc<AtomicBool>,
    /// Writes the log until the node closes its standard error, which it does by ending.
    collector: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts a node and waits until it listens. Panics with its log when it ends instead.
    pub(crate) fn spawn(config: &Path) -> Self {
        Self::spawn_in(config, &[])
    }

    /// Starts a node with more in its environment.
    pub(crate) fn spawn_in(config: &Path, environment: &[(&str, &str)]) -> Self {
        let arguments = [OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()];
        let mut command = command(&arguments);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command)
    }

    /// Starts a node of a drill, with more in its environment.
    pub(crate) fn spawn_drill(config: &Path, environment: &[(&str, &str)]) -> Self {
        let arguments = [OsStr::new("serve"), OsStr::new("--drill"), OsStr::new("--config"), config.as_os_str()];
        let mut command = command(&arguments);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command)
    }

    /// Starts a node whom permissions of files hold, also where root starts it.
    pub(crate) fn spawn_held_by_permissions(config: &Path) -> Self {
        let mut command = held_by_permissions(&[OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command)
    }

    /// Starts a node that may open a few files at first, and the usual number when it asks.
    pub(crate) fn spawn_with_few_files(config: &Path, few: u32) -> Self {
        let mut command = child::bound_to_us("prlimit", "KILL", &[]);
        command.arg(format!("--nofile={few}:")).args([env!("CARGO_BIN_EXE_formgate"), "serve", "--config"]).arg(config);
        command.env_remove("FORMGATE_CONFIG").env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command)
    }

    /// Starts a node that may not open more files than this.
    pub(crate) fn spawn_with_at_most_files(config: &Path, most: u32) -> Self {
        let mut command = child::bound_to_us("prlimit", "KILL", &[]);
        command.arg(format!("--nofile={most}:{most}")).args([env!("CARGO_BIN_EXE_formgate"), "serve", "--config"]);
        command.arg(config).env_remove("FORMGATE_CONFIG").env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command)
    }

    /// Starts a node on listening sockets that are open already, as systemd does.
    pub(crate) fn spawn_on(config: &Path, sockets: [&TcpListener; 2], environment: &[(&str, &str)]) -> Self {
        Self::start(on_sockets(config, sockets, environment))
    }

    fn start(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        let mut child = Child::spawn(command);
        let stderr = BufReader::new(child.pipes().stderr.take().expect("standard error is piped"));
        let log = Arc::<Mutex<String>>::default();
        let collected = Arc::clone(&log);
        let is_unread = Arc::<AtomicBool>::default();
        let waits = Arc::clone(&is_unread);
        let collector = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                while waits.load(Ordering::Acquire) {
                    thread::sleep(child::GLANCE);
                }
                let mut log = collected.lock().unwrap_or_else(PoisonError::into_inner);
                log.push_str(&line);
                log.push('\n');
            }
        });
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut node = Self { address: unknown, child, log, is_unread, collector: Some(collector) };
        node.address = node.wait_for_listener(Listener::Callers);
        node
    }

    /// Where callers connect, all of it, in the order of the configuration.
    pub(crate) fn addresses(&mut self) -> Vec<SocketAddr> {
        let log = self.log();
        let listeners = log.lines().filter_map(listening);
        listeners.filter(|(listener, _)| *listener == Listener::Callers).map(|(_, address)| address).collect()
    }

    /// Where the operator connects, if the configuration has that.
    pub(crate) fn operator_address(&mut self) -> SocketAddr {
        self.wait_for_listener(Listener::Operator)
    }

    /// Leaves the log unread, as a supervisor that hangs does, or reads it again.
    pub(crate) fn leave_log_unread(&self, is_unread: bool) {
        self.is_unread.store(is_unread, Ordering::Release);
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A client of this node.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// What the node has said on standard error so far; all of it once the node has ended.
    pub(crate) fn log(&mut self) -> String {
        // Lines of requests are gathered for a moment.
        thread::sleep(GATHERED);
        self.collected()
    }

    /// The growing log, for tasks that run during the test.
    pub(crate) fn growing_log(&self) -> Arc<Mutex<String>> {
        Arc::clone(&self.log)
    }

    /// What has arrived of the log.
    fn collected(&mut self) -> String {
        if self.child.exited().is_some()
            && let Some(collector) = self.collector.take()
        {
            collector.join().expect("collecting does not panic");
        }
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the node to stop: SIGTERM. It drains; [`Self::wait`] tells when it is done.
    pub(crate) fn terminate(&mut self) {
        self.child.signal("TERM");
    }

    /// Asks the node to stop and waits for its end, while the connections of the test go on; the exit code.
    pub(crate) async fn stop(&mut self, limit: Duration) -> i32 {
        self.terminate();
        let since = Instant::now();
        while self.child.exited().is_none() && since.elapsed() < limit {
            tokio::time::sleep(child::GLANCE).await;
        }
        self.wait(Duration::ZERO)
    }

    /// Sends another signal by name, such as `HUP`.
    pub(crate) fn signal(&mut self, name: &str) {
        self.child.signal(name);
    }

    /// Waits for the end; the exit code.
    pub(crate) fn wait(&mut self, limit: Duration) -> i32 {
        let status = self.child.wait_at_most(limit).unwrap_or_else(|| panic!("the node still runs after {limit:?}"));
        status.code().expect("the node ended by itself")
    }

    /// Kills the node as a crash would: SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Looks at the log until a line has what is looked for; nothing when the node ends without one.
    pub(crate) fn wait_for_log<T>(&mut self, limit: Duration, look: impl Fn(&str) -> Option<T>) -> Option<T> {
        child::until(limit, || {
            let has_ended = self.child.exited().is_some();
            match self.collected().lines().find_map(&look) {
                None if has_ended => Some(None),
                seen => seen.map(Some),
            }
        })
        .flatten()
    }

    /// Waits until the log has at least `count` lines that contain `text`.
    pub(crate) fn wait_for_lines(&mut self, limit: Duration, text: &str, count: usize) {
        let found = child::until(limit, || (self.count_lines(text) >= count).then_some(()));
        assert!(found.is_some(), "fewer than {count} lines contain {text:?} after {limit:?}");
    }

    /// How many lines of the log contain `text`.
    pub(crate) fn count_lines(&mut self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    fn wait_for_listener(&mut self, wanted: Listener) -> SocketAddr {
        let found = self.wait_for_log(START_LIMIT, |line| match listening(line)? {
            (listener, address) if listener == wanted => Some(address),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("the node does not listen ({wanted:?})"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.leave_log_unread(false);
        if thread::panicking() {
            let log = self.log();
            eprintln!("--- the log of the node at {}\n{log}---", self.address);
        }
    }
}

/// For whom an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    /// The API.
    Callers,
    /// Metrics and health.
    Operator,
}

/// The address in a log line that says `listening`, in the text form (`address=127.0.0.1:8443`, coloured or not) or the
/// JSON form (`"address":"127.0.0.1:8443"`); the operator's line also says `admin`.
pub(crate) fn listening(line: &str) -> Option<(Listener, SocketAddr)> {
    let plain = without_colours(line);
    let listener = if plain.contains("admin") { Listener::Operator } else { Listener::Callers };
    let (_, value) = plain.split_once("address").filter(|_| plain.contains("listening"))?;
    let value = value.trim_start_matches(['"', '=', ':', ' ']);
    let end = value.find(['"', ' ', ',', '}']).unwrap_or(value.len());
    Some((listener, value[..end].parse().ok()?))
}

/// A line without the escape sequences that colour it.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or("", |(_, text)| text))
}
