//! Follows the frames of an HTTP/2 connection on their way from and to hyper.
//!
//! hyper answers every request and every PING, but does not check what they are for: a peer could send 300,000
//! PING or PRIORITY frames, open and reset requests slowly forever, or block its responses by granting no window.
//! So the nine bytes of each frame header (RFC 9113, section 4.1) are read in both directions, and [`Activity`] is
//! updated with the bytes that served a request and the responses in progress.
//!
//! Only frame headers and the length of padding are parsed; hyper rejects malformed frames. Nothing is changed or
//! held back until the connection ends. hyper's graceful shutdown is not used, because it is too hasty for half of
//! the clients and too talkative for the other half (see [`Parting`]). If the peer supports a warning, it gets a
//! GOAWAY that refuses nothing, and every request that still arrives is answered. The last GOAWAY names the newest
//! request that was processed, and nothing follows it. This stream sits above TLS.

mod late_requests;
mod reader;
mod shutdown;

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::reader::{ACK, DATA, Frame, HEADERS, PING, RST_STREAM, Reader};
use self::shutdown::Ending;
use super::activity::{Abuse, Activity};
use super::first_settings::Opening;
use super::goaway::Parting;
use super::pass_through::pass_through;

/// The maximum number of requests that may look open. hyper refuses those over its own limit, but has not always
/// done so yet when they are counted here.
///
/// Larger: a peer can make the gateway remember more. Smaller than a few times
/// [`super::ConnectionLimits::streams`]: a burst from an honest client that has not read our settings yet ends its
/// connection.
const OPEN: usize = 4096;

/// An HTTP/2 stream whose frames are followed.
#[derive(Debug)]
pub(super) struct Frames<IO> {
    io: IO,
    incoming: Reader,
    outgoing: Reader,
    /// None once the peer's first SETTINGS have arrived.
    opening: Option<Opening>,
    ending: Ending,
    requests: Requests,
}

/// The requests of a connection.
#[derive(Debug)]
struct Requests {
    activity: Arc<Activity>,
    /// Those whose responses have not ended.
    open: HashSet<u32>,
    /// Those that have not arrived completely.
    arriving: HashSet<u32>,
    /// Whether hyper waits for the acknowledgement of a PING.
    pinging: bool,
    /// The most requests that the peer has had open at once.
    most_open: usize,
    /// Whether the requests read so far are the last.
    are_last: bool,
    newest: u32,
    resets: u64,
    /// Resets of unanswered requests.
    early: u64,
    resets_allowed: u64,
}

impl Requests {
    fn came(&mut self, frame: Frame) {
        if frame.is_of_a_message() {
            self.activity.asked(frame.content);
        }
        // A HEADERS frame on a known stream contains trailers.
        if frame.kind == HEADERS && frame.stream > self.newest {
            self.newest = frame.stream;
            self.open.insert(frame.stream);
            self.most_open = self.most_open.max(self.open.len());
            if !frame.ends() {
                self.arriving.insert(frame.stream);
            }
        } else if frame.ends() {
            self.arriving.remove(&frame.stream);
        }
        if frame.is_ping_answer() {
            self.pinging = false;
        }
        if frame.kind == RST_STREAM {
            self.resets += 1;
            self.arriving.remove(&frame.stream);
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
        if frame.kind == RST_STREAM {
            self.arriving.remove(&frame.stream);
        } else if frame.kind == PING && frame.flags & ACK == 0 {
            self.pinging = true;
        }
        if frame.ends() || frame.kind == RST_STREAM {
            self.open.remove(&frame.stream);
            self.activity.answer_ended(frame.stream);
        } else if matches!(frame.kind, DATA | HEADERS) {
            self.activity.answering(frame.stream);
        }
    }

    /// Whether a request is open, and the peer has never had another one open with it.
    fn are_alone(&self) -> bool {
        self.most_open <= 1 && !self.open.is_empty()
    }

    /// Whether all requests read so far are answered.
    fn are_done(&self) -> bool {
        self.open.is_empty() && self.arriving.is_empty()
    }

    /// Whether the requests read so far can be answered without reading more.
    fn are_whole(&self) -> bool {
        self.arriving.is_empty() && !self.pinging && !self.activity.is_answering()
    }

    fn abuse(&self) -> Option<Abuse> {
        let resets = self.resets > self.resets_allowed && 2 * self.early > self.resets;
        (resets || self.open.len() > OPEN).then_some(Abuse::Resets)
    }
}

impl<IO> Frames<IO> {
    /// Follows a connection from its preface on.
    pub(super) fn new(io: IO, activity: Arc<Activity>, resets_allowed: u64) -> Self {
        let requests = Requests {
            activity,
            open: HashSet::new(),
            arriving: HashSet::new(),
            pinging: false,
            most_open: 0,
            are_last: false,
            newest: 0,
            resets: 0,
            early: 0,
            resets_allowed,
        };
        Self {
            io,
            incoming: Reader::after_preface(),
            outgoing: Reader::default(),
            opening: Some(Opening::default()),
            ending: Ending::default(),
            requests,
        }
    }

