//! PgBouncer in front of the Postgres of the test process.
//!
//! It refuses to run as root, like Postgres, and has the same user. It ends with the test process.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::child::{self, Child};
use super::folder;
use super::postgres::{self, Postgres};

/// Loaded machines take seconds; one that needs longer does not start at all.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The default: startup parameters that it does not know are refused.
pub(crate) const REFUSES: &str = "";

/// What its documentation advises for clients that send startup parameters.
pub(crate) const IGNORES: &str = "ignore_startup_parameters = extra_float_digits, options";

/// A running PgBouncer; each database of the server can be had through it.
pub(crate) struct PgBouncer {
    port: u16,
    _process: Child,
}

impl PgBouncer {
    /// One in transaction mode, for every test of the process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: LazyLock<PgBouncer> = LazyLock::new(|| PgBouncer::start("transaction", REFUSES));
        &SHARED
    }

    /// A PgBouncer of the caller's own, with further lines of its configuration.
    pub(crate) fn start(mode: &str, lines: &str) -> Self {
        Self::start_with(mode, lines, "")
    }

    /// The same, which has each of its connections run a statement when it is made.
    pub(crate) fn start_with(mode: &str, lines: &str, connect_query: &str) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("pgbouncer-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let folder = postgres::prepare_folder(&folder::of_this_run().join(name));
        let (port, server) = (child::free_port(), Postgres::shared().port());
        let query = if connect_query.is_empty() { String::new() } else { format!(" connect_query='{connect_query}'") };
        let configuration = format!(
            "[databases]\n* = host=127.0.0.1 port={server}{query}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {0}/users.txt\n\
             pool_mode = {mode}\ndefault_pool_size = 3\nmax_client_conn = 1000\nserver_idle_timeout = 5\n{lines}\n",
            folder.display(),
        );
        fs::write(folder.join("users.txt"), "\"postgres\" \"\"\n").expect("the folder can be written");
        let path = folder.join("pgbouncer.ini");
        fs::write(&path, configuration).expect("the folder can be written");
        // Its folder belongs to the user that it runs as, whose own these files become.
        let log = fs::File::create(folder.with_extension("log")).expect("the folder of this run can be written");
        let mut command = child::bound_to_us(find_program(), "KILL", postgres::setpriv_options());
        command.arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process = Child::spawn(command);
        let ready = child::until(START_LIMIT, || match process.exited() {
            Some(_) => Some(false),
            None => TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true),
        });
        let log = || fs::read_to_string(folder.with_extension("log")).unwrap_or_default();
        assert!(ready.unwrap_or(false), "PgBouncer did not start:\n{}", log());
        Self { port, _process: process }
    }

    /// The URL of a database of the shared server through this PgBouncer, with parameters.
    pub(crate) fn url(&self, database: &str, parameters: &str) -> String {
        let (_, name) = database.rsplit_once('/').expect("the URL of a database");
        format!("postgres://postgres@127.0.0.1:{}/{name}{parameters}", self.port)
    }

    /// What `psql` prints for a query through this PgBouncer. It names no statements and sends no startup parameters.
    pub(crate) fn query(&self, database: &str, query: &str) -> String {
        let output = Command::new(postgres::find_client("psql"))
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
            .arg(format!("--dbname={}", self.url(database, "")))
            .arg(format!("--command={query}"))
            .output()
            .expect("psql runs");
        assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// Debian keeps it out of the PATH of users.
fn find_program() -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let program = folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file());
    program.expect("PgBouncer is not installed (Debian: apt-get install pgbouncer, or run tests/run)")
}
