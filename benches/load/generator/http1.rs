//! HTTP/1.1: one request after the other on a connection that is kept as long as the server keeps it.

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Caller, Turn};
use crate::order::Request;

/// Longer heads than any of the servers here sends.
const FIELDS: usize = 32;

/// How much is read at once: a TLS record, which a page of submissions has several of.
const RECORD: usize = 16 * 1024;

/// A connection, once there is one.
#[derive(Default)]
pub(super) struct Http1 {
    stream: Option<TlsStream<TcpStream>>,
    written: Vec<u8>,
    read: Vec<u8>,
}

/// What a head says of the answer.
struct Head {
    status: u16,
    /// Bytes of the head, and of the body behind it.
    length: usize,
    body: usize,
    closes: bool,
}

impl Caller for Http1 {
    async fn ask(&mut self, turn: &Turn, request: usize) -> anyhow::Result<u16> {
        let request = &turn.order.requests[request];
        if self.stream.is_none() {
            self.stream = Some(turn.dialer.dial(&request.host).await?);
        }
        self.write(request);
        let stream = self.stream.as_mut().expect("it was opened");
        stream.write_all(&self.written).await?;
        let head = read_head(stream, &mut self.read).await?;
        let mut behind = self.read.len() - head.length;
        while behind < head.body {
            self.read.clear();
            let some = stream.read_buf(&mut self.read).await?;
            ensure!(some > 0, "the connection was closed within an answer");
            behind += some;
        }
        ensure!(behind == head.body, "more than one answer came");
        if head.closes {
            self.stream = None;
        }
        Ok(head.status)
    }

    fn close(&mut self) {
        self.stream = None;
    }
}

impl Http1 {
    fn write(&mut self, request: &Request) {
        let Request { method, host, path, token, body } = request;
        let parts = &mut self.written;
        parts.clear();
        let mut put = |texts: &[&str]| texts.iter().for_each(|text| parts.extend_from_slice(text.as_bytes()));
        put(&[method, " ", path, " HTTP/1.1\r\nhost: ", host, "\r\n"]);
        if let Some(token) = token {
            put(&["authorization: Bearer ", token, "\r\n"]);
        }
        if let Some(body) = body {
            put(&["content-type: application/json\r\ncontent-length: ", &body.len().to_string(), "\r\n\r\n", body]);
        } else {
            put(&["\r\n"]);
        }
    }
}

async fn read_head(stream: &mut TlsStream<TcpStream>, read: &mut Vec<u8>) -> anyhow::Result<Head> {
    read.clear();
    read.reserve(RECORD);
    loop {
        let some = stream.read_buf(read).await?;
        ensure!(some > 0, "the connection was closed before an answer");
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        if let httparse::Status::Complete(length) = response.parse(read)? {
            let status = response.code.context("a whole head has a status")?;
            let field = |name: &str| response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
            let body =
                field("content-length").map(|field| std::str::from_utf8(field.value)?.parse().context("a length"));
            let closes = field("connection").is_some_and(|field| field.value.eq_ignore_ascii_case(b"close"));
            ensure!(body.is_some() || field("transfer-encoding").is_none(), "this reader knows no chunks");
            return Ok(Head { status, length, body: body.transpose()?.unwrap_or(0), closes });
        }
    }
}
