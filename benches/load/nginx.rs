//! nginx with the limit of an account in its own memory, and a file as the answer.

use std::fmt::Write;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::plain;
use crate::process::{Process, START_LIMIT, bound_to_us, is_root};
use crate::site::Site;
use crate::target::Target;

/// Starts nginx, which admits `limit` requests a minute of each account.
pub(crate) fn start(site: &Site, name: &'static str, limit: u32) -> anyhow::Result<Target> {
    let version = Command::new("nginx").arg("-v").stderr(Stdio::null()).status();
    version.context("this bench needs `nginx` in the PATH (Debian: apt-get install nginx-light)")?;
    let folder = site.folder.path().join(name.replace([' ', ','], "-"));
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
        ("CERTIFICATE", site.folder.certificate().display().to_string()),
        ("PRIVATE_KEY", site.folder.private_key().display().to_string()),
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
