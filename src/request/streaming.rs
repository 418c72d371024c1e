//! The body of an answer: whole, or in parts that are produced while the client reads.
//!
//! A part is produced when the connection has room for it: hyper asks for the next one once the client has taken most
//! of those before. So a slow client holds a little memory, and no connection of a database. Each part has the time
//! limit of a request. If one fails, the body ends with an error, and hyper cuts the connection (HTTP/1.1, where the
//! last chunk is then missing) or resets the stream (HTTP/2): the client can't take the answer for complete.
//!
//! A streamed answer is logged when its last byte is handed over or when it is cut off, with its length and how it
//! ended. It counts as answered from its head on, as every answer does.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{BoxStream, try_unfold};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::timeout;

use super::encoding::Encoder;
use super::read_by::ReadBy;
use super::text_of;
use crate::memory::{MemoryPermit, RowMemory};
use crate::metrics::RequestMetrics;
use crate::reply::{Parts, PartsError};
use crate::store::with_causes;
use crate::telemetry::AccessLine;
use crate::tenant::{Tenant, Token};

/// The memory that is reserved for a streamed answer, in bytes: a part as rows, as JSON and compressed, the encoder's
/// window, and what hyper buffers. Rows beyond that are reserved while they are read.
///
/// Larger: fewer answers are streamed at once. Smaller: they hold more memory than is reserved.
pub(super) const STREAM_BYTES: usize = 2 * 1024 * 1024;

/// How many bytes of rows of a part [`STREAM_BYTES`] covers.
///
/// Larger: more of what the stream holds is uncounted. Smaller: a part may find no memory, which cuts the answer off.
const PART_ROWS: usize = STREAM_BYTES / 2;

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody(Content);

#[derive(Debug)]
enum Content {
    Whole(Full<Bytes>),
    Streamed(Box<StreamedBody>),
}

impl From<Full<Bytes>> for AnswerBody {
    fn from(body: Full<Bytes>) -> Self {
        Self(Content::Whole(body))
    }
}

impl From<StreamedBody> for AnswerBody {
    fn from(body: StreamedBody) -> Self {
        Self(Content::Streamed(Box::new(body)))
    }
}

impl AnswerBody {
    /// The streamed body, whose log line is still to be completed.
    pub(super) fn streamed(&mut self) -> Option<&mut StreamedBody> {
        match &mut self.0 {
            Content::Whole(_) => None,
            Content::Streamed(body) => Some(body),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match &mut self.get_mut().0 {
            Content::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never: Infallible| match never {}),
            Content::Streamed(body) => body.poll_part(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(body) => body.is_end_stream(),
            Content::Streamed(body) => body.ending == StreamEnd::Complete,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(body) => body.size_hint(),
            Content::Streamed(_) => SizeHint::default(),
        }
    }
}

/// Why a streamed answer was cut off.
#[derive(Debug, thiserror::Error)]
pub enum CutOff {
    /// A part could not be read.
    #[error("a part of the answer could not be read")]
    Unreadable(#[source] PartsError),
    /// A part took longer than a request may.
    #[error("a part of the answer took too long")]
    TooSlow,
    /// A part could not be compressed.
    #[error("a part of the answer could not be compressed")]
    Incompressible(#[source] std::io::Error),
    /// Producing a part panicked.
    #[error("producing a part of the answer panicked: {0}")]
    Panicked(String),
}

/// How a streamed answer ended so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// It has not: the client is gone if it is dropped now.
    Open,
    Complete,
    Failed,
}

/// An answer in parts.
pub(super) struct StreamedBody {
    parts: BoxStream<'static, Result<Bytes, CutOff>>,
    bytes: u64,
    ending: StreamEnd,
    record: Option<StreamRecord>,
    _permit: Option<MemoryPermit>,
}

impl std::fmt::Debug for StreamedBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedBody").field("bytes", &self.bytes).field("ending", &self.ending).finish_non_exhaustive()
    }
}

/// What the log line of a streamed answer needs when it ends.
pub(super) struct StreamRecord {
    pub(super) request_id: String,
    pub(super) client: Box<str>,
    pub(super) tenant: Option<Arc<Tenant>>,
    pub(super) token: Option<Arc<Token>>,
    pub(super) method: String,
    pub(super) route: Option<&'static str>,
    pub(super) status: u16,
    pub(super) began: Instant,
    pub(super) remaining: Option<u32>,
    pub(super) metrics: RequestMetrics,
}

