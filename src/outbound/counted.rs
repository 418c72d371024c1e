//! A connection that counts: the bytes that a receiver has sent on it, the answers among them, and how many connections are
//! open.
//!
//! An answer's head and body have their own limits, but HTTP allows more: interim answers (1xx), PING, SETTINGS and
//! empty frames, session tickets, all without end, and on HTTP/2 also between requests. So each connection has an
//! allowance of bytes. A connection over the allowance of ordinary answers is not used again; one far over it fails.
//! Counts below TLS, so that nothing is exempt.
//!
//! The HTTP client keeps idle connections per host without a limit over all hosts. If too many connections are open, a
//! new one is closed after its first request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http::Extensions;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::answer::{MAX_BODY_BYTES, MAX_HEAD_BYTES};

/// After how many bytes a connection is not used for another request.
///
/// Larger: a receiver that floods its idle connections costs more. Smaller: healthy connections are replaced more
/// often, each with a handshake.
const RETIRE_AFTER: usize = 1024 * 1024;

/// The limits of all connections, and their number.
#[derive(Debug)]
pub(super) struct ConnectionCounter {
    open: AtomicUsize,
    /// How many may be open before new ones are closed after one request.
    max_kept: usize,
    /// After how many bytes a connection fails.
    max_bytes: usize,
}

/// Ends a connection. The HTTP client does not always pass it on; [`Traffic::is_too_much`] recognizes it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the receiver sent too much")]
struct AllowanceExceeded;

/// A counted TCP connection.
#[derive(Debug)]
pub(super) struct CountedStream {
    stream: TcpStream,
    counter: Arc<ConnectionCounter>,
    traffic: Traffic,
    /// Whether it is closed after its first request.
    is_surplus: bool,
}

/// What a connection has received. The HTTP client passes it on with each request that uses the connection.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    bytes: Arc<AtomicUsize>,
    /// The connection's allowance.
    max_bytes: usize,
    was_answered: Arc<AtomicBool>,
}

impl Traffic {
    /// That of the connection that a request uses; `None` if it has none yet.
    pub(super) fn of(connection: &CaptureConnection) -> Option<Self> {
        let mut extras = Extensions::new();
        connection.connection_metadata().as_ref()?.get_extras(&mut extras);
        extras.remove()
    }

    /// Notes that a request on the connection was answered.
    pub(super) fn note_answer(&self) {
        self.was_answered.store(true, Ordering::Relaxed);
    }

    /// Whether a request on the connection was answered before.
    pub(super) fn was_answered(&self) -> bool {
        self.was_answered.load(Ordering::Relaxed)
    }

    /// Whether no further request should use the connection.
    pub(super) fn is_much(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > RETIRE_AFTER
    }

    /// Whether the connection failed because of them.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.max_bytes
    }
}

impl ConnectionCounter {
    /// Keeps `max_kept` connections, on each of which `per_host` requests may be answered at once.
    pub(super) fn new(max_kept: usize, per_host: usize) -> Arc<Self> {
        // Twice an answer: HTTP/2 frames and TLS records add to it.
        let max_bytes = RETIRE_AFTER + per_host * 2 * (MAX_BODY_BYTES + MAX_HEAD_BYTES);
        Arc::new(Self { open: AtomicUsize::new(0), max_kept, max_bytes })
    }

    /// Counts a connection until it is dropped.
    pub(super) fn count(self: &Arc<Self>, stream: TcpStream) -> CountedStream {
        let is_surplus = self.open.fetch_add(1, Ordering::Relaxed) >= self.max_kept;
        let traffic = Traffic { bytes: Arc::default(), max_bytes: self.max_bytes, was_answered: Arc::default() };
        CountedStream { stream, counter: Arc::clone(self), traffic, is_surplus }
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.counter.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(self.traffic.clone());
        if self.is_surplus {
            connected.poison();
        }
        connected
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.traffic.bytes.fetch_add(buf.filled().len() - before, Ordering::Relaxed);
        if self.traffic.is_too_much() {
            return Poll::Ready(Err(io::Error::other(AllowanceExceeded)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
