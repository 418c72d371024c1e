//! The peer of the bench `load`, with plain tables, over HTTP, and with a pool for each of the accounts that were called
//! last.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::json;

use crate::postgres::copy_first;
use crate::postgres_server::Postgres;
use crate::process::{Process, START_LIMIT, bound_to_us, checked};
use crate::world::{World, host};

/// What is installed, and run.
const FILES: [(&str, &str); 5] = [
    ("package.json", include_str!("../load/fastify/package.json")),
    ("server.js", include_str!("../load/fastify/server.js")),
    ("submission.sql", include_str!("../load/fastify/submission.sql")),
    ("group.sql", include_str!("../load/fastify/group.sql")),
    ("sorted_set.lua", include_str!("../load/sorted_set.lua")),
];

/// Tables with rows, and the columns that both schemas have.
const TABLES: [(&str, &str); 5] = [
    ("users", "id, email, name"),
    ("forms", "id, name, anonymous, disabled, parent_id"),
    ("elements", "id, form_id, position, gid, name, type"),
    ("submissions", "id, form_id, status, draft, submitter_id, created_at, updated_at"),
    ("answers", "submission_id, element_id, value, files, updated_at"),
];

pub(crate) struct Fastify {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Fastify {
    /// Starts it on copies of the first database of this name. `connections` is the most that it opens.
    pub(crate) fn start(server: &Postgres, world: &World, from: &str, connections: usize) -> anyhow::Result<Self> {
        copy_rows(server, world.folder(), &format!("{from}_0"), "plain_0")?;
        copy_first(server, "plain", world.accounts)?;
        let folder = world.path("fastify");
        fs::create_dir(&folder)?;
        for (name, text) in FILES {
            fs::write(folder.join(name), text)?;
        }
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&folder);
        checked(&mut npm).context("this part needs `node` and `npm` in the PATH (Debian: apt-get install npm)")?;
        let account = |n| json!({"host": host(n), "token": world.token, "database": server.url(&format!("plain_{n}"))});
        let accounts: Vec<_> = (0..world.accounts).map(account).collect();
        fs::write(folder.join("accounts.json"), serde_json::to_string(&accounts)?)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = bound_to_us("node", "TERM");
        command.arg("server.js").current_dir(&folder).stdin(Stdio::null());
        command.env("NODE_ENV", "production").env("PORT", port.to_string()).env("ACCOUNTS", "accounts.json");
        command.env("POOLS", connections.to_string());
        let mut process = Process::start(command, "TERM")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        process.until(START_LIMIT, || TcpStream::connect(address).ok())?;
        Ok(Self { process, address })
    }
}

/// Makes a database with the peer's tables, and copies the rows.
fn copy_rows(server: &Postgres, folder: &Path, from: &str, to: &str) -> anyhow::Result<()> {
    server.execute("postgres", &[&format!("CREATE DATABASE {to}")])?;
    server.execute(to, &["SET client_min_messages = warning", include_str!("../load/fastify/schema.sql")])?;
    for (table, columns) in TABLES {
        let (path, copy) = (folder.join(table), format!("COPY (SELECT {columns} FROM {table}) TO STDOUT"));
        let status = server.psql(from).args(["-c", &copy]).stdout(File::create(&path)?).status()?;
        ensure!(status.success(), "{table} can't be read");
        let copy = format!("COPY {table} ({columns}) FROM STDIN");
        checked(server.psql(to).args(["-c", &copy]).stdin(File::open(&path)?))?;
    }
    server.execute(to, &[include_str!("../load/fastify/indexes.sql")])?;
    Ok(())
}
