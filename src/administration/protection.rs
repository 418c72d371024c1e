//! Protection from requests that another site makes a browser send, and the headers that protect each page.
//!
//! Browsers send `Origin` with every POST, and current ones `Sec-Fetch-Site`. A POST of anything else than the own
//! origin is refused before its session is looked up.

use http::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::request;

use crate::gate::Origin;
use crate::reply::Reply;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
    frame-ancestors 'none'; base-uri 'none'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Which requests have the address of a page as their referrer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referrer {
    /// Those to this site.
    SameOrigin,
    /// None: the address is a secret.
    Nothing,
}

/// Adds the headers that protect an answer.
pub(super) fn protect(reply: Reply, referrer: Referrer) -> Reply {
    let referrer = match referrer {
        Referrer::SameOrigin => "same-origin",
        Referrer::Nothing => "no-referrer",
    };
    reply
        .with_header(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))
        .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .with_header(REFERRER_POLICY, HeaderValue::from_static(referrer))
        .with_header(OPENER_POLICY, HeaderValue::from_static("same-origin"))
}

/// Whether a POST comes from a page of this origin. A page that keeps its address secret has no origin in its requests
/// (`null`), so there the browser has to state the site.
pub(super) fn is_from_own_page(head: &request::Parts, own: &Origin<'_>, page: Referrer) -> bool {
    let one = |name: HeaderName| {
        let mut values = head.headers.get_all(name).iter();
        let first = values.next().map(|value| value.to_str().unwrap_or_default());
        if values.next().is_some() { Some("") } else { first }
    };
    let site = one(FETCH_SITE);
    if site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    let own = Origin { port: own.port.filter(|port| !port.is_empty() && *port != "443"), ..*own };
    match one(ORIGIN) {
        Some("null") => page == Referrer::Nothing && site.is_some(),
        Some(origin) => origin == own.to_string(),
        None => false,
    }
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::host::HostName;

    #[test]
    fn only_a_page_of_the_own_origin_may_post() {
        let host = HostName::parse("acme.example.com").unwrap();
        let from = |headers: &[(&str, &str)], port, page| {
            let request =
                headers.iter().fold(Request::post("/"), |request, (name, value)| request.header(*name, *value));
            let (head, ()) = request.body(()).unwrap().into_parts();
            is_from_own_page(&head, &Origin { host: &host, port }, page)
        };
        let own = ("origin", "https://acme.example.com");
        for (headers, port, expected) in [
            (&[own][..], None, true),
            (&[own], Some("443"), true),
            (&[own], Some(""), true),
            (&[own], Some("8443"), false),
            (&[("origin", "https://acme.example.com:8443")], Some("8443"), true),
            (&[own, ("sec-fetch-site", "same-origin")], None, true),
            (&[own, ("sec-fetch-site", "same-site")], None, false),
            (&[own, ("sec-fetch-site", "cross-site")], None, false),
            (&[own, ("sec-fetch-site", "none")], None, false),
            (&[own, own], None, false),
            (&[("sec-fetch-site", "same-origin")], None, false),
            (&[("origin", "http://acme.example.com")], None, false),
            (&[("origin", "https://globex.example.com")], None, false),
            (&[("origin", "https://acme.example.com.evil.example")], None, false),
            (&[("origin", "null")], None, false),
            (&[("origin", "null"), ("sec-fetch-site", "same-origin")], None, false),
        ] {
            assert_eq!(from(headers, port, Referrer::SameOrigin), expected, "{headers:?} {port:?}");
        }
        assert!(from(&[("origin", "null"), ("sec-fetch-site", "same-origin")], None, Referrer::Nothing));
        assert!(!from(&[("origin", "null")], None, Referrer::Nothing));
        assert!(!from(&[("origin", "null"), ("sec-fetch-site", "cross-site")], None, Referrer::Nothing));
    }
}
