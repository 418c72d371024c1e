//! The TCP side of a connection: records that bytes arrive and are accepted, and closes without losing the last
//! response.
//!
//! A refusal such as 413 is often written while the client is still sending the body. If a socket is closed while
//! its peer still sends, the kernel replies with a reset, and the peer's kernel or library discards the unread
//! response (RFC 9112, section 9.6). So a shutdown here closes the sending half, then reads and discards until the
//! peer closes too, falls silent, or exhausts [`ConnectionLimits::linger_total`] or
//! [`ConnectionLimits::linger_bytes`].
//!
//! This stream sits below TLS: the bytes are discarded without being decrypted, and hyper and rustls only call
//! `poll_shutdown`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::{Abuse, Activity};
use super::pass_through::pass_through;
use crate::config::ConnectionLimits;

/// How many bytes are discarded per read.
///
/// Larger: more stack space. Smaller: more system calls.
const SCRATCH: usize = 16 * 1024;

/// A socket that closes in two steps.
#[derive(Debug)]
pub(super) struct Socket<IO> {
    io: IO,
    activity: Arc<Activity>,
    limits: ConnectionLimits,
    lingering: Option<Lingering>,
}

/// The second step of closing, after our half is closed.
#[derive(Debug)]
struct Lingering {
    silence: Pin<Box<Sleep>>,
    limit: Duration,
    until: Instant,
    left: usize,
}

impl<IO> Socket<IO> {
    /// Wraps an accepted stream.
    pub(super) fn new(io: IO, activity: Arc<Activity>, limits: ConnectionLimits) -> Self {
        Self { io, activity, limits, lingering: None }
    }

    /// Records that the kernel gave up on the peer because of `TCP_USER_TIMEOUT` (`Acceptor::new`). hyper does not
    /// report the error of an idle connection.
    fn note_stall(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.activity.note_abuse(Abuse::Stall);
        }
    }

    fn noted(&self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &poll {
            Poll::Ready(Ok(1..)) => self.activity.note_write(),
            Poll::Pending => self.activity.note_blocked_write(),
            Poll::Ready(Err(error)) => self.note_stall(error),
            Poll::Ready(Ok(0)) => {}
        }
        poll
    }
}

impl Lingering {
    fn new(limit: Duration, limits: &ConnectionLimits) -> Self {
        let now = Instant::now();
        let silence = Box::pin(sleep_until(now + limit));
        Self { silence, limit, until: now + limits.linger_total, left: limits.linger_bytes }
    }

    /// Completes when nothing that the peer still does matters.
    fn poll_over<IO: AsyncRead + Unpin>(&mut self, io: &mut IO, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; SCRATCH];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *io).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    let now = Instant::now();
                    self.left = self.left.saturating_sub(buf.filled().len());
                    if self.left == 0 || now >= self.until {
                        return Poll::Ready(());
                    }
                    self.silence.as_mut().reset(self.until.min(now + self.limit));
                }
                Poll::Ready(Ok(()) | Err(_)) => return Poll::Ready(()),
                Poll::Pending => return self.silence.as_mut().poll(cx),
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Socket<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        read.inspect_err(|error| self.note_stall(error))?;
        self.activity.note_received(buf.filled().len() - before)?;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<IO> {
    pass_through!(poll_write, is_write_vectored, poll_flush);

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // For a single buffer, `send` costs the kernel less than `writev`.
        let poll = match bufs {
            [piece] => Pin::new(&mut self.io).poll_write(cx, piece),
            pieces => Pin::new(&mut self.io).poll_write_vectored(cx, pieces),
        };
        self.noted(poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            let Some(limit) = this.activity.note_closed() else { return Poll::Ready(Ok(())) };
            this.lingering = Some(Lingering::new(limit, &this.limits));
        }
        let Self { io, lingering, .. } = this;
        let lingering = lingering.as_mut().expect("it began above");
        lingering.poll_over(io, cx).map(Ok)
    }
}
