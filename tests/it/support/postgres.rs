//! One Postgres server a test process, and a database of its own for each test that asks. A test that stops its server
//! starts its own.
//!
//! The server is started by the first that asks, writes without fsync into the folder of the run, and ends with the
//! process; what it has committed outlives a crash of its own. Postgres refuses to run as root, so root runs it as the
//! user `postgres`, whom the Debian package makes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use super::child::{self, Child, is_root};
use super::folder;
use super::library::{self, BECOME_ANOTHER};

/// Loaded machines take seconds; a server that needs longer does not start at all.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A port is taken by somebody else between our look and the server's bind once in a blue moon, not three times.
const ATTEMPTS: u32 = 3;

/// The database that migrated ones are copied from.
const TEMPLATE: &str = "formgate_template";

/// What root adds to `setpriv` to become the user of the Debian package.
const AS_POSTGRES: &[&str] = &["--reuid=postgres", "--regid=postgres", "--init-groups"];

/// A running Postgres.
pub(crate) struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    port: u16,
    databases: AtomicU32,
    /// Whether the database that others are copied from was created.
    template: OnceLock<()>,
    server: Child,
    /// Settings beyond those of every server.
    settings: Vec<String>,
}

/// A major version that is tested in addition to the installed one: `tests/run` puts it into `target/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V17,
    V18,
}

/// What lets others replicate what a server has, physically or logically.
const REPLICATED: &[&str] = &["wal_level=logical", "max_wal_senders=10"];

impl Postgres {
    /// The URL of a fresh, empty database on the server that every test of the process shares.
    pub(crate) fn database() -> String {
        Self::shared().new_database()
    }

    /// The URL of a new schema in the database that every test of the process shares. Nothing is in the schema yet.
    pub(crate) fn new_schema() -> String {
        static DATABASE: LazyLock<String> = LazyLock::new(Postgres::database);
        static SCHEMAS: AtomicU32 = AtomicU32::new(0);
        format!("{}?schema=schema_{}", *DATABASE, SCHEMAS.fetch_add(1, Ordering::Relaxed))
    }

