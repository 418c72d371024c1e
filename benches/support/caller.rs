//! A connection of the bench to the node, over which it sends one request after another.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Caller {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends a request and reads the whole response. Returns its status.
    pub(crate) async fn call(&mut self, request: &str) -> anyhow::Result<u16> {
        self.stream.write_all(request.as_bytes()).await?;
        self.received.clear();
        loop {
            anyhow::ensure!(self.stream.read_buf(&mut self.received).await? > 0, "the connection was closed");
            let Some(end) = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.received[..end])?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("a length")?.parse()?;
            if self.received.len() >= end + 4 + length {
                return Ok(head.get(9..12).context("a status")?.parse()?);
            }
        }
    }
}
