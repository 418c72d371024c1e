//! Follows the frames of an HTTP/2 connection on their way from and to hyper.
//!
//! hyper answers every request and every PING, but does not check what they are for: a peer could send 300,000
//! PING or PRIORITY frames, open and reset requests slowly forever, or block its responses by granting no window.
//! So the nine bytes of each frame header (RFC 9113, section 4.1) are read in both directions, and [`Activity`] is
//! updated with the bytes that served a request and the responses in progress.
//!
//! Only frame headers and the length of padding are parsed; hyper rejects malformed frames. Nothing is changed or
//! held back until the connection ends. hyper's graceful shutdown is not used, because it is too hasty for half of
//! the clients and too talkative for the other half (see [`DueGoaway`]). If the peer supports a warning, it gets a
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

use self::reader::{ACK, DATA, FrameHeader, FrameReader, HEADERS, PING, RST_STREAM};
use self::shutdown::Shutdown;
use super::activity::{Abuse, Activity};
use super::first_settings::FirstSettings;
use super::goaway::DueGoaway;
use super::pass_through::pass_through;

/// The maximum number of requests that may look open. hyper refuses those over its own limit, but has not always
/// done so yet when they are counted here.
///
/// Larger: a peer can make the gateway remember more. Smaller than a few times
/// [`super::ConnectionLimits::streams`]: a burst from an honest client that has not read our settings yet ends its
/// connection.
const MAX_OPEN: usize = 4096;

/// An HTTP/2 stream whose frames are followed.
#[derive(Debug)]
pub(super) struct Frames<IO> {
    io: IO,
    incoming: FrameReader,
    outgoing: FrameReader,
    /// None once the peer's first SETTINGS have arrived.
    first_settings: Option<FirstSettings>,
    shutdown: Shutdown,
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
    unanswered_resets: u64,
    resets_allowed: u64,
}

impl Requests {
    fn note_received(&mut self, frame: FrameHeader) {
        if frame.is_of_message() {
            self.activity.note_request_bytes(frame.content);
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
        if frame.is_ping_ack() {
            self.pinging = false;
        }
        if frame.kind == RST_STREAM {
            self.resets += 1;
            self.arriving.remove(&frame.stream);
            if self.open.remove(&frame.stream) {
                self.unanswered_resets += 1;
            }
            self.activity.note_response_end(frame.stream);
        }
    }

    fn note_sent(&mut self, frame: FrameHeader) {
        if frame.is_of_message() {
            self.activity.note_response_bytes(frame.content);
        }
        if frame.kind == RST_STREAM {
            self.arriving.remove(&frame.stream);
        } else if frame.kind == PING && frame.flags & ACK == 0 {
            self.pinging = true;
        }
        if frame.ends() || frame.kind == RST_STREAM {
            self.open.remove(&frame.stream);
            self.activity.note_response_end(frame.stream);
        } else if matches!(frame.kind, DATA | HEADERS) {
            self.activity.note_response_part(frame.stream);
        }
    }

    /// Whether a request is open, and the peer has never had another one open with it.
    fn are_sequential(&self) -> bool {
        self.most_open <= 1 && !self.open.is_empty()
    }

    /// Whether all requests read so far are answered.
    fn are_answered(&self) -> bool {
        self.open.is_empty() && self.arriving.is_empty()
    }

    /// Whether the requests read so far can be answered without reading more.
    fn are_complete(&self) -> bool {
        self.arriving.is_empty() && !self.pinging && !self.activity.has_open_responses()
    }

    fn abuse(&self) -> Option<Abuse> {
        let resets = self.resets > self.resets_allowed && 2 * self.unanswered_resets > self.resets;
        (resets || self.open.len() > MAX_OPEN).then_some(Abuse::Resets)
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
            unanswered_resets: 0,
            resets_allowed,
        };
        Self {
            io,
            incoming: FrameReader::after_preface(),
            outgoing: FrameReader::default(),
            first_settings: Some(FirstSettings::default()),
            shutdown: Shutdown::default(),
            requests,
        }
    }

    fn note_received(&mut self, bytes: &[u8]) {
        let Self { incoming, first_settings, requests, .. } = self;
        if let Some(goaway) = first_settings.as_mut().and_then(|first_settings| first_settings.read(bytes)) {
            requests.activity.note_goaway_reaction(goaway);
            *first_settings = None;
        }
        incoming.read(bytes, |frame| requests.note_received(frame));
    }

    fn note_sent(&mut self, bytes: &[u8]) {
        let Self { outgoing, requests, .. } = self;
        outgoing.read(bytes, |frame| requests.note_sent(frame));
    }
}

