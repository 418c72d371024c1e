//! An answer, and the rules that hold for every one of them.
//!
//! Owns what all answers have in common: request id, content type, rate headers, the shape of a refusal. A test states
//! only what is special about its own.

use std::fmt;
use std::io::Read;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::Value;

/// What pages of the administration area may load.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
    frame-ancestors 'none'; base-uri 'none'";

/// A whole answer.
pub(crate) struct Answer {
    /// The status; compares with a number: `assert_eq!(answer.status, 404)`.
    pub(crate) status: StatusCode,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body as it came, compressed if the call asked for that.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first answer in what a server wrote on an HTTP/1.1 connection; none when there is no whole one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 4..]);
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let fields = lines.map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
        });
        let headers: HeaderMap = fields.collect::<Option<Vec<_>>>()?.into_iter().collect();
        let mut answer = Self { status, headers, body: body.to_vec() };
        if let Some(length) = answer.number("content-length") {
            answer.body.truncate(usize::try_from(length).ok()?);
        }
        Some(answer)
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// A header's text, if it is there.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header of visible ASCII"))
    }

    /// A header's number, if it is one.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// The first rule that the answer to a call of `method` breaks.
    pub(crate) fn fault(&self, method: &Method) -> Option<&'static str> {
        if self.header("content-security-policy").is_some() {
            return self.fault_of_page(method);
        }
        if self.header("content-type") == Some("application/scim+json") {
            return self.fault_of_scim(method);
        }
        self.fault_of_headers(method).or_else(|| self.fault_of_body(method))
    }

    /// The rules for answers to SCIM clients.
    fn fault_of_scim(&self, method: &Method) -> Option<&'static str> {
        let must = |holds: bool, rule| if holds { None } else { Some(rule) };
        let json = serde_json::from_slice::<Value>(&self.body).unwrap_or_default();
        let schemas = json["schemas"].as_array().is_some_and(|schemas| schemas.iter().all(Value::is_string));
        let is_error = json["schemas"][0] == "urn:ietf:params:scim:api:messages:2.0:Error"
            && json["status"] == self.status.as_str()
            && json["detail"].as_str().is_some_and(|detail| !detail.is_empty());
        must(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "an answer has X-Request-Id")
            .or_else(|| must(self.number("x-ratelimit-limit").is_some(), "an answer has the rate headers"))
            .or_else(|| must(self.status != 429 || self.number("retry-after") >= Some(1), "a 429 has Retry-After"))
            .or_else(|| must(self.status != 405 || self.header("allow").is_some(), "a 405 has Allow"))
            .or_else(|| {
                let has_body = *method != Method::HEAD;
                must(schemas || !has_body, "an answer of SCIM has schemas").or_else(|| {
                    let is_refused = has_body && self.status.as_u16() >= 400;
                    must(is_error == is_refused, "a refusal is an error of SCIM, and nothing else is")
                })
            })
    }

    /// The rules for answers of the administration area.
    fn fault_of_page(&self, method: &Method) -> Option<&'static str> {
        let must = |holds: bool, rule| if holds { None } else { Some(rule) };
        let is = |name: &str, value: &str| self.header(name) == Some(value);
        let kind = self.header("content-type").unwrap_or_default();
        let is_page = kind == "text/html; charset=utf-8";
        let is_whole = || {
            let text = String::from_utf8_lossy(&self.body);
            let once = |tag: &str| text.matches(tag).count() == 1;
            // The bars of a chart have titles of their own.
            let titles = text.matches("<title>").count() - text.matches("<g><title>").count();
            titles == 1 && once("<h1") && once("<main id=\"main\"") && text.ends_with("</html>")
        };
        must(
            is_page
                || [
                    "text/css; charset=utf-8",
                    "image/svg+xml",
                    "application/x-ndjson",
                    "text/csv; charset=utf-8; header=present",
                    "application/vnd.apache.parquet",
                    "application/json",
                ]
                .contains(&kind),
            "a known type",
        )
        .or_else(|| must(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "an answer has X-Request-Id"))
        .or_else(|| must(is("content-security-policy", PAGE_POLICY), "a page loads only its own style sheet"))
        .or_else(|| must(is("x-content-type-options", "nosniff"), "a page's type is not guessed"))
        .or_else(|| must(is("cross-origin-opener-policy", "same-origin"), "no other site keeps a hold of a page"))
        .or_else(|| must(self.header("referrer-policy").is_some(), "a page says what it is a referrer for"))
        .or_else(|| must(is("cache-control", "no-store") || !is_page, "a page is not stored"))
        .or_else(|| must(self.header("x-ratelimit-limit").is_none(), "a page reports no budget in its headers"))
        .or_else(|| must(self.header("content-encoding").is_none() || !is_page, "a page is not compressed"))
        .or_else(|| match self.status.as_u16() {
            405 => must(self.header("allow").is_some(), "a 405 has Allow"),
            429 => must(self.number("retry-after") >= Some(1), "a 429 has Retry-After of at least 1"),
            303 => must(self.header("location").is_some(), "a 303 leads somewhere"),
            _ => must(!is_page || *method == Method::HEAD || is_whole(), "a page has one title, h1 and main"),
        })
    }

    fn fault_of_headers(&self, method: &Method) -> Option<&'static str> {
        let must = |holds: bool, rule| if holds { None } else { Some(rule) };
        let special = match self.status.as_u16() {
            401 => must(self.header("www-authenticate") == Some("Bearer"), "a 401 has WWW-Authenticate: Bearer"),
            405 => must(self.header("allow").is_some_and(|list| !list.is_empty()), "a 405 has Allow"),
            429 => must(self.number("retry-after") >= Some(1), "a 429 has Retry-After of at least 1"),
            _ => None,
        };
        if special.is_some() || !self.is_of_an_account(method) {
            return special;
        }
        let is_empty = matches!(self.status.as_u16(), 204 | 304);
        let is_json = self.header("content-type") == Some("application/json") || self.is_export();
        must(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "an answer has X-Request-Id")
            .or_else(|| must(is_json || is_empty, "a body is application/json"))
            .or_else(|| {
                let (limit, remaining) = (self.number("x-ratelimit-limit"), self.number("x-ratelimit-remaining"));
                must(limit.is_some() && remaining.is_some(), "an answer has both rate headers")
                    .or_else(|| must(remaining <= limit, "no more remains than the limit"))
            })
    }

    fn fault_of_body(&self, method: &Method) -> Option<&'static str> {
        if *method == Method::HEAD {
            return if self.body.is_empty() { None } else { Some("an answer to HEAD has no body") };
        }
        if self.status == 304 {
            return if self.body.is_empty() { None } else { Some("a 304 has no body") };
        }
        let refused = self.status.as_u16() >= 400;
        if self.header("content-encoding").is_some() || self.is_export() || !(refused || self.is_of_an_account(method))
        {
            return None;
        }
        if matches!(self.status.as_u16(), 204 | 304) {
            return if self.body.is_empty() { None } else { Some("an answer without content has no body") };
        }
        let Ok(json) = serde_json::from_slice::<Value>(&self.body) else { return Some("a body is JSON") };
        if refused && !json["message"].is_string() {
            return Some("a refusal has a message");
        }
        if self.status == 422 && !is_map_of_texts(&json["errors"]) {
            return Some("a 422 has errors: an array of texts for each field");
        }
        None
    }

    /// Whether it is an export, whose body is in one of several formats.
    pub(crate) fn is_export(&self) -> bool {
        self.status == 200 && self.header("formgate-cursor").is_some()
    }

    /// Whether an account was found at the address; the rules on accounts' answers do not bind the others. A 404 to HEAD
    /// does not tell, and is let pass.
    fn is_of_an_account(&self, method: &Method) -> bool {
        let no_account = || {
            let body: Option<Value> = serde_json::from_slice(&self.body).ok();
            *method == Method::HEAD || body.is_some_and(|body| body["message"] == "Account not found")
        };
        match self.status.as_u16() {
            400 | 421 => false,
            404 => !no_account(),
            _ => true,
        }
    }
}

fn is_map_of_texts(value: &Value) -> bool {
    let is_texts =
        |value: &Value| value.as_array().is_some_and(|texts| !texts.is_empty() && texts.iter().all(Value::is_string));
    value.as_object().is_some_and(|fields| !fields.is_empty() && fields.values().all(is_texts))
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
        }
        write!(f, "\n{}", String::from_utf8_lossy(&self.body))
    }
}

/// A body that came in a content coding, in plain.
pub(crate) fn decoded(encoding: &str, body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match encoding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut plain),
        "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut plain),
        "zstd" => return zstd::decode_all(body).expect("valid zstd"),
        _ => panic!("{encoding} was not asked for"),
    }
    .unwrap_or_else(|error| panic!("no valid {encoding}: {error}"));
    plain
}