impl StreamedBody {
    /// A body of a first part and the rest. Every part may take `limit`. `read_by` is sent the submissions in the rest.
    pub(super) fn new(
        first: Bytes,
        rest: Parts,
        encoder: Option<Encoder>,
        limit: Duration,
        memory: (Option<MemoryPermit>, Option<RowMemory>),
        read_by: Option<ReadBy>,
    ) -> Self {
        let (permit, rows) = memory;
        let rest = rest.map_err(CutOff::Unreadable).map_ok(move |part| {
            if let Some(read_by) = &read_by {
                read_by.note(&part.read);
            }
            part.bytes
        });
        let state = Producer { first: Some(first), rest: rest.boxed(), encoder, limit, rows };
        let parts =
            try_unfold(state, |mut producer| async move { Ok(producer.next().await?.map(|part| (part, producer))) });
        Self { parts: parts.boxed(), bytes: 0, ending: StreamEnd::Open, record: None, _permit: permit }
    }

    /// Sets what is logged at the end.
    pub(super) fn record(&mut self, record: StreamRecord) {
        self.record = Some(record);
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CutOff>>> {
        if self.ending != StreamEnd::Open {
            return Poll::Ready(None);
        }
        let part = ready!(self.parts.poll_next_unpin(cx));
        match &part {
            Some(Ok(part)) => self.bytes += part.len() as u64,
            Some(Err(error)) => {
                self.ending = StreamEnd::Failed;
                let id = self.record.as_ref().map(|record| &*record.request_id);
                tracing::warn!(request_id = id, cause = with_causes(error), "an answer was cut off");
            }
            None => self.ending = StreamEnd::Complete,
        }
        Poll::Ready(part)
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let cut = match self.ending {
            StreamEnd::Complete => None,
            StreamEnd::Open => Some("client"),
            StreamEnd::Failed => Some("failure"),
        };
        if let Some(cut) = cut {
            record.metrics.cut(cut);
        }
        let line = AccessLine {
            request_id: &record.request_id,
            client: &record.client,
            tenant: record.tenant.as_ref().map(|tenant| &*tenant.slug),
            token: record.token.as_ref().map(|token| &*token.name),
            method: &record.method,
            route: record.route,
            status: record.status,
            duration_ms: record.began.elapsed().as_secs_f64() * 1000.0,
            bytes: Some(self.bytes),
            remaining: record.remaining,
            database_ms: None,
            cut,
        };
        line.log();
    }
}

/// Produces the parts of an answer.
struct Producer {
    first: Option<Bytes>,
    rest: BoxStream<'static, Result<Bytes, CutOff>>,
    encoder: Option<Encoder>,
    limit: Duration,
    /// Where the rows of a part are reserved while they are read.
    rows: Option<RowMemory>,
}

impl Producer {
    /// The next part as it is sent. None after the last one.
    async fn next(&mut self) -> Result<Option<Bytes>, CutOff> {
        loop {
            let part = match self.first.take() {
                Some(first) => Some(first),
                None => self.next_of_rest().await?,
            };
            let encoded = match (part, self.encoder.take()) {
                (Some(part), None) => Some(part),
                (None, None) => return Ok(None),
                (Some(part), Some(encoder)) => {
                    let (encoder, encoded) = encoder.write(part).await.map_err(CutOff::Incompressible)?;
                    self.encoder = Some(encoder);
                    Some(encoded)
                }
                (None, Some(encoder)) => Some(encoder.finish().map_err(CutOff::Incompressible)?),
            };
            // An encoder may keep a short part.
            if let Some(encoded) = encoded.filter(|encoded| !encoded.is_empty()) {
                return Ok(Some(encoded));
            }
        }
    }

    async fn next_of_rest(&mut self) -> Result<Option<Bytes>, CutOff> {
        let reading = AssertUnwindSafe(self.rest.next()).catch_unwind();
        if let Some(rows) = &self.rows {
            rows.begin_part(PART_ROWS);
        }
        // Parts share state with other requests only behind locks and atomics.
        let read = timeout(self.limit, reading).await;
        if let Some(rows) = &self.rows {
            rows.begin_part(PART_ROWS);
        }
        match read {
            Ok(Ok(part)) => part.transpose(),
            Ok(Err(panic)) => Err(CutOff::Panicked(text_of(&*panic))),
            Err(_) => Err(CutOff::TooSlow),
        }
    }
}
