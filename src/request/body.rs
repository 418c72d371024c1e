//! Reads a request's body: completely, up to a limit, in bounded time and at a minimum rate.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

use super::body_buffer::{BodyBuffer, ReceivedBody, YIELD_AFTER};
use super::coding::{Coding, DeclaredFormat};
use crate::config::RequestLimits;
use crate::endpoint::BodyKind;
use crate::error::Refusal;
use crate::memory::MemoryShare;

/// How much of a body is decoded in one step. Gzip can expand it up to a thousandfold.
///
/// Larger: one step takes longer than other requests should wait. Smaller: large bodies are copied in more steps.
const PIECE: usize = 4 * 1024;

/// Reads the body of an endpoint in one of the formats that its head may declare: JSON, plain or compressed. A body that no
/// endpoint reads may be anything.
pub(crate) async fn read_for(
    kind: BodyKind,
    headers: &HeaderMap,
    body: &mut Incoming,
    limit: usize,
    limits: &RequestLimits,
    share: &MemoryShare,
) -> Result<ReceivedBody, Refusal> {
    let is_read = kind != BodyKind::None && !body.is_end_stream();
    let declared = if is_read { DeclaredFormat::of(headers)? } else { DeclaredFormat::JSON };
    let received = read(headers, body, declared.coding, limit, limits, share).await?;
    if is_read {
        declared.check(&received.bytes)?;
    }
    Ok(received)
}

/// Reads a body of at most `limit` bytes, before and after decoding. A body whose declared length exceeds the limit
/// or the free memory is refused before anything is read, so a client that waits for `100 Continue` sends nothing.
pub(super) async fn read(
    headers: &HeaderMap,
    body: &mut Incoming,
    coding: Coding,
    limit: usize,
    limits: &RequestLimits,
    share: &MemoryShare,
) -> Result<ReceivedBody, Refusal> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > limit) {
        return Err(Refusal::BodyTooLarge);
    }
    collect(body, BodyBuffer::begin(coding, declared, limit, share)?, limit, limits).await
}

/// The length that a head declares.
pub(super) fn declared_length(headers: &HeaderMap) -> Option<usize> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    declared.map(|length| usize::try_from(length).unwrap_or(usize::MAX))
}

async fn collect(
    body: impl Body<Data = Bytes, Error = hyper::Error> + Unpin,
    mut buffer: BodyBuffer<'_>,
    limit: usize,
    limits: &RequestLimits,
) -> Result<ReceivedBody, Refusal> {
    let (mut body, mut work) = (BoundedBody::begin(body, limit, limits), 0);
    while let Some(data) = body.next().await? {
        for piece in data.chunks(PIECE) {
            work += buffer.push(piece)?;
            if work > YIELD_AFTER {
                work = 0;
                tokio::task::yield_now().await;
            }
        }
    }
    // A client that declares gzip and sends nothing sends an empty body.
    if body.is_empty() { Ok(ReceivedBody::default()) } else { buffer.end() }
}

/// A body of a limited number of bytes, before decoding, that arrives in bounded time and at a minimum rate.
pub(super) struct BoundedBody<'l, B> {
    body: B,
    began: Instant,
    received: usize,
    limit: usize,
    limits: &'l RequestLimits,
}

impl<'l, B: Body<Data = Bytes, Error = hyper::Error> + Unpin> BoundedBody<'l, B> {
    pub(super) fn begin(body: B, limit: usize, limits: &'l RequestLimits) -> Self {
        Self { body, began: Instant::now(), received: 0, limit, limits }
    }

    /// The next bytes, unless it is over. Trailers are ignored.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let due = self.began + time_for(self.received, self.limits);
            let frame = timeout_at(due, self.body.frame()).await.map_err(|_| Refusal::BodyTooSlow)?;
            let Some(frame) = frame else { return Ok(None) };
            let Ok(data) = frame.map_err(Refusal::BodyBroken)?.into_data() else { continue };
            self.received += data.len();
            return if self.received > self.limit { Err(Refusal::BodyTooLarge) } else { Ok(Some(data)) };
        }
    }

    /// Whether nothing has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.received == 0
    }
}

/// The time allowed for a body after `bytes` arrived: the grace period, and their time at the minimum rate.
fn time_for(bytes: usize, limits: &RequestLimits) -> Duration {
    let earned = Duration::from_secs_f64(bytes as f64 / f64::from(limits.body_rate));
    limits.body.min(limits.body_grace + earned)
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Pieces that arrive immediately, and then nothing, without an end.
    fn stalling(pieces: &[&'static str]) -> impl Body<Data = Bytes, Error = hyper::Error> + Unpin {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from(*piece)))).collect();
        StreamBody::new(stream::iter(pieces).chain(stream::pending()))
    }

    async fn collect_plain(
        body: impl Body<Data = Bytes, Error = hyper::Error> + Unpin,
        limit: usize,
        limits: &RequestLimits,
    ) -> Result<ReceivedBody, Refusal> {
        let share = MemoryShare::unlimited();
        collect(body, BodyBuffer::begin(Coding::Identity, None, limit, &share)?, limit, limits).await
    }

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_body_that_stalls_is_given_up_when_its_time_or_its_grace_is_over() {
        for (body, body_grace) in [(SHORT, Duration::from_secs(5)), (Duration::from_secs(30), SHORT)] {
            let limits = RequestLimits { body, body_grace, ..RequestLimits::default() };
            let began = Instant::now();
            let outcome = collect_plain(stalling(&["ab", "cd"]), 5, &limits).await;
            assert!(matches!(outcome, Err(Refusal::BodyTooSlow)), "{outcome:?}");
            assert!(began.elapsed() >= SHORT && began.elapsed() < Duration::from_secs(4));
        }
    }

    #[tokio::test]
    async fn bytes_that_came_earn_time_for_those_to_come() {
        let limits = RequestLimits { body_grace: SHORT, body_rate: 1000, ..RequestLimits::default() };
        for (bytes, taken) in [(10, false), (10_000, true)] {
            let at_once = stream::once(async move { Ok(Frame::data(Bytes::from(vec![b'x'; bytes]))) });
            // What comes late never comes where it is not to be waited for: on a busy machine, both would be due.
            let late = stream::once(async move {
                tokio::time::sleep(if taken { 4 * SHORT } else { Duration::MAX }).await;
                Ok(Frame::data(Bytes::from_static(b"x")))
            });
            let outcome = collect_plain(StreamBody::new(Box::pin(at_once.chain(late))), 100_000, &limits).await;
            assert_eq!(outcome.is_ok(), taken, "{bytes} bytes: {outcome:?}");
        }
    }

    #[test]
    fn a_body_has_five_seconds_then_a_second_for_each_thousand_bytes_and_thirty_in_all() {
        let limits = RequestLimits::default();
        for (bytes, seconds) in [(0, 5), (1000, 6), (20_000, 25), (25_000, 30), (16_000_000, 30)] {
            assert_eq!(time_for(bytes, &limits), Duration::from_secs(seconds), "{bytes}");
        }
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_given_up_at_the_first_byte_too_many() {
        let outcome = collect_plain(stalling(&["ab", "cd", "e"]), 4, &RequestLimits::default()).await;
        assert!(matches!(outcome, Err(Refusal::BodyTooLarge)), "{outcome:?}");
    }
}
