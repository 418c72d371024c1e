//! PgBouncer in transaction mode, in front of a Postgres of the bench. It refuses to run as root, like Postgres.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::postgres_server::{Postgres, as_postgres};
use crate::process::{Process, START_LIMIT, bound_to_us, checked, is_root};

/// A running PgBouncer.
pub(crate) struct PgBouncer {
    pub(crate) process: Process,
    port: u16,
}

impl PgBouncer {
    /// Starts one. `connections` is the most that it has to the server.
    pub(crate) fn start(server: &Postgres, folder: &Path, connections: usize) -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let [configuration, users] = ["pgbouncer.ini", "users.txt"].map(|name| folder.join(name));
        fs::write(&users, "\"postgres\" \"\"\n")?;
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\n\
             max_user_connections = {connections}\nmax_client_conn = 10000\nlog_connections = 0\nlog_disconnections = 0\n",
            server.port,
            users.display()
        );
        fs::write(&configuration, text)?;
        if is_root()? {
            checked(Command::new("chown").arg("postgres").args([&configuration, &users]))?;
        }
        let mut command = bound_to_us("setpriv", "INT");
        // The signal has to be asked for once more: it is forgotten with the user.
        command.args(as_postgres()?).args(["--pdeathsig", "INT", "--"]).arg(find_program()?).arg(&configuration);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(folder.join("pgbouncer.log"))?);
        let mut process = Process::start(command, "INT")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        process.until(START_LIMIT, || TcpStream::connect(address).ok())?;
        Ok(Self { process, port })
    }

    /// The URLs of databases whose names begin like this, before and after their numbers.
    pub(crate) fn urls(&self, name: &str) -> [String; 2] {
        [format!("postgres://postgres@127.0.0.1:{}/{name}_", self.port), "?pooler=transaction".to_owned()]
    }
}

/// Debian keeps it out of the PATH of users.
fn find_program() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let program = folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file());
    program.context("this part needs PgBouncer (Debian: apt-get install pgbouncer)")
}
