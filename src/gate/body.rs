//! Reading a request's body: whole, up to a limit, in bounded time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::error::Refusal;

/// How long a whole body may take. Longer lets slow senders hold connections; shorter refuses honest callers on slow
/// lines.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Reads a body of at most `limit` bytes. A declared length over the limit is refused before anything is read, so that
/// a caller who waits for `100 Continue` sends nothing.
pub(super) async fn read(headers: &HeaderMap, body: &mut Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limit as u64) {
        return Err(Refusal::BodyTooLarge);
    }
    within(TIME_LIMIT, collect(body, limit)).await
}

async fn within(limit: Duration, reading: impl Future<Output = Result<Bytes, Refusal>>) -> Result<Bytes, Refusal> {
    tokio::time::timeout(limit, reading).await.map_err(|_| Refusal::BodyTooSlow)?
}

async fn collect(
    mut body: impl Body<Data = Bytes, Error = hyper::Error> + Unpin,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not read.
        let Ok(data) = frame.map_err(Refusal::BodyBroken)?.into_data() else { continue };
        if collected.len() + data.len() > limit {
            return Err(Refusal::BodyTooLarge);
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}

/// How much of a body that nobody wants is read all the same. Larger lets a caller send more for nothing; smaller cuts
/// off callers that read no answer before they have sent everything.
const DISCARDED: usize = 32 * 1024 * 1024;

/// How long that is done.
const DISCARDING_LIMIT: Duration = Duration::from_secs(5);

/// Reads on in the background what was left of a body when its request was answered. On HTTP/2 a stream that is dropped
/// half read is reset, and some callers take that for a failure and lose the answer. HTTP/1 connections linger instead
/// when they close.
pub(super) fn discard_rest(version: Version, mut body: Incoming) {
    if version != Version::HTTP_2 || body.is_end_stream() {
        return;
    }
    tokio::spawn(tokio::time::timeout(DISCARDING_LIMIT, async move {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > DISCARDED {
                break;
            }
        }
    }));
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Pieces that come at once, and then nothing, without an end.
    fn stalling(pieces: &[&'static str]) -> impl Body<Data = Bytes, Error = hyper::Error> + Unpin {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Frame::data(Bytes::from(*piece)))).collect();
        StreamBody::new(stream::iter(pieces).chain(stream::pending()))
    }

    #[tokio::test]
    async fn a_body_that_stalls_is_given_up_when_its_time_is_over() {
        let outcome = within(Duration::from_millis(20), collect(stalling(&["ab", "cd"]), 5)).await;
        assert!(matches!(outcome, Err(Refusal::BodyTooSlow)), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_given_up_at_the_first_byte_too_many() {
        let outcome = within(Duration::from_secs(60), collect(stalling(&["ab", "cd", "e"]), 4)).await;
        assert!(matches!(outcome, Err(Refusal::BodyTooLarge)), "{outcome:?}");
    }
}
