//! The real program, and what the system says of it.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certified::Certified;

/// The kernel counts processor time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

pub(crate) struct Node {
    process: Child,
    log: std::path::PathBuf,
}

impl Node {
    pub(crate) fn start(world: &Certified) -> anyhow::Result<Self> {
        let log = world.folder().join("log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_formgate"), "serve", "--config"]);
        command.arg(world.config()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        Ok(Self { process: command.spawn()?, log })
    }

    /// A value of `/proc/PID/status` in megabytes.
    pub(crate) fn memory(&self, key: &str) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key)).context("no such key")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
    }

    /// The processor time that it has taken, of all threads.
    pub(crate) fn processor(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let fields: Vec<_> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
        let ticks: u32 = fields[11].parse::<u32>()? + fields[12].parse::<u32>()?;
        Ok(TICK * ticks)
    }

    /// Waits until it takes no processor time any more; what it had taken until then.
    pub(crate) async fn settle(&self) -> anyhow::Result<Duration> {
        loop {
            let before = self.processor()?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            if self.processor()? - before <= TICK {
                return Ok(before);
            }
        }
    }

    pub(crate) fn hang_up(&self) -> anyhow::Result<()> {
        let status = Command::new("kill").args(["-HUP", &self.process.id().to_string()]).status()?;
        anyhow::ensure!(status.success(), "no signal was sent");
        Ok(())
    }

    pub(crate) async fn reloads(&self) -> anyhow::Result<u64> {
        Ok(self.metric("formgate_config_reloads_total{result=\"done\"}").await? as u64)
    }

    /// The value of a series.
    pub(crate) async fn metric(&self, series: &str) -> anyhow::Result<f64> {
        let mut stream = TcpStream::connect(address(&self.log, "admin listening")?).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.context("no such series")?.parse()?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It holds nothing that would be lost.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where a node listens, by its log.
pub(crate) fn address(log: &std::path::Path, message: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(log)?;
    let line = text.lines().find(|line| line.contains(&format!("\"message\":\"{message}\"")));
    let line: serde_json::Value = serde_json::from_str(line.context("it does not listen yet")?)?;
    Ok(line["address"].as_str().context("an address")?.to_owned())
}