impl<IO: AsyncWrite + Unpin> Frames<IO> {
    /// Decides whether the requests read so far are the last. Otherwise a peer with several open ones would never
    /// be done.
    fn note_last(&mut self) {
        let requests = &mut self.requests;
        requests.are_last |= match requests.activity.due_goaway() {
            DueGoaway::None | DueGoaway::Warning => false,
            DueGoaway::WithResponse => requests.most_open > 1 && !requests.open.is_empty(),
            DueGoaway::Now => true,
        };
    }

    /// Appends the last GOAWAY, if it is due and no frame is half written. A peer that sends one request after
    /// another gets it together with the last response.
    fn finish_if_due(&mut self, ends_response: bool) {
        let Self { outgoing, shutdown, requests, .. } = self;
        let is_due = match requests.activity.due_goaway() {
            DueGoaway::None | DueGoaway::Warning => false,
            DueGoaway::WithResponse => ends_response && requests.most_open <= 1,
            DueGoaway::Now => !shutdown.is_discarding(),
        };
        if is_due && requests.are_answered() && outgoing.is_between_frames() {
            shutdown.finish(requests.newest);
        }
    }

    /// Appends the GOAWAY that warns, after its pause.
    fn poll_warning(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.outgoing.is_between_frames() { self.shutdown.poll_warning(cx) } else { Poll::Ready(()) }
    }

    /// Accepts what hyper writes and appends what is due after it, so that both are written together.
    fn poll_write_in_shutdown(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let taken = bufs.iter().map(|buf| buf.len()).sum();
        if self.shutdown.is_over() {
            return Poll::Ready(Ok(taken));
        }
        match self.requests.activity.due_goaway() {
            DueGoaway::Warning => ready!(self.poll_warning(cx)),
            DueGoaway::WithResponse if self.requests.are_sequential() && self.outgoing.is_between_frames() => {
                ready!(self.shutdown.poll_pause_before_response(cx));
            }
            DueGoaway::None | DueGoaway::WithResponse | DueGoaway::Now => {}
        }
        ready!(self.shutdown.poll_write(&mut self.io, cx))?;
        self.note_last();
        let was_open = !self.requests.open.is_empty();
        for buf in bufs {
            self.shutdown.hold(buf);
            self.note_sent(buf);
        }
        self.finish_if_due(was_open && self.requests.open.is_empty());
        // The flush writes the rest.
        if let Poll::Ready(written) = self.shutdown.poll_write(&mut self.io, cx) {
            written?;
        }
        // Reading may have waited for this write.
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(taken))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Frames<IO> {
    /// Does what is due for the end of the connection. Returns whether the connection is over.
    fn poll_end(&mut self, cx: &mut Context<'_>, due: DueGoaway) -> Poll<io::Result<bool>> {
        if due == DueGoaway::Warning {
            let _ = self.poll_warning(cx);
        }
        self.note_last();
        self.finish_if_due(false);
        if !self.shutdown.is_over() {
            if let Poll::Ready(written) = self.shutdown.poll_write(&mut self.io, cx) {
                written?;
            }
            let Self { io, incoming, outgoing, shutdown, requests, .. } = self;
            if !(requests.are_last && requests.are_complete() && incoming.is_between_frames()) {
                return Poll::Ready(Ok(false));
            }
            if !(requests.are_answered() && outgoing.is_between_frames()) {
                return Poll::Pending;
            }
            // The peer has several requests open. httpx loses a response that it reads together with the GOAWAY
            // while it waits for another one, and a request that it is sending. So the GOAWAY is sent when the
            // peer has its responses and waits for those to its next requests, which were discarded and which it
            // then sends again.
            let Requests { activity, most_open, newest, .. } = requests;
            let note = |bytes: &[u8]| {
                let mut ended = 0;
                activity.note_request_bytes(bytes.len());
                incoming.read(bytes, |frame| ended += usize::from(frame.ends() && frame.stream > *newest));
                ended
            };
            ready!(shutdown.poll_late_requests(io, *most_open, note, cx))?;
            shutdown.finish(requests.newest);
        }
        self.shutdown.poll_write(&mut self.io, cx).map_ok(|()| true)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Frames<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let due = this.requests.activity.due_goaway();
        if !this.shutdown.passes(due) && ready!(this.poll_end(cx, due))? {
            // For hyper, the stream has ended.
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        this.note_received(&buf.filled()[before..]);
        match this.requests.abuse() {
            Some(abuse) => {
                this.requests.activity.note_abuse(abuse);
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
        if !self.shutdown.passes(self.requests.activity.due_goaway()) {
            return self.poll_write_in_shutdown(cx, bufs);
        }
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            self.note_sent(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, shutdown, .. } = &mut *self;
        ready!(shutdown.poll_write(io, cx))?;
        Pin::new(io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, shutdown, .. } = &mut *self;
        ready!(shutdown.poll_write(io, cx))?;
        Pin::new(io).poll_shutdown(cx)
    }
}
