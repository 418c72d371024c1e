//! A server that is measured.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::process::Process;

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
