//! The real program, built like this bench.

use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::folder::SiteFolder;
use crate::process::{Process, START_LIMIT, bound_to_us};
use crate::target::Target;

/// The build of the program that is measured: beside this bench and of its profile, unless another is named.
fn program() -> PathBuf {
    std::env::var_os("PROGRAM").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_formgate")), PathBuf::from)
}

/// A node's configuration, where nodes differ. The limits on callers that a load from one address meets are out of its
/// way in all of them.
pub(crate) struct Gateway {
    pub(crate) name: &'static str,
    /// Without one, windows are in the process.
    pub(crate) redis: Option<String>,
    pub(crate) window_seconds: u32,
    pub(crate) tenants: Vec<Tenant>,
}

/// Another build of the program, to take turns with this one.
pub(crate) fn before() -> Option<PathBuf> {
    std::env::var_os("BEFORE").map(PathBuf::from)
}

/// A tenant of a node.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(crate) slug: String,
    /// The URL of its database.
    pub(crate) database: String,
    /// The limit a window.
    pub(crate) requests: u32,
}

impl Gateway {
    /// Starts the node. Its log goes to a file, as a service's does; each turn begins with an empty one.
    pub(crate) fn start(&self, folder: &SiteFolder) -> anyhow::Result<Target> {
        start(self.name, &self.write(folder)?)
    }

    /// Starts it from another build.
    pub(crate) fn start_from(&self, program: &Path, folder: &SiteFolder) -> anyhow::Result<Target> {
        start_program(program, self.name, &self.write(folder)?)
    }

    /// Writes the configuration.
    pub(crate) fn write(&self, folder: &SiteFolder) -> anyhow::Result<PathBuf> {
        let (certificate, private_key) = (folder.certificate(), folder.private_key());
        let redis = self.redis.as_ref().map(|url| format!("redis = {url:?}\n")).unwrap_or_default();
        let mut text = format!(
            "[gateway]\nlisten = [\"127.0.0.1:0\"]\nadmin_listen = \"127.0.0.1:0\"\n{redis}window_seconds = {}\n\
             [gateway.databases]\nmax_connections = 20000\nidle_seconds = 600\n\
             [gateway.limits]\nconnections = 20000\nconnections_per_address = 20000\nidle_seconds = 600\n\
             [gateway.tls]\ncertificate = {certificate:?}\nprivate_key = {private_key:?}\n",
            self.window_seconds
        );
        for Tenant { slug, database, requests } in &self.tenants {
            write!(
                text,
                "[[tenant]]\nslug = \"{slug}\"\nname = \"Account {slug}\"\naddress = \"{slug}.example.test\"\n\
                 database = {database:?}\nrequests_per_minute = {requests}\nmax_connections = 8\nmax_in_flight = 1000\n"
            )?;
        }
        let file = folder.path().join(format!("{}.toml", self.name.replace([' ', ','], "-")));
        let draft = file.with_extension("draft");
        fs::write(&draft, text)?;
        fs::rename(draft, &file)?;
        Ok(file)
    }
}

/// Starts a node with a configuration that is there.
pub(crate) fn start(name: &'static str, config: &Path) -> anyhow::Result<Target> {
    start_program(&program(), name, config)
}

fn start_program(program: &Path, name: &'static str, config: &Path) -> anyhow::Result<Target> {
    let log = config.with_extension("log");
    let mut command = bound_to_us(program, "TERM");
    command.args(["serve", "--config"]).arg(config).env_remove("FORMGATE_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(OpenOptions::new().create(true).append(true).open(&log)?);
    let mut process = Process::start(command, "TERM")?;
    let address = process.until(START_LIMIT, || listening(&log))?;
    Ok(Target { name, address, process, log: Some(log) })
}

/// Where it listens, by its log.
fn listening(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let line = text.lines().find(|line| line.contains("\"message\":\"listening\""))?;
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["address"].as_str()?.parse().ok()
}

/// A command of the program.
pub(crate) fn command(config: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).arg("--config").arg(config);
    command
}
