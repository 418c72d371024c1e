//! The answer of a receiver, as much of it as matters: the status, `Retry-After`, and an excerpt of the body.
//!
//! Owns how much of an answer is read. A short body is read to its end, so that the connection can be used again. A
//! longer one is cut off. The status alone says what the receiver did, so a body that breaks off, is malformed or does not
//! end in time is an answer too: many small servers end it with the connection, and not all of them say so in TLS.

use std::time::Duration;

use http::header::{CONTENT_ENCODING, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::deadline;
use crate::shown_text::shown_lines;

/// How much of a body is read.
///
/// Larger: a receiver that sends without end costs more. Smaller: the connections of receivers with long answers can't
/// be reused.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// How large the head of an answer may be.
///
/// Larger: a connection buffers that much. Smaller: receivers behind proxies that add many fields fail.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;

/// How many fields the head of an answer may have. Larger and smaller: as for [`MAX_HEAD_BYTES`].
pub(super) const MAX_HEAD_FIELDS: usize = 128;

/// How much of a body is kept for the delivery log.
///
/// Larger: the delivery log grows. Smaller: error messages of receivers are cut off before their point.
const EXCERPT_BYTES: usize = 1024;

/// The longest `Retry-After` that is honored.
///
/// Larger: one mistaken answer stops deliveries for that long. Smaller: a receiver that closes for a day is called
/// meanwhile.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The formats of a date in HTTP (RFC 9110, section 5.6.7): the one in use, and the two obsolete ones.
const DATE_FORMATS: [&str; 3] = ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// How long the receiver asks to wait, at most a day.
    pub retry_after: Option<Duration>,
    /// The beginning of the body: valid UTF-8 without control characters other than tab and line feed, since not every
    /// database can store those, and without invisible characters and changes of direction, since pages show it. Empty if the
    /// body is compressed.
    pub excerpt: String,
}

/// Reads the body to its end, to its limit, or for some time.
pub(super) async fn read(
    status: StatusCode,
    headers: &HeaderMap,
    mut body: Incoming,
    limit: Duration,
    now: Timestamp,
) -> Answer {
    let mut received = 0;
    let mut excerpt = Vec::new();
    let reading = async {
        while received < MAX_BODY_BYTES
            && let Some(Ok(frame)) = body.frame().await
        {
            let Ok(bytes) = frame.into_data() else { continue };
            received += bytes.len();
            excerpt.extend_from_slice(&bytes[..bytes.len().min(EXCERPT_BYTES - excerpt.len())]);
        }
    };
    // What was read until then is the excerpt.
    _ = deadline::within(limit, 1, reading).await;
    let is_compressed = is_coded(headers) || excerpt.starts_with(&GZIP);
    let excerpt =
        if is_compressed && !is_text(&excerpt) { String::new() } else { printable(&excerpt, received > excerpt.len()) };
    let retry_after = retry_after(headers, now).map(|wait| wait.min(MAX_RETRY_AFTER));
    Answer { status, retry_after, excerpt }
}

/// What gzip begins with (RFC 1952, section 2.3.1). Some servers compress without a word.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Whether a body has a content coding, according to its headers.
fn is_coded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.into_iter().any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// Whether it is plain text nevertheless: not all servers do what their headers say.
fn is_text(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // The cut may go through a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|char| !char.is_control() || char.is_ascii_whitespace())
}

/// The text of an excerpt. A character that the cut went through is left out.
fn printable(bytes: &[u8], is_cut: bool) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if is_cut && error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    shown_lines(&String::from_utf8_lossy(whole).replace("\r\n", "\n"))
}

/// How long an answer asks to wait: any number of seconds, or until a date.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are a long time.
        Some(text.parse().map_or(Duration::MAX, Duration::from_secs))
    } else {
        let date = DATE_FORMATS.iter().find_map(|format| strtime::parse(format, text).ok()?.to_datetime().ok())?;
        let at = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(text: &'static str) -> Option<u64> {
        let now = "1994-11-06T08:49:00Z".parse().unwrap();
        let headers = HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_bytes(text.as_bytes()).unwrap())]);
        retry_after(&headers, now).map(|wait| wait.min(MAX_RETRY_AFTER).as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_at_most_a_day() {
        for (text, seconds) in [
            ("120", Some(120)),
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("86401", Some(86_400)),
            ("99999999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(37)),
            ("Sun Nov  6 08:49:37 1994", Some(37)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(86_400)),
            ("Sat, 06 Nov 1993 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 9999 08:49:37 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("ä", None),
        ] {
            assert_eq!(wait(text), seconds, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn an_excerpt_is_valid_text_that_every_database_can_store() {
        for (bytes, is_cut, text) in [
            (&b"ok"[..], false, "ok"),
            (b"a\0b\x1b[31m\r\nc\td\re", false, "a\u{fffd}b\u{fffd}[31m\nc\td\u{fffd}e"),
            (b"\xff\xfe", false, "\u{fffd}\u{fffd}"),
            ("aä".as_bytes(), true, "aä"),
            (&"aä".as_bytes()[..2], true, "a"),
            (&"aä".as_bytes()[..2], false, "a\u{fffd}"),
            (b"\xff\xc3", true, "\u{fffd}\u{fffd}"),
            (b"\x7f", false, "\u{fffd}"),
            ("a\u{202e}b\u{200b}c\u{2028}d\u{2066}".as_bytes(), false, "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}"),
        ] {
            assert_eq!(printable(bytes, is_cut), text, "{bytes:?}");
        }
    }
}
