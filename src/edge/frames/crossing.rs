//! Requests that cross the end of a connection: they are read and dropped, and the last GOAWAY refuses them.
//!
//! Owns how long they are waited for. The peer must not be sending one when the GOAWAY arrives; but it may also have none,
//! or send without end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::ConnectionLimits;

/// How much is discarded at a time.
const SCRATCH: usize = 4 * 1024;

/// Requests that arrive after the last one that is processed.
#[derive(Debug)]
pub(super) struct Crossing {
    silence: Pin<Box<Sleep>>,
    until: Instant,
    /// How many arrived whole.
    requests: usize,
    /// How many PINGs are still to be sent.
    pings: usize,
    /// Whether the PINGs were counted by the requests that arrived.
    is_counted: bool,
}

impl Crossing {
    /// As many requests are expected as the peer had open at once.
    pub(super) fn new(expected: usize) -> Self {
        let until = Instant::now() + ConnectionLimits::CROSSING_TOTAL;
        let silence = Box::pin(sleep(ConnectionLimits::CROSSING));
        Self { silence, until, requests: 0, pings: expected, is_counted: false }
    }

    /// Whether a PING is to be sent, which it then is.
    pub(super) fn takes_ping(&mut self) -> bool {
        let is_due = self.pings > 0;
        self.pings = self.pings.saturating_sub(1);
        is_due
    }

    /// Whether all is done once the peer is quiet. At first it is not: only now it is known how many tasks it has.
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

    /// Ready when the peer sent nothing for a while, or for too long.
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
            self.wait(if is_waited_for { ConnectionLimits::CROSSING } else { ConnectionLimits::PAUSE });
        }
    }
}