    fn came(&mut self, bytes: &[u8]) {
        let Self { incoming, opening, requests, .. } = self;
        if let Some(goaway) = opening.as_mut().and_then(|opening| opening.read(bytes)) {
            requests.activity.takes_goaway(goaway);
            *opening = None;
        }
        incoming.read(bytes, |frame| requests.came(frame));
    }

    fn went(&mut self, bytes: &[u8]) {
        let Self { outgoing, requests, .. } = self;
        outgoing.read(bytes, |frame| requests.went(frame));
    }
}

impl<IO: AsyncWrite + Unpin> Frames<IO> {
    /// Decides whether the requests read so far are the last. Otherwise a peer with several open ones would never
    /// be done.
    fn note_last(&mut self) {
        let requests = &mut self.requests;
        requests.are_last |= match requests.activity.parting() {
            Parting::None | Parting::Warning => false,
            Parting::WithResponse => requests.most_open > 1 && !requests.open.is_empty(),
            Parting::Now => true,
        };
    }

    /// Appends the last GOAWAY, if it is due and no frame is half written. A peer that sends one request after
    /// another gets it together with the last response.
    fn finish_if_due(&mut self, ends_response: bool) {
        let Self { outgoing, ending, requests, .. } = self;
        let is_due = match requests.activity.parting() {
            Parting::None | Parting::Warning => false,
            Parting::WithResponse => ends_response && requests.most_open <= 1,
            Parting::Now => !ending.is_crossing(),
        };
        if is_due && requests.are_done() && outgoing.is_between_frames() {
            ending.finish(requests.newest);
        }
    }

    /// Appends the GOAWAY that warns, after its pause.
    fn poll_warning(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.outgoing.is_between_frames() { self.ending.poll_warning(cx) } else { Poll::Ready(()) }
    }

    /// Accepts what hyper writes and appends what is due after it, so that both are written together.
    fn poll_write_ending(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let taken = bufs.iter().map(|buf| buf.len()).sum();
        if self.ending.is_over() {
            return Poll::Ready(Ok(taken));
        }
        match self.requests.activity.parting() {
            Parting::Warning => ready!(self.poll_warning(cx)),
            Parting::WithResponse if self.requests.are_alone() && self.outgoing.is_between_frames() => {
                ready!(self.ending.poll_alone(cx));
            }
            Parting::None | Parting::WithResponse | Parting::Now => {}
        }
        ready!(self.ending.poll_write(&mut self.io, cx))?;
        self.note_last();
        let was_open = !self.requests.open.is_empty();
        for buf in bufs {
            self.ending.hold(buf);
            self.went(buf);
        }
        self.finish_if_due(was_open && self.requests.open.is_empty());
        // The flush writes the rest.
        if let Poll::Ready(written) = self.ending.poll_write(&mut self.io, cx) {
            written?;
        }
        // Reading may have waited for this write.
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(taken))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Frames<IO> {
    /// Does what is due for the end of the connection. Returns whether the connection is over.
    fn poll_end(&mut self, cx: &mut Context<'_>, parting: Parting) -> Poll<io::Result<bool>> {
        if parting == Parting::Warning {
            let _ = self.poll_warning(cx);
        }
        self.note_last();
        self.finish_if_due(false);
        if !self.ending.is_over() {
            if let Poll::Ready(written) = self.ending.poll_write(&mut self.io, cx) {
                written?;
            }
            let Self { io, incoming, outgoing, ending, requests, .. } = self;
            if !(requests.are_last && requests.are_whole() && incoming.is_between_frames()) {
                return Poll::Ready(Ok(false));
            }
            if !(requests.are_done() && outgoing.is_between_frames()) {
                return Poll::Pending;
            }
            // The peer has several requests open. httpx loses a response that it reads together with the GOAWAY
            // while it waits for another one, and a request that it is sending. So the GOAWAY is sent when the
            // peer has its responses and waits for those to its next requests, which were discarded and which it
            // then sends again.
            let Requests { activity, most_open, newest, .. } = requests;
            let note = |bytes: &[u8]| {
                let mut ended = 0;
                activity.asked(bytes.len());
                incoming.read(bytes, |frame| ended += usize::from(frame.ends() && frame.stream > *newest));
                ended
            };
            ready!(ending.poll_crossing(io, *most_open, note, cx))?;
            ending.finish(requests.newest);
        }
        self.ending.poll_write(&mut self.io, cx).map_ok(|()| true)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Frames<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let parting = this.requests.activity.parting();
        if !this.ending.passes(parting) && ready!(this.poll_end(cx, parting))? {
            // For hyper, the stream has ended.
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        this.came(&buf.filled()[before..]);
        match this.requests.abuse() {
            Some(abuse) => {
                this.requests.activity.abused(abuse);
                Poll::Ready(Err(abuse.into()))
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Frames<IO> {
    pass_through!(poll_write, is_write_vectored);

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.ending.passes(self.requests.activity.parting()) {
            return self.poll_write_ending(cx, bufs);
        }
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            self.went(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, ending, .. } = &mut *self;
        ready!(ending.poll_write(io, cx))?;
        Pin::new(io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, ending, .. } = &mut *self;
        ready!(ending.poll_write(io, cx))?;
        Pin::new(io).poll_shutdown(cx)
    }
}