    /// The server that every test of the process shares.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: LazyLock<Postgres> = LazyLock::new(Postgres::start);
        &SHARED
    }

    /// The same for another version.
    pub(crate) fn of_version(version: Version) -> &'static Self {
        static V17: LazyLock<Postgres> = LazyLock::new(|| Postgres::start_from(downloaded(17), &[]));
        static V18: LazyLock<Postgres> = LazyLock::new(|| Postgres::start_from(downloaded(18), &[]));
        match version {
            Version::V17 => &V17,
            Version::V18 => &V18,
        }
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a fresh, empty database on this server.
    pub(crate) fn new_database(&self) -> String {
        let name = self.new_name();
        self.execute(&format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    fn new_name(&self) -> String {
        format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed))
    }

    /// The URL of a new database at the newest schema.
    pub(crate) fn new_migrated_database(&self) -> String {
        self.template.get_or_init(|| {
            self.execute(&format!("CREATE DATABASE {TEMPLATE}"));
            library::migrate(&library::location(&self.url(TEMPLATE), &self.data));
        });
        self.copy(TEMPLATE)
    }

    /// The URL of a copy of a database that nothing is connected to.
    pub(super) fn copy(&self, database: &str) -> String {
        let name = self.new_name();
        let copy = format!("CREATE DATABASE {name} TEMPLATE {database}");
        let [become_another, _] = BECOME_ANOTHER;
        checked(&mut psql(&self.url("postgres"), &[&copy, &format!("\\connect {name}"), become_another]));
        self.url(&name)
    }

    /// Ends the server at once, in the middle of whatever it does, as a crash would.
    pub(crate) fn crash(&mut self) {
        self.server.signal("QUIT");
        let ended = self.server.wait_at_most(START_LIMIT);
        assert!(ended.is_some(), "Postgres still runs {START_LIMIT:?} after SIGQUIT");
    }

    /// Kills the postmaster as `kill -9` does, and waits for the end of its sessions, which notice that.
    pub(crate) fn kill(&mut self) {
        let id = self.server.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("Linux has /proc");
        self.server.kill();
        let children: Vec<u32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
        let have_ended = || children.iter().all(|child| !child::is_alive(*child)).then_some(());
        assert!(child::until(START_LIMIT, have_ended).is_some(), "Postgres goes on without its postmaster");
    }

    /// Starts the server again, on the port that it had.
    pub(crate) fn recover(&mut self) {
        self.server = (0..ATTEMPTS)
            .find_map(|_| serve(&self.programs, &self.data, self.port, &self.settings))
            .unwrap_or_else(|| panic!("Postgres did not start again:\n{}", log_of(&self.data)));
    }

    /// Stops every process of the server where it is, or lets them go on: it hangs meanwhile, and its port is open.
    pub(crate) fn hang(&mut self, hang: bool) {
        let id = self.server.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("Linux has /proc");
        let signal = if hang { "STOP" } else { "CONT" };
        self.server.signal(signal);
        for child in children.split_whitespace() {
            // One that has ended meanwhile hangs for good.
            let _ = Command::new("sh").args(["-c", r#"kill -s "$0" "$1" 2>/dev/null"#, signal, child]).status();
        }
    }

    /// Has a role log in by its password, which no other one needs here.
    pub(crate) fn demand_password_of(&self, role: &str) {
        let rules = self.data.join("pg_hba.conf");
        let others = fs::read_to_string(&rules).expect("initdb wrote it");
        fs::write(&rules, format!("host all {role} 127.0.0.1/32 scram-sha-256\n{others}")).expect("we may write it");
        self.execute("SELECT pg_reload_conf()");
    }

    /// The URL of a database on this server.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A server of the caller's own.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same for one that others can replicate.
    pub(crate) fn start_replicated() -> Self {
        Self::start_with(REPLICATED)
    }

    /// A hot standby of this server, from a base backup.
    pub(crate) fn start_standby(&self) -> Self {
        let data = new_folder();
        checked(
            Command::new("setpriv")
                .args(setpriv_options())
                .arg("--")
                .arg(self.programs.join("pg_basebackup"))
                .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata"])
                .arg(&data)
                .arg(format!("--dbname={}", self.url("postgres"))),
        );
        Self::serve_from(self.programs.clone(), data, self.settings.clone())
    }

    /// A server with further settings.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        Self::start_from(find_programs(), settings)
    }

    fn start_from(programs: PathBuf, settings: &[&str]) -> Self {
        let data = new_folder();
        checked(
            Command::new("setpriv")
                .args(setpriv_options())
                .arg("--")
                .arg(programs.join("initdb"))
                .args(["--no-sync", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"])
                .arg(&data),
        );
        Self::serve_from(programs, data, settings.iter().map(|setting| (*setting).to_owned()).collect())
    }

    fn serve_from(programs: PathBuf, data: PathBuf, settings: Vec<String>) -> Self {
        let attempt = |port| Some((port, serve(&programs, &data, port, &settings)?));
        let (port, server) = (0..ATTEMPTS)
            .find_map(|_| attempt(child::free_port()))
            .unwrap_or_else(|| panic!("Postgres did not start:\n{}", log_of(&data)));
        Self { programs, data, port, databases: AtomicU32::new(0), template: OnceLock::new(), server, settings }
    }

    /// Runs one statement as the superuser, in the maintenance database.
    pub(crate) fn execute(&self, statement: &str) {
        Self::execute_in(&self.url("postgres"), statement);
    }

    /// The same in the database of a URL.
    pub(crate) fn execute_in(database: &str, statement: &str) {
        // What `schema` does for formgate, the search path does for libpq.
        let (database, schema) = database.split_once("?schema=").unwrap_or((database, "public"));
        checked(psql(database, &[statement]).env("PGOPTIONS", format!("--search_path={schema}")));
    }
}

/// A psql that runs commands one after the other.
fn psql(database: &str, commands: &[&str]) -> Command {
    let mut psql = Command::new(find_client("psql"));
    psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]).arg(format!("--dbname={database}"));
    psql.args(commands.iter().map(|command| format!("--command={command}")));
    psql
}

