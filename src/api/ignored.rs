//! The `X-Ignored-Parameters` header: names in a request that the API does not know.
//!
//! Unknown parameters are ignored, so a client that sends `status` instead of `statuses`, or `per_page`, must be able
//! to see why it had no effect. This module owns the header: how a name is encoded, how many fit, and that names of
//! the query and the body share it. It does not decide which names are known: an [endpoint](crate::endpoint) lists its
//! query parameters, and a handler the keys of its body.

use std::collections::BTreeSet;

use http::header::{HeaderName, HeaderValue};

use crate::reply::Reply;

const HEADER: HeaderName = HeaderName::from_static("x-ignored-parameters");

/// The maximum size of the header in bytes. Larger: it overflows a proxy's header buffer, and the whole response is
/// lost. Smaller: some mistakes of a request are not listed.
const MAX_HEADER_BYTES: usize = 1024;

/// The maximum size of an encoded name in bytes. Larger: a single name fills the header. Smaller: long names that
/// differ only at their end look the same.
const MAX_NAME_BYTES: usize = 64;

/// Ignored names in the order in which they were added, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredParameters {
    header: String,
    /// The percent-encoded names in the header: a set, because a body can repeat its keys a million times.
    named: BTreeSet<String>,
    is_full: bool,
}

impl IgnoredParameters {
    /// The names in a query that are not known. Names are case-sensitive: `PAGE` is not `page`.
    #[must_use]
    pub fn from_query(query: &str, known: &[&str]) -> Self {
        Self::from_names(form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name), known)
    }

    /// The given names that are not known.
    pub(super) fn from_names<N: AsRef<str>>(names: impl Iterator<Item = N>, known: &[&str]) -> Self {
        let mut ignored = Self::default();
        names.filter(|name| !known.contains(&name.as_ref())).for_each(|name| ignored.add(name.as_ref()));
        ignored
    }

    /// Adds a name if the header has room. An empty name can't be listed.
    pub(super) fn add(&mut self, name: &str) {
        if !self.is_full && !name.is_empty() {
            self.add_encoded(encoded(name));
        }
    }

    fn add_encoded(&mut self, name: String) {
        if self.is_full || self.named.contains(&name) {
            return;
        }
        let separator = if self.header.is_empty() { "" } else { ", " };
        if self.header.len() + separator.len() + name.len() > MAX_HEADER_BYTES {
            self.is_full = true;
            return;
        }
        self.header.push_str(separator);
        self.header.push_str(&name);
        self.named.insert(name);
    }

    /// Adds the header to a reply, before the names that it already lists.
    #[must_use]
    pub fn add_to(mut self, reply: Reply) -> Reply {
        if self.header.is_empty() {
            return reply;
        }
        if let Some(named) = reply.headers.get(HEADER).and_then(|named| named.to_str().ok()) {
            named.split(", ").for_each(|name| self.add_encoded(name.to_owned()));
        }
        let value = HeaderValue::try_from(self.header).expect("percent-encoded names are visible ASCII");
        reply.with_header(HEADER, value)
    }
}

/// Encodes a name as in the query of a URL, truncated at a character boundary.
fn encoded(name: &str) -> String {
    let mut encoded = String::new();
    for character in name.chars() {
        let mut utf8 = [0; 4];
        let before = encoded.len();
        encoded.extend(form_urlencoded::byte_serialize(character.encode_utf8(&mut utf8).as_bytes()));
        if encoded.len() > MAX_NAME_BYTES {
            encoded.truncate(before);
            break;
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    fn named(ignored: IgnoredParameters, reply: Reply) -> Option<String> {
        ignored.add_to(reply).headers.get(HEADER).map(|value| value.to_str().unwrap().to_owned())
    }

    fn in_query(query: &str, known: &[&str]) -> Option<String> {
        named(IgnoredParameters::from_query(query, known), Reply::json(StatusCode::OK, &json!({})))
    }

    #[test]
    fn unknown_names_of_a_query_are_named_once_each_and_compared_exactly() {
        for (query, expected) in [
            ("", None),
            ("page=2&page=3", None),
            ("PAGE=2", Some("PAGE")),
            ("page[number]=2&page%5Bsize%5D=3", Some("page%5Bnumber%5D, page%5Bsize%5D")),
            ("limit=5&offset=20&limit=6", Some("limit, offset")),
            ("statuses[]=denied&b+%C3%BC", Some("statuses%5B%5D, b+%C3%BC")),
            ("=5&&=", None),
            ("%ff=1", Some("%EF%BF%BD")),
        ] {
            assert_eq!(in_query(query, &["page"]).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_two_characters() {
        assert_eq!(encoded(&"x".repeat(65)), "x".repeat(64));
        assert_eq!(encoded(&format!("x{}", "ü".repeat(20))), format!("x{}", "%C3%BC".repeat(10)));
        assert_eq!(encoded(&"😀".repeat(9)), "%F0%9F%98%80".repeat(5));
    }

    #[test]
    fn names_of_the_query_and_of_the_body_share_one_header_of_at_most_1024_bytes() {
        let of_body = |names: Vec<String>| {
            IgnoredParameters::from_names(names.iter(), &[]).add_to(Reply::json(StatusCode::OK, &json!({})))
        };
        let few = of_body(vec!["status".to_owned(), "limit".to_owned()]);
        assert_eq!(named(IgnoredParameters::from_query("limit=5", &[]), few).as_deref(), Some("limit, status"));
        let many = |prefix: &str| -> Vec<String> { (0..1000).map(|at| format!("{prefix}{at}")).collect() };
        let full = named(IgnoredParameters::from_query("limit=5", &[]), of_body(many("key"))).unwrap();
        assert!(full.starts_with("limit, key0, key1, ") && (1000..=MAX_HEADER_BYTES).contains(&full.len()), "{full}");
        let full =
            named(IgnoredParameters::from_query(&many("key").join("&"), &[]), of_body(vec!["status".to_owned()]))
                .unwrap();
        assert!(full.starts_with("key0, key1, ") && (1000..=MAX_HEADER_BYTES).contains(&full.len()), "{full}");
    }
}
