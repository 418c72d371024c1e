//! What is written while an HTTP/2 connection ends: hyper's last frames, and the GOAWAYs among them.
//!
//! hyper's graceful shutdown is not used. It sends GOAWAY and PING together, and accepts no request that arrives
//! after the PING acknowledgement. Python's `h2` fails on the PING, and nghttp2 (Node, curl) acknowledges it
//! before it sends its queued requests. What is done instead depends on how the client reacts to a GOAWAY
//! ([`DueGoaway`]). Nothing is written after the last GOAWAY, because some clients treat any further frame as an
//! error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use super::late_requests::LateRequests;
use crate::config::ConnectionLimits;
use crate::edge::goaway::DueGoaway;

const GOAWAY: u8 = 7;

/// A complete PING frame.
const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The largest stream id: a GOAWAY with it refuses no request.
const LARGEST: u32 = u32::MAX >> 1;

/// The bytes to be written before the connection is closed.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// Accepted from hyper and not written yet.
    held: BytesMut,
    /// The delay before a GOAWAY that warns, or that comes with a response.
    pause: Option<Pin<Box<Sleep>>>,
    /// The requests that are being discarded, while that lasts.
    late_requests: Option<Box<LateRequests>>,
    is_warned: bool,
    /// Whether the last response has been held back.
    has_held_last_response: bool,
    /// Whether the last GOAWAY has been appended.
    is_over: bool,
}

impl Shutdown {
    /// Whether hyper's bytes pass unchanged: no GOAWAY is due, or the one that warns has been written.
    pub(super) fn passes(&self, due: DueGoaway) -> bool {
        match due {
            DueGoaway::None => true,
            DueGoaway::Warning => self.is_warned && self.held.is_empty(),
            DueGoaway::WithResponse | DueGoaway::Now => false,
        }
    }

    /// Whether the last GOAWAY has been appended, after which hyper's bytes are discarded.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Accepts bytes from hyper.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Appends the GOAWAY that warns, after a pause in which nothing is written. A client that reads a response
    /// together with the GOAWAY may have submitted its next request in between, and nghttp2 then drops that
    /// request unsent.
    pub(super) fn poll_warning(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_warned {
            ready!(self.poll_pause(cx));
            self.is_warned = true;
            self.append(LARGEST);
        }
        Poll::Ready(())
    }

    /// Holds back the last response for a moment, once. A client that sends requests from several tasks may have
    /// received each response before it sent the next request; by the end of the pause, another one has arrived.
    pub(super) fn poll_pause_before_response(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.has_held_last_response {
            ready!(self.poll_pause(cx));
            self.has_held_last_response = true;
        }
        Poll::Ready(())
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(ConnectionLimits::PAUSE)));
        ready!(pause.as_mut().poll(cx));
        self.pause = None;
        Poll::Ready(())
    }

    /// Discards requests that the last GOAWAY will refuse, until the peer has sent them and has its responses.
    /// `note` returns how many requests end in some bytes. Until as many have arrived as the peer had open at
    /// once, the wait is longer.
    ///
    /// The PINGs are for httpcore, in which one task of a connection reads for all. A task whose response was read
    /// by another task takes it only when that task has read something more, and loses it if that is the GOAWAY.
    /// Each PING lets one task continue, provided that it arrives in a TLS record of its own.
    pub(super) fn poll_late_requests<IO: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        expected: usize,
        mut note: impl FnMut(&[u8]) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut late_requests = self.late_requests.take().unwrap_or_else(|| Box::new(LateRequests::new(expected)));
        let quiet = self.poll_discarded(&mut late_requests, io, expected, &mut note, cx);
        self.late_requests = Some(late_requests);
        quiet
    }

    fn poll_discarded<IO: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        late_requests: &mut LateRequests,
        io: &mut IO,
        expected: usize,
        note: &mut impl FnMut(&[u8]) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            loop {
                ready!(self.poll_write(io, cx))?;
                if !late_requests.takes_ping() {
                    break;
                }
                self.held.extend_from_slice(&PING);
            }
            ready!(late_requests.poll_quiet(io, expected, note, cx))?;
            if late_requests.is_counted() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Whether requests are being discarded.
    pub(super) fn is_discarding(&self) -> bool {
        self.late_requests.is_some()
    }

    /// Appends the last GOAWAY, which names the newest request that was processed.
    pub(super) fn finish(&mut self, newest: u32) {
        if !self.is_over {
            self.is_over = true;
            self.append(newest);
        }
    }

    /// Appends a GOAWAY without an error (RFC 9113, section 6.8).
    fn append(&mut self, newest: u32) {
        self.held.extend_from_slice(&[0, 0, 8, GOAWAY, 0, 0, 0, 0, 0]);
        self.held.extend_from_slice(&newest.to_be_bytes());
        self.held.extend_from_slice(&[0; 4]);
    }

    /// Writes the held bytes.
    pub(super) fn poll_write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            match ready!(Pin::new(&mut *io).poll_write(cx, &self.held))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.held.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}