/// Starts the server and waits until it takes connections; nothing when it ends instead.
fn serve(programs: &Path, data: &Path, port: u16, settings: &[String]) -> Option<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(data.with_extension("log"));
    let mut command = child::bound_to_us(programs.join("postgres"), "QUIT", setpriv_options());
    command.arg("-D").arg(data).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    for setting in [
        "unix_socket_directories=",
        "max_connections=400", // every node of every test at once has a pool
        "fsync=off",
        "full_page_writes=off",
        "wal_level=minimal",
        "max_wal_senders=0",
    ]
    .into_iter()
    .chain(settings.iter().map(String::as_str))
    {
        command.args(["-c", setting]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("the folder of this run can be written"));
    let mut server = Child::spawn(command);
    let ready = child::until(START_LIMIT, || match server.exited() {
        Some(_) => Some(false),
        None => is_ready(data, server.id()).then_some(true),
    });
    ready.unwrap_or(false).then_some(server)
}

/// Whether this very server takes connections: line 1 of its pid file is its id, line 8 its state (what `pg_ctl`
/// goes by).
fn is_ready(data: &Path, id: u32) -> bool {
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines().map(str::trim);
    lines.next() == Some(&id.to_string()) && lines.nth(6) == Some("ready")
}

/// The folder with the server's programs: that of the PATH, else the newest in Debian's place.
fn find_programs() -> PathBuf {
    let has_server = |folder: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(has_server) {
        return folder;
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let newest = numbered.map(|(version, path)| (version, path.join("bin"))).filter(|(_, bin)| has_server(bin)).max();
    newest.expect("Postgres is not installed (Debian: apt-get install postgresql, or run tests/run)").1
}

/// A client program. The versions of `tests/run` have none.
pub(crate) fn find_client(name: &str) -> PathBuf {
    static INSTALLED: LazyLock<PathBuf> = LazyLock::new(find_programs);
    INSTALLED.join(name)
}

/// The `PATH` of a script that calls client programs, and formgate.
pub(crate) fn path_with_clients() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let clients = find_client("psql").parent().expect("a program is in a folder").to_path_buf();
    let formgate = Path::new(env!("CARGO_BIN_EXE_formgate")).parent().expect("a program is in a folder").to_path_buf();
    std::env::join_paths([clients, formgate].into_iter().chain(std::env::split_paths(&path)))
        .expect("paths without a colon")
}

/// The programs of a version that `tests/run` has downloaded.
fn downloaded(major: u32) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/postgres/{major}/bin"));
    assert!(programs.join("postgres").is_file(), "{} has no Postgres: run tests/run", programs.display());
    programs
}

/// A data folder for a server of this run.
fn new_folder() -> PathBuf {
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    prepare_folder(&folder::of_this_run().join(format!("postgres-{}", SERVERS.fetch_add(1, Ordering::Relaxed))))
}

/// Makes the data folder, which has to belong to whom the server runs as.
pub(super) fn prepare_folder(data: &Path) -> PathBuf {
    let mut command = Command::new("install");
    command.args(["-d", "-m", "700"]);
    if is_root() {
        command.args(["-o", "postgres", "-g", "postgres"]);
    }
    checked(command.arg(data));
    data.to_path_buf()
}

pub(super) fn setpriv_options() -> &'static [&'static str] {
    if is_root() { AS_POSTGRES } else { &[] }
}

/// Runs a command that has no reason to fail.
fn checked(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = || [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(status.success(), "{command:?}: {status}\n{}", said());
}

fn log_of(data: &Path) -> String {
    fs::read_to_string(data.with_extension("log")).unwrap_or_default()
}
