//! A Postgres server of the bench's own, set up like one that serves: with fsync, and with memory for what is read.
//! Postgres refuses to run as root, so root runs it as the user `postgres`, whom the Debian package makes.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::process::{Process, START_LIMIT, bound_to_us, checked, is_root};

/// No autovacuum, which would come and go between turns: what is loaded is vacuumed at once.
const SETTINGS: [&str; 12] = [
    "unix_socket_directories=",
    "shared_buffers=2GB",
    "work_mem=32MB",
    "maintenance_work_mem=512MB",
    "max_wal_size=8GB",
    "checkpoint_timeout=30min",
    "random_page_cost=1.1",
    "effective_io_concurrency=64",
    "max_parallel_workers_per_gather=0",
    "autovacuum=off",
    "jit=off",
    "max_connections=300",
];

/// A running server.
pub(crate) struct Postgres {
    pub(crate) process: Process,
    programs: PathBuf,
    pub(crate) port: u16,
}

impl Postgres {
    /// Starts the server on a data folder, which is made unless it is there.
    pub(crate) fn start(folder: &Path) -> anyhow::Result<Self> {
        let programs = find_programs()?;
        let data = folder.join("postgres");
        if !data.join("PG_VERSION").exists() {
            make_folder(&data)?;
            let mut initdb = Command::new("setpriv");
            initdb.args(as_postgres()?).arg("--").arg(programs.join("initdb"));
            initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]).arg(&data);
            checked(&mut initdb)?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("postgres.log"))?;
        // The signal has to be asked for once more: it is forgotten with the user.
        let mut command = bound_to_us("setpriv", "INT");
        command.args(as_postgres()?).args(["--pdeathsig", "INT", "--"]).arg(programs.join("postgres"));
        command.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process = Process::start(command, "INT")?;
        let id = process.id().to_string();
        process.until(START_LIMIT, || {
            // Line 1 is its number, line 8 its state.
            let file = fs::read_to_string(data.join("postmaster.pid")).ok()?;
            let mut lines = file.lines().map(str::trim);
            (lines.next() == Some(&id) && lines.nth(6) == Some("ready")).then_some(())
        })?;
        Ok(Self { process, programs, port })
    }

    /// The URL of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A command of one of Postgres' programs.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// A `psql` that stops at the first fault.
    pub(crate) fn psql(&self, database: &str) -> Command {
        let mut command = self.program("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
        command.arg(format!("--dbname={}", self.url(database)));
        command
    }

    /// Runs statements, each by itself; what they print.
    pub(crate) fn execute(&self, database: &str, statements: &[&str]) -> anyhow::Result<String> {
        let mut psql = self.psql(database);
        checked(psql.args(statements.iter().flat_map(|statement| ["-c", statement])))
    }
}

/// The folder with the server's programs: that of the PATH, else the newest in Debian's place.
fn find_programs() -> anyhow::Result<PathBuf> {
    let is_whole =
        |folder: &PathBuf| ["initdb", "postgres", "psql", "pgbench"].iter().all(|name| folder.join(name).is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(is_whole) {
        return Ok(folder);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let newest = numbered.map(|(version, path)| (version, path.join("bin"))).filter(|(_, bin)| is_whole(bin)).max();
    let missing = "this bench needs Postgres with pgbench (Debian: apt-get install postgresql postgresql-contrib)";
    Ok(newest.context(missing)?.1)
}

fn make_folder(data: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("install");
    command.args(["-d", "-m", "700"]);
    if is_root()? {
        command.args(["-o", "postgres", "-g", "postgres"]);
    }
    checked(command.arg(data))?;
    Ok(())
}

/// How root runs a program as the user `postgres`: options of `setpriv`.
pub(crate) fn as_postgres() -> anyhow::Result<&'static [&'static str]> {
    Ok(if is_root()? { &["--reuid=postgres", "--regid=postgres", "--init-groups"] } else { &[] })
}
