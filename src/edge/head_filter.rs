//! Passes the bytes of an HTTP/1.1 connection to hyper: heads only when they are complete, and refused heads
//! never.
//!
//! A head that [`Framing`] refuses is replaced by a request with the target `*`, and its fault is kept in
//! [`RefusedHead`]. So the gate answers it like any other request, after the requests before it, and hyper closes the
//! connection in good order. Nothing after it is read. This stream sits above TLS.
//!
//! In the common case, a read without a partial head, nothing is copied: hyper finds the bytes in its own buffer.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::framing::{Framing, Scanned, Stop};
use super::pass_through::pass_through;
use crate::gate::HeadFault;

/// How many bytes of a partial head are read at a time.
///
/// Larger: more stack space. Smaller: more reads.
const READ_SIZE: usize = 4 * 1024;

/// Why the last head of a connection was refused, if it was.
#[derive(Clone, Debug, Default)]
pub(super) struct RefusedHead(Arc<OnceLock<HeadFault>>);

impl RefusedHead {
    /// Attaches the fault to a request that replaces a refused one, for the gate.
    pub(super) fn mark<B>(&self, request: &mut Request<B>) {
        if let (Some(fault), "*") = (self.0.get(), request.uri().path()) {
            request.extensions_mut().insert(*fault);
        }
    }
}

/// An HTTP/1.1 stream from which hyper reads only valid heads.
#[derive(Debug)]
pub(super) struct HeadFilter<IO> {
    io: IO,
    activity: Arc<Activity>,
    framing: Framing,
    refused: RefusedHead,
    /// Bytes that have arrived and can't pass yet.
    held: BytesMut,
    /// Bytes that pass as soon as the reader has room.
    passing: BytesMut,
    ended: Option<ReadEnd>,
}

/// Why no more is read.
#[derive(Clone, Copy, Debug)]
enum ReadEnd {
    /// The response to a refused head has to be written first.
    RefusedHead,
    BadChunk,
}

impl<IO> HeadFilter<IO> {
    /// Starts the timeout of the first head.
    pub(super) fn new(io: IO, activity: Arc<Activity>, framing: Framing) -> Self {
        activity.await_head();
        Self {
            io,
            activity,
            framing,
            refused: RefusedHead::default(),
            held: BytesMut::new(),
            passing: BytesMut::new(),
            ended: None,
        }
    }

    /// Where the reason for a refusal will be.
    pub(super) fn refused(&self) -> RefusedHead {
        self.refused.clone()
    }

    /// Scans the held bytes as far as possible.
    fn scan_held(&mut self) {
        while self.ended.is_none() {
            let (scanned, stop) = self.framing.scan(&self.held);
            self.note(scanned);
            self.passing.unsplit(self.held.split_to(scanned.passed));
            if !self.continue_after(stop) {
                break;
            }
        }
    }

    /// Handles the bytes that did not pass. Returns whether bytes after them may.
    fn continue_after(&mut self, stop: Stop) -> bool {
        match stop {
            Stop::End => {}
            Stop::Partial => self.activity.head_began(),
            Stop::Blank(length) => {
                self.held.advance(length);
                return true;
            }
            Stop::BadChunk => self.ended = Some(ReadEnd::BadChunk),
            Stop::Refused(head) => {
                self.ended = Some(ReadEnd::RefusedHead);
                self.held.clear();
                self.activity.head_ended();
                // The first fault is the only one: nothing is read after it.
                let _ = self.refused.0.set(head.fault);
                let method = if head.to_head { "HEAD" } else { "GET" };
                self.passing.extend_from_slice(format!("{method} * HTTP/1.1\r\nconnection: close\r\n\r\n").as_bytes());
            }
        }
        false
    }

    fn note(&self, scanned: Scanned) {
        match scanned {
            Scanned { payload: 0, .. } => {}
            Scanned { heads: 0, payload, .. } => self.activity.note_request_bytes(payload),
            Scanned { payload, .. } => self.activity.note_head_end(payload),
        }
    }
}

impl<IO: AsyncRead + Unpin> HeadFilter<IO> {
    /// Reads more into the held bytes; returns false at the end of the stream.
    fn poll_hold(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut scratch = [0; READ_SIZE];
        let mut read = ReadBuf::new(&mut scratch);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        self.held.extend_from_slice(read.filled());
        Poll::Ready(Ok(!read.filled().is_empty()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for HeadFilter<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.passing.is_empty() {
                let length = this.passing.len().min(buf.remaining());
                buf.put_slice(&this.passing.split_to(length));
                return Poll::Ready(Ok(()));
            }
            match this.ended {
                None => {}
                Some(ReadEnd::RefusedHead) => return Poll::Pending,
                Some(ReadEnd::BadChunk) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a bad chunk")));
                }
            }
            if this.held.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
                let received = &buf.filled()[before..];
                if received.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let (scanned, stop) = this.framing.scan(received);
                this.note(scanned);
                if stop == Stop::End {
                    return Poll::Ready(Ok(()));
                }
                this.held.extend_from_slice(&received[scanned.passed..]);
                buf.set_filled(before + scanned.passed);
                if this.continue_after(stop) {
                    this.scan_held();
                }
                if scanned.passed > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                if !ready!(this.poll_hold(cx))? {
                    return Poll::Ready(Ok(()));
                }
                this.scan_held();
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for HeadFilter<IO> {
    pass_through!(poll_write, is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        self.activity.note_response_bytes(written);
        Poll::Ready(Ok(written))
    }
}
