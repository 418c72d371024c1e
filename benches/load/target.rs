//! A server that is measured, and how each kind of them is started.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use crate::plain::{self, Plain, SortedSet};
use crate::postgres::is_root;
use crate::process::{Process, bound_to_us};
use crate::site::Site;

/// A loaded machine takes seconds; a server that needs longer does not start at all.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
    /// The log file that it appends to, where it writes one.
    pub(crate) log: Option<PathBuf>,
}

impl Target {
    /// Empties its log, so that disks don't fill.
    pub(crate) fn empty_log(&self) -> anyhow::Result<()> {
        if let Some(log) = &self.log {
            fs::OpenOptions::new().write(true).open(log)?.set_len(0)?;
        }
        Ok(())
    }
}

/// Plain hyper, with a window in Redis or without.
pub(crate) fn plain(site: &Site, name: &'static str, window: Option<SortedSet>) -> anyhow::Result<Target> {
    let mut command = bound_to_us(std::env::current_exe()?, "KILL");
    command.arg(crate::PLAIN).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(command, "KILL")?;
    let (certificate, private_key) = (site.certificate(), site.private_key());
    let order = Plain { certificate, private_key, accounts: site.accounts.clone(), window };
    let mut stdin = process.pipes().stdin.take().context("it is piped")?;
    writeln!(stdin, "{}", serde_json::to_string(&order)?)?;
    let mut line = String::new();
    BufReader::new(process.pipes().stdout.take().context("it is piped")?).read_line(&mut line)?;
    let address = line.trim().parse().with_context(|| format!("{name} does not start"))?;
    Ok(Target { name, address, process, log: None })
}

/// nginx, which admits so many requests a minute of each account.
pub(crate) fn nginx(site: &Site, name: &'static str, limit: u32) -> anyhow::Result<Target> {
    let version = Command::new("nginx").arg("-v").stderr(Stdio::null()).status();
    version.context("this bench needs `nginx` in the PATH (Debian: apt-get install nginx-light)")?;
    let folder = site.folder().join(name.replace([' ', ','], "-"));
    fs::create_dir(&folder)?;
    let map = site.accounts.iter().fold(String::new(), |mut map, account| {
        let _ = writeln!(map, "\"{}:Bearer {}\" 1;", account.host, account.token);
        map
    });
    fs::write(folder.join("tokens.map"), map)?;
    fs::write(folder.join("me.json"), plain::ANSWER)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    // Workers of another user could not read the folder.
    let user = if is_root()? { "user root;" } else { "" };
    let settings = [
        ("USER", user.to_owned()),
        ("FOLDER", folder.display().to_string()),
        ("RATE", format!("{limit}r/m")),
        ("BURST", (limit - 1).to_string()),
        ("LIMIT", limit.to_string()),
        ("PORT", port.to_string()),
        ("CERTIFICATE", site.certificate().display().to_string()),
        ("PRIVATE_KEY", site.private_key().display().to_string()),
    ];
    let mut config = include_str!("nginx.conf").to_owned();
    for (place, value) in &settings {
        config = config.replace(place, value);
    }
    fs::write(folder.join("nginx.conf"), config)?;
    let mut command = bound_to_us("nginx", "TERM");
    command.arg("-p").arg(&folder).arg("-e").arg(folder.join("start.err"));
    command.arg("-c").arg(folder.join("nginx.conf")).stdin(Stdio::null());
    let mut process = Process::start(command, "TERM")?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    process.until(START_LIMIT, || TcpStream::connect(address).ok())?;
    Ok(Target { name, address, process, log: None })
}
