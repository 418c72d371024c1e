//! Reading a request's body: whole, up to a limit, in bounded time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::Refusal;

/// How long a whole body may take. Longer lets slow senders hold connections; shorter refuses honest callers on slow
/// lines.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Reads a body of at most `limit` bytes. A declared length over the limit is refused before anything is read, so that
/// a caller who waits for `100 Continue` sends nothing.
pub(super) async fn read(headers: &HeaderMap, body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limit as u64) {
        return Err(Refusal::BodyTooLarge);
    }
    tokio::time::timeout(TIME_LIMIT, collect(body, limit)).await.map_err(|_| Refusal::BodyTooSlow)?
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
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
