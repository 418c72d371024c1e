//! What an HTTP/2 connection carries, by the frames that pass on their way from and to hyper.
//!
//! The library answers every request and every PING, but does not ask what they are for: a peer may send 300,000 PING or
//! PRIORITY frames, open and reset requests slowly for ever, and leave its answers lying by giving them no window. So the
//! nine bytes before each frame (RFC 9113, section 4.1) are read along, in both directions, and [`Activity`] is told what
//! served a request, and which answers are on their way.
//!
//! Nothing is changed or held back, and nothing is parsed but frame headers and the length of padding; what is malformed
//! is the library's to refuse. It lies above TLS.

mod reader;

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::reader::{DATA, Frame, HEADERS, RST_STREAM, Reader};
use super::activity::{Abuse, Activity};

/// The most requests that may look open at once. The library refuses those over its own limit, but has yet to do so
/// when they are counted here.
///
/// Larger: a peer has us remember more. Smaller than a few times [`super::Limits::streams`]: a burst of an honest
/// caller that did not yet read our settings ends its connection.
const OPEN: usize = 4096;

/// An HTTP/2 stream that is read along.
#[derive(Debug)]
pub(super) struct Frames<IO> {
    io: IO,
    incoming: Reader,
    outgoing: Reader,
    requests: Requests,
}

/// The requests of a connection.
#[derive(Debug)]
struct Requests {
    activity: Arc<Activity>,
    /// Those whose answers did not end.
    open: HashSet<u32>,
    newest: u32,
    resets: u64,
    /// Resets of requests that were not answered.
    early: u64,
    resets_allowed: u64,
}

impl Requests {
    fn came(&mut self, frame: Frame) {
        if frame.is_of_a_message() {
            self.activity.asked(frame.content);
        }
        // A HEADERS frame of a request that was there before brings its trailers.
        if frame.kind == HEADERS && frame.stream > self.newest {
            self.newest = frame.stream;
            self.open.insert(frame.stream);
        }
        if frame.kind == RST_STREAM {
            self.resets += 1;
            if self.open.remove(&frame.stream) {
                self.early += 1;
            }
            self.activity.answer_ended(frame.stream);
        }
    }

    fn went(&mut self, frame: Frame) {
        if frame.is_of_a_message() {
            self.activity.answered(frame.content);
        }
        if frame.ends() || frame.kind == RST_STREAM {
            self.open.remove(&frame.stream);
            self.activity.answer_ended(frame.stream);
        } else if matches!(frame.kind, DATA | HEADERS) {
            self.activity.answering(frame.stream);
        }
    }

    fn abuse(&self) -> Option<Abuse> {
        let resets = self.resets > self.resets_allowed && 2 * self.early > self.resets;
        (resets || self.open.len() > OPEN).then_some(Abuse::Resets)
    }
}

impl<IO> Frames<IO> {
    /// Reads along from the preface on.
    pub(super) fn new(io: IO, activity: Arc<Activity>, resets_allowed: u64) -> Self {
        let requests = Requests { activity, open: HashSet::new(), newest: 0, resets: 0, early: 0, resets_allowed };
        Self { io, incoming: Reader::after_preface(), outgoing: Reader::default(), requests }
    }

    fn went(&mut self, bytes: &[u8]) {
        let Self { outgoing, requests, .. } = self;
        outgoing.read(bytes, |frame| requests.went(frame));
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Frames<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let requests = &mut this.requests;
        this.incoming.read(&buf.filled()[before..], |frame| requests.came(frame));
        match requests.abuse() {
            Some(abuse) => {
                requests.activity.abused(abuse);
                Poll::Ready(Err(abuse.into()))
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Frames<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.went(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            self.went(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
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
