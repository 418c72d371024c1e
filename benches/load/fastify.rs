//! The peer of the database scenarios: `fastify/server.js`, installed by `npm` into the site's folder.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::json;

use crate::account::Account;
use crate::plain;
use crate::process::{Process, START_LIMIT, bound_to_us, checked};
use crate::site::Site;
use crate::target::Target;

/// What is installed, and run.
const FILES: [(&str, &str); 5] = [
    ("package.json", include_str!("fastify/package.json")),
    ("server.js", include_str!("fastify/server.js")),
    ("submission.sql", include_str!("fastify/submission.sql")),
    ("group.sql", include_str!("fastify/group.sql")),
    ("sorted_set.lua", plain::SORTED_SET),
];

/// Starts it for accounts with a database each. Its windows are in the site's Redis.
pub(crate) fn start(site: &Site, accounts: &[(Account, String)], limit: u32, window_ms: u32) -> anyhow::Result<Target> {
    let folder = site.folder.path().join("fastify");
    fs::create_dir(&folder)?;
    for (name, text) in FILES {
        fs::write(folder.join(name), text)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&folder);
    checked(&mut npm).context("this bench needs `node` and `npm` in the PATH (Debian: apt-get install npm)")?;
    let known: Vec<_> = accounts
        .iter()
        .map(|(account, database)| json!({"host": account.host, "token": account.token, "database": database}))
        .collect();
    fs::write(folder.join("accounts.json"), serde_json::to_string(&known)?)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = bound_to_us("node", "TERM");
    command.arg("server.js").current_dir(&folder).stdin(Stdio::null());
    command.env("NODE_ENV", "production").env("PORT", port.to_string()).env("ACCOUNTS", "accounts.json");
    command.env("CERTIFICATE", site.folder.certificate()).env("PRIVATE_KEY", site.folder.private_key());
    command.env("REDIS", site.redis_url()).env("LIMIT", limit.to_string()).env("WINDOW_MS", window_ms.to_string());
    let mut process = Process::start(command, "TERM")?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    process.until(START_LIMIT, || TcpStream::connect(address).ok())?;
    Ok(Target { name: "Fastify", address, process, log: None })
}
