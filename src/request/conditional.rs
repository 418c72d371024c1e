//! Answers to conditional requests (RFC 9110, sections 8.8.3 and 13.1.2): what clients poll has an `ETag`, and is not sent to
//! a client that has it.
//!
//! The tag is a digest of the body, so it covers whatever the body shows: a renamed element or user, the zone of the account,
//! what the token reaches. A number that advances with each write would spare the database too, but other programs write most
//! of these tables, and a body also depends on the configuration. So a conditional request reads what an ordinary one reads,
//! and sees every commit before it.
//!
//! The tag is weak, since it is of the body before its compression. A streamed body has none: it would be read twice.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};

use crate::reply::Reply;

/// Bytes of a digest that are in a tag.
///
/// Larger: longer headers. Smaller: two bodies might have the same tag.
const TAG_BYTES: usize = 16;

/// Adds its tag to an answer, and empties it if the client has it already.
pub(super) fn answer(reply: Reply, headers: &HeaderMap) -> Reply {
    if reply.status != StatusCode::OK || reply.rest.is_some() {
        return reply;
    }
    let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&reply.body)[..TAG_BYTES]);
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|list| matches(list.as_bytes(), tag.as_bytes()));
    let tag = HeaderValue::try_from(format!("W/\"{tag}\"")).expect("Base64 is ASCII");
    // Nothing on the way may keep an account's data, but the client's own cache may, and asks each time.
    let cached = HeaderValue::from_static("private, no-cache");
    let reply = reply.with_header(ETAG, tag).with_header(CACHE_CONTROL, cached);
    if is_known {
        Reply { status: StatusCode::NOT_MODIFIED, body: Bytes::new(), read: Vec::new(), rows: None, ..reply }
    } else {
        reply
    }
}

/// Whether a list of tags, or `*`, matches a tag, by weak comparison. What is no tag matches nothing.
fn matches(list: &[u8], tag: &[u8]) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let mut rest = list;
    while let Some(open) = rest.iter().position(|byte| *byte == b'"') {
        let opaque = &rest[open + 1..];
        let Some(close) = opaque.iter().position(|byte| *byte == b'"') else { return false };
        if &opaque[..close] == tag {
            return true;
        }
        rest = &opaque[close + 1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(body: &'static str, asked: &[&'static str]) -> Reply {
        let headers = asked.iter().map(|value| (IF_NONE_MATCH, HeaderValue::from_static(value)));
        answer(Reply::of_json(StatusCode::OK, body.into()), &headers.collect())
    }

    #[test]
    fn a_body_that_the_client_has_is_not_sent() {
        let first = answered("{}", &[]);
        assert_eq!((first.status, &*first.body), (StatusCode::OK, &b"{}"[..]));
        assert_eq!(first.headers[ETAG], "W/\"RBNvo1WzZ4oRRq0W9-hkng\"");
        for (asked, is_known) in [
            (&["W/\"RBNvo1WzZ4oRRq0W9-hkng\""][..], true),
            (&["\"RBNvo1WzZ4oRRq0W9-hkng\""], true),
            (&["\"a,b\",W/\"\" , \"RBNvo1WzZ4oRRq0W9-hkng\""], true),
            (&["\"other\"", "W/\"RBNvo1WzZ4oRRq0W9-hkng\""], true),
            (&[" * "], true),
            (&["RBNvo1WzZ4oRRq0W9-hkng"], false),
            (&["\"RBNvo1WzZ4oRRq0W9-hkng"], false),
            (&["\"\", \"*\"", ""], false),
        ] {
            let again = answered("{}", asked);
            let expected = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
            assert_eq!((again.status, again.body.is_empty()), (expected, is_known), "{asked:?}");
            assert_eq!(again.headers[ETAG], first.headers[ETAG]);
            assert_eq!(answered("[]", asked).status == StatusCode::OK, asked != [" * "], "{asked:?}");
        }
    }

    #[test]
    fn a_refusal_has_no_tag() {
        let refused = answer(Reply::of_json(StatusCode::NOT_FOUND, "{}".into()), &HeaderMap::new());
        assert!(!refused.headers.contains_key(ETAG));
    }
}
