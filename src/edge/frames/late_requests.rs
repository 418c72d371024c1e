//! Requests that cross the shutdown of a connection: they are read and discarded, and the last GOAWAY refuses
//! them.
//!
//! Owns how long to wait for them. The peer must not be sending a request when the GOAWAY arrives, but it may have
//! none to send, or send without end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::ConnectionLimits;

/// How many bytes are discarded per read.
///
/// Larger: more stack space. Smaller: more reads.
const SCRATCH: usize = 4 * 1024;

/// Requests that arrive after the last one that is processed.
#[derive(Debug)]
pub(super) struct LateRequests {
    silence: Pin<Box<Sleep>>,
    until: Instant,
    /// The number that arrived completely.
    requests: usize,
    /// The number of PINGs still to be sent.
    pings: usize,
    /// Whether the number of PINGs was set again by the requests that arrived.
    is_counted: bool,
}

impl LateRequests {
    /// Expects as many requests as the peer had open at once.
    pub(super) fn new(expected: usize) -> Self {
        let until = Instant::now() + ConnectionLimits::LATE_REQUEST_WAIT_TOTAL;
        let silence = Box::pin(sleep(ConnectionLimits::LATE_REQUEST_WAIT));
        Self { silence, until, requests: 0, pings: expected, is_counted: false }
    }

    /// Takes one of the PINGs to send; false if there is none.
    pub(super) fn takes_ping(&mut self) -> bool {
        let is_due = self.pings > 0;
        self.pings = self.pings.saturating_sub(1);
        is_due
    }

    /// Whether everything is done once the peer is quiet. The first time it is not: only then is the number of the
    /// peer's tasks known.
    pub(super) fn is_counted(&mut self) -> bool {
        if !self.is_counted {
            (self.is_counted, self.pings) = (true, self.requests + 1);
            self.wait(ConnectionLimits::PAUSE);
            return false;
        }
        true
    }

    fn wait(&mut self, silence: Duration) {
        self.silence.as_mut().reset(self.until.min(Instant::now() + silence));
    }

    /// Completes when the peer has sent nothing for a while, or has sent for too long.
    pub(super) fn poll_quiet<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        expected: usize,
        note: &mut impl FnMut(&[u8]) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = [0; SCRATCH];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            let Poll::Ready(read) = Pin::new(&mut *io).poll_read(cx, &mut buf) else {
                return self.silence.as_mut().poll(cx).map(Ok);
            };
            read?;
            if buf.filled().is_empty() || Instant::now() >= self.until {
                return Poll::Ready(Ok(()));
            }
            self.requests += note(buf.filled());
            let is_waited_for = self.requests < expected && !self.is_counted;
            self.wait(if is_waited_for { ConnectionLimits::LATE_REQUEST_WAIT } else { ConnectionLimits::PAUSE });
        }
    }
}
