//! The way of an HTTP/1.1 connection's bytes to hyper: heads pass whole, and refused ones not at all.
//!
//! A head that [`Framing`] refuses is replaced by a request with the target `*` and the fault beside it ([`Refused`]), so
//! that the gate answers it like any other, in its turn behind the requests before it, and hyper closes the connection
//! in good order. Nothing after it is read. It lies above TLS.
//!
//! In the common case, a read that holds whole heads, nothing is copied: the bytes lie where hyper wants them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::framing::{Followed, Framing, Stop};
use super::pass_through::pass_through;
use crate::gate::HeadFault;

/// How much of a head that came in part is read at a time.
const PIECE: usize = 4 * 1024;

/// Why a connection's last head was refused, once one was.
#[derive(Clone, Debug, Default)]
pub(super) struct Refused(Arc<OnceLock<HeadFault>>);

impl Refused {
    /// Tells the gate of a request that stands for a refused one.
    pub(super) fn mark<B>(&self, request: &mut Request<B>) {
        if let (Some(fault), "*") = (self.0.get(), request.uri().path()) {
            request.extensions_mut().insert(*fault);
        }
    }
}

/// An HTTP/1.1 stream of which only sound heads are read.
#[derive(Debug)]
pub(super) struct Heads<IO> {
    io: IO,
    activity: Arc<Activity>,
    framing: Framing,
    refused: Refused,
    /// What came and can't pass yet.
    held: BytesMut,
    /// What may pass and found no room.
    passing: BytesMut,
    ended: Option<Ended>,
}

/// Why nothing more is read.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// The answer to a refused head is to be written first.
    Refused,
    BadChunk,
}

impl<IO> Heads<IO> {
    /// The time for the first head runs from here on.
    pub(super) fn new(io: IO, activity: Arc<Activity>, head_bytes: usize) -> Self {
        activity.await_head();
        Self {
            io,
            activity,
            framing: Framing::new(head_bytes),
            refused: Refused::default(),
            held: BytesMut::new(),
            passing: BytesMut::new(),
            ended: None,
        }
    }

    /// Where it is said why a head was refused.
    pub(super) fn refused(&self) -> Refused {
        self.refused.clone()
    }

    /// Follows what is held as far as it goes.
    fn follow_held(&mut self) {
        while self.ended.is_none() {
            let (followed, stop) = self.framing.follow(&self.held);
            self.note(followed);
            self.passing.unsplit(self.held.split_to(followed.passed));
            if !self.go_on_after(stop) {
                break;
            }
        }
    }

    /// Deals with the bytes that did not pass; whether the others may.
    fn go_on_after(&mut self, stop: Stop) -> bool {
        match stop {
            Stop::End => {}
            Stop::Partial => self.activity.head_began(),
            Stop::Blank(length) => {
                self.held.advance(length);
                return true;
            }
            Stop::BadChunk => self.ended = Some(Ended::BadChunk),
            Stop::Refused(fault) => {
                self.ended = Some(Ended::Refused);
                self.held.clear();
                self.activity.head_ended();
                // The first fault is the only one: nothing is read behind it.
                let _ = self.refused.0.set(fault.why);
                let method = if fault.to_head { "HEAD" } else { "GET" };
                self.passing.extend_from_slice(format!("{method} * HTTP/1.1\r\nconnection: close\r\n\r\n").as_bytes());
            }
        }
        false
    }

    fn note(&self, followed: Followed) {
        match followed {
            Followed { payload: 0, .. } => {}
            Followed { heads: 0, payload, .. } => self.activity.asked(payload),
            Followed { payload, .. } => self.activity.asked_with_head(payload),
        }
    }
}

impl<IO: AsyncRead + Unpin> Heads<IO> {
    /// Reads more of what is held; false at the end of the stream.
    fn poll_hold(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut piece = [0; PIECE];
        let mut read = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        self.held.extend_from_slice(read.filled());
        Poll::Ready(Ok(!read.filled().is_empty()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Heads<IO> {
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
                Some(Ended::Refused) => return Poll::Pending,
                Some(Ended::BadChunk) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a bad chunk")));
                }
            }
            if this.held.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
                let came = &buf.filled()[before..];
                if came.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let (followed, stop) = this.framing.follow(came);
                this.note(followed);
                if stop == Stop::End {
                    return Poll::Ready(Ok(()));
                }
                this.held.extend_from_slice(&came[followed.passed..]);
                buf.set_filled(before + followed.passed);
                if this.go_on_after(stop) {
                    this.follow_held();
                }
                if followed.passed > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                if !ready!(this.poll_hold(cx))? {
                    return Poll::Ready(Ok(()));
                }
                this.follow_held();
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Heads<IO> {
    pass_through!(poll_write, is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        self.activity.answered(written);
        Poll::Ready(Ok(written))
    }
}
