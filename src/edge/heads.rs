//! Notes where the heads of an HTTP/1.1 connection begin.
//!
//! It lies above TLS, where a byte is a byte of a head or a body; which of the two it is, [`Activity`] knows.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;

/// An HTTP/1.1 stream that notes where heads begin.
#[derive(Debug)]
pub(super) struct Heads<IO> {
    io: IO,
    activity: Arc<Activity>,
}

impl<IO> Heads<IO> {
    /// The time for the first head runs from here on.
    pub(super) fn new(io: IO, activity: Arc<Activity>) -> Self {
        activity.await_head();
        Self { io, activity }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Heads<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.head_began();
        }
        poll
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Heads<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
