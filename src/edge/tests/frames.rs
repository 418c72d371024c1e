//! An HTTP/2 peer that sends single frames, for what no client library does.

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::client::{Hello, soon};
use super::fixture::Fixture;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// The setting for the initial window of each stream: how much of a response may be sent before a window update.
pub(super) const INITIAL_WINDOW: u8 = 4;

/// One frame as bytes.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal header field without indexing (RFC 7541, section 6.2.2).
pub(super) fn field(name: &str, value: &str) -> Vec<u8> {
    [&[0], &*string(name), &*string(value)].concat()
}

fn string(text: &str) -> Vec<u8> {
    let mut length = text.len();
    let mut bytes = Vec::new();
    if length < 127 {
        bytes.push(u8::try_from(length).unwrap());
    } else {
        bytes.push(127);
        length -= 127;
        while length >= 128 {
            bytes.push(u8::try_from(length % 128).unwrap() | 128);
            length /= 128;
        }
        bytes.push(u8::try_from(length).unwrap());
    }
    bytes.extend(text.as_bytes());
    bytes
}

/// The fields of a request, without `:method`.
pub(super) fn target(path: &str) -> Vec<u8> {
    [field(":scheme", "https"), field(":path", path), field(":authority", "acme.example.com")].concat()
}

/// The fields of a GET.
pub(super) fn get(path: &str) -> Vec<u8> {
    [field(":method", "GET"), target(path)].concat()
}

/// A received frame.
#[derive(Debug)]
pub(super) struct TestFrame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

/// An HTTP/2 connection that enforces no rules.
pub(super) struct Peer {
    pub(super) writing: WriteHalf<TlsStream<TcpStream>>,
    pub(super) reading: ReadHalf<TlsStream<TcpStream>>,
}

impl Peer {
    /// Sends the preface and no settings.
    pub(super) async fn connect(fixture: &Fixture) -> Self {
        Self::connect_with(fixture, &[]).await
    }

    /// Sends the preface and the settings, given as the payload of the frame.
    pub(super) async fn connect_with(fixture: &Fixture, settings: &[u8]) -> Self {
        let stream = Hello::to("acme.example.com").offering(&["h2"]).shake(fixture).await.unwrap();
        let (reading, writing) = tokio::io::split(stream);
        let mut peer = Self { writing, reading };
        peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        peer.send(&frame(SETTINGS, 0, 0, settings)).await.unwrap();
        peer
    }

    /// Sends bytes; fails if the gateway has closed the connection.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        soon(self.writing.write_all(bytes)).await?;
        soon(self.writing.flush()).await
    }

    /// Opens a stream with a complete request.
    pub(super) async fn request(&mut self, stream: u32, fields: &[u8]) -> std::io::Result<()> {
        self.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)).await
    }

    /// The next frame; none if the gateway has closed the connection.
    pub(super) async fn next(&mut self) -> Option<TestFrame> {
        soon(async {
            let mut header = [0; 9];
            self.reading.read_exact(&mut header).await.ok()?;
            let [a, b, c, kind, flags, stream @ ..] = header;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.reading.read_exact(&mut payload).await.ok()?;
            Some(TestFrame { kind, flags, stream: u32::from_be_bytes(stream), payload })
        })
        .await
    }

    /// Reads up to the first frame that fits; none if the gateway closes the connection before.
    pub(super) async fn until(&mut self, fits: impl Fn(&TestFrame) -> bool) -> Option<TestFrame> {
        loop {
            let frame = self.next().await?;
            if fits(&frame) {
                return Some(frame);
            }
        }
    }

    /// The encoded head of the response on a stream, once the response has ended. Its status is an index for the
    /// common ones, otherwise text at the end of the first field.
    pub(super) async fn answer(&mut self, stream: u32) -> Option<Vec<u8>> {
        let head = self.until(|frame| frame.stream == stream && matches!(frame.kind, HEADERS | RST_STREAM)).await?;
        if head.kind == HEADERS && head.flags & END_STREAM == 0 {
            self.until(|frame| frame.stream == stream && frame.flags & END_STREAM != 0).await?;
        }
        Some(head.payload)
    }

    /// Sends the same bytes repeatedly until the gateway closes the connection. Returns how many were sent. Reads
    /// all the while, like a peer that wants responses.
    pub(super) async fn flood(self, bytes: &[u8], most: usize) -> usize {
        let Self { mut writing, mut reading } = self;
        let reader = tokio::spawn(async move {
            let mut scratch = vec![0; 64 * 1024];
            while let Ok(1..) = reading.read(&mut scratch).await {}
        });
        let mut sent = 0;
        while sent < most && !reader.is_finished() && soon(writing.write_all(bytes)).await.is_ok() {
            sent += bytes.len();
        }
        let _ = soon(writing.flush()).await;
        if sent < most {
            soon(reader).await.unwrap();
        } else {
            reader.abort();
        }
        sent
    }
}
