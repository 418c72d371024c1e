//! The unread rest of a request's body when its answer is ready.
//!
//! Owns the choice between reading the rest and closing the connection, so that the client gets the answer either
//! way. On HTTP/1.x the client may still be sending. If the gateway closed without announcing it, the client would
//! lose its next request, or even this answer. So a small rest is read and dropped, and the connection stays usable.
//! With a larger one the answer says `Connection: close`, and the edge lingers until the client has sent it
//! (`edge::socket`). On HTTP/2 the rest concerns only its own stream, and is read in the background.
//!
//! This runs after the request has released its permits: a slow client holds only its own connection, for at most
//! [`DRAIN_LIMIT`].

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Response, Version, request};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

/// Maximum rest of an HTTP/1.x body that is read and dropped to keep the connection.
///
/// Larger: a client that ignores a 401 or 429 has more bytes decrypted for nothing. Smaller: refused clients pay for
/// a TLS handshake with each request.
const SMALL: usize = 64 * 1024;

/// How long reading the small rest may take.
///
/// Larger: a client that sends it slowly keeps its connection for longer, and gets its answer later. Smaller: on a
/// slow link, where the body arrives a few round trips after the head, the connection is closed.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Maximum number of unread bytes that are discarded on HTTP/2.
///
/// Larger: a client can send more for nothing. Smaller: a client that reads the answer only after its last byte finds
/// a reset stream instead.
const DISCARDED: usize = 32 * 1024 * 1024;

/// How long discarding may take.
///
/// Larger: an abandoned upload is read for longer. Smaller: as for [`DISCARDED`], on a slow link.
const DISCARD_LIMIT: Duration = Duration::from_secs(5);

/// Handles a body that was not read to its end, before its answer is sent.
pub(super) async fn settle<B>(head: &request::Parts, body: Incoming, response: &mut Response<B>) {
    if head.version == Version::HTTP_2 {
        // A half-read stream is reset when dropped, and some clients treat that as a failure and lose the answer.
        tokio::spawn(timeout(DISCARD_LIMIT, drain(body, DISCARDED)));
        return;
    }
    if response.headers().contains_key(CONNECTION) {
        return;
    }
    // Reading would send `100 Continue` and so request the body. A client that does not wait for that is handled by
    // lingering.
    let is_awaited = head.headers.contains_key(EXPECT);
    let is_large = body.size_hint().lower() > SMALL as u64;
    if is_awaited || is_large || !timeout(DRAIN_LIMIT, drain(body, SMALL)).await.unwrap_or(false) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Discards the body of a refused request, if the client sends it without waiting for `100 Continue`: closing the connection while
/// it sends would lose the answer.
pub(crate) async fn discard(head: &request::Parts, body: Incoming) {
    if !head.headers.contains_key(EXPECT) {
        timeout(DISCARD_LIMIT, drain(body, DISCARDED)).await.ok();
    }
}

/// Discards a body. Returns whether it ended within `left` bytes.
async fn drain<E>(mut body: impl Body<Data = Bytes, Error = E> + Unpin, mut left: usize) -> bool {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return false };
        left = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn pieces(sizes: &[usize]) -> impl StreamExt<Item = Result<Frame<Bytes>, Infallible>> + Unpin {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok(Frame::data(Bytes::from(vec![b'x'; *size])))).collect();
        stream::iter(pieces)
    }

    #[tokio::test]
    async fn a_rest_is_drained_up_to_its_bound_and_not_a_byte_further() {
        assert!(drain(StreamBody::new(pieces(&[])), 0).await);
        assert!(drain(StreamBody::new(pieces(&[3, 0, 2])), 5).await);
        assert!(!drain(StreamBody::new(pieces(&[3, 3]).chain(stream::pending())), 5).await);
    }
}
