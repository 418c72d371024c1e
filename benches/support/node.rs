//! The real program on the accounts, and what the kernel and its metrics say of it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::{Process, START_LIMIT, bound_to_us};
use crate::world::World;

pub(crate) struct Node {
    pub(crate) process: Process,
    /// Where callers connect.
    pub(crate) address: SocketAddr,
    operator: SocketAddr,
}

/// What a node has taken, and what it holds, at a moment.
pub(crate) struct Measured {
    pub(crate) cpu: Duration,
    /// Resident memory, in megabytes.
    pub(crate) resident: f64,
    pub(crate) threads: usize,
    pub(crate) files: usize,
    /// Connections that were opened so far, and that are open.
    pub(crate) opened: f64,
    pub(crate) open: f64,
}

impl Node {
    pub(crate) fn start(world: &World, environment: &[(&str, &Path)]) -> anyhow::Result<Self> {
        let log = world.path("log");
        let mut command = bound_to_us(&world.program, "TERM");
        command.args(["serve", "--config"]).arg(world.config()).envs(environment.iter().copied());
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut process = Process::start(command, "TERM")?;
        let mut listening = |message| process.until(START_LIMIT, || address(&log, message).ok());
        let (address, operator) = (listening("listening")?, listening("admin listening")?);
        Ok(Self { process, address, operator })
    }

    pub(crate) async fn measure(&self) -> anyhow::Result<Measured> {
        let metrics = self.metrics().await?;
        let metric = |series: &str| -> anyhow::Result<f64> {
            let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            Ok(value.map(str::parse).transpose()?.unwrap_or_default())
        };
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let field = |key: &str| -> anyhow::Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).context("no such field")?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Measured {
            cpu: self.process.cpu()?,
            resident: field("VmRSS:")? * 1024.0 / 1e6,
            threads: field("Threads:")? as usize,
            files: fs::read_dir(format!("/proc/{}/fd", self.process.id()))?.count(),
            opened: metric(r#"formgate_database_connections_opened_total{database="sqlite"}"#)?
                + metric(r#"formgate_database_connections_opened_total{database="postgres"}"#)?,
            open: metric(r#"formgate_database_connections{database="sqlite",state="open"}"#)?,
        })
    }

    /// The text of its metrics.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.operator).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }
}

/// Where a node listens, by its log.
fn address(log: &Path, message: &str) -> anyhow::Result<SocketAddr> {
    let text = fs::read_to_string(log)?;
    let line = text.lines().find(|line| line.contains(&format!("\"message\":\"{message}\"")));
    let line: serde_json::Value = serde_json::from_str(line.context("it does not listen yet")?)?;
    Ok(line["address"].as_str().context("an address")?.parse()?)
}
