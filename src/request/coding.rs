//! The accepted formats of a request's body: JSON in UTF-8, plain or compressed by gzip.
//!
//! Owns what the head says about the format, and the check of the body's first bytes against it. A `Content-Type`
//! that doesn't name a format (none, `text/plain`, a private type) means JSON, since many clients send one of those.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::error::Refusal;

/// An accepted content coding (RFC 9110, section 8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

/// What a head says about its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeclaredFormat {
    pub(super) coding: Coding,
    /// The declared type is a form.
    is_form: bool,
}

/// The type that `curl -d` and PowerShell send by default, even for JSON.
const FORM: &str = "application/x-www-form-urlencoded";

impl DeclaredFormat {
    /// Plain JSON.
    pub(super) const JSON: Self = Self { coding: Coding::Identity, is_form: false };

    /// Reads a head.
    ///
    /// # Errors
    /// [`Refusal::UnsupportedCoding`], [`Refusal::UnsupportedCharset`], [`Refusal::UnsupportedForm`].
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut declared = Self::JSON;
        for value in headers.get_all(CONTENT_TYPE) {
            // A value that is not text names no type that is refused here.
            if let Ok(text) = value.to_str() {
                declared.is_form |= check_type(text)?;
            }
        }
        for value in headers.get_all(CONTENT_ENCODING) {
            let names = value.to_str().map_err(|_| Refusal::UnsupportedCoding)?.split(',').map(str::trim);
            for name in names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity")) {
                let is_gzip = name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip");
                // In a body that is compressed twice, each step can expand it a thousandfold.
                if !is_gzip || declared.coding == Coding::Gzip {
                    return Err(Refusal::UnsupportedCoding);
                }
                declared.coding = Coding::Gzip;
            }
        }
        Ok(declared)
    }

    /// Refuses a body in undeclared UTF-16 or UTF-32, and a form. JSON that is declared as a form passes: some
    /// clients don't set the type.
    ///
    /// # Errors
    /// [`Refusal::UnsupportedCharset`], [`Refusal::UnsupportedForm`].
    pub(super) fn check(self, body: &[u8]) -> Result<(), Refusal> {
        if is_utf_16_or_32(body) {
            return Err(Refusal::UnsupportedCharset);
        }
        let body = body.trim_ascii();
        let is_json = body == b"null" || matches!(body.first(), None | Some(b'{' | b'[' | b'"' | 0xef));
        if self.is_form && !is_json { Err(Refusal::UnsupportedForm { sent: FORM }) } else { Ok(()) }
    }
}

/// Whether a text starts with a byte order mark of UTF-16 or UTF-32, or has zero bytes where these encodings have
/// them in JSON, whose first character is ASCII (RFC 4627, section 3).
fn is_utf_16_or_32(body: &[u8]) -> bool {
    match body {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 0, 0xfe, 0xff, ..] | [0, 0, 0, 1..=255, ..] => true,
        [first, second, ..] => (*first == 0) != (*second == 0),
        _ => false,
    }
}

/// Whether a media type is that of a form.
fn check_type(text: &str) -> Result<bool, Refusal> {
    let mut parts = text.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default();
    if media_type.get(.."multipart/".len()).is_some_and(|start| start.eq_ignore_ascii_case("multipart/")) {
        return Err(Refusal::UnsupportedForm { sent: "multipart/form-data" });
    }
    let mut parameters = parts.filter_map(|part| part.split_once('='));
    let charset = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    let charset = charset.map_or("", |(_, charset)| charset.trim().trim_matches('"'));
    // ASCII is a subset of UTF-8.
    let taken = ["", "utf-8", "utf8", "us-ascii", "ascii"];
    if taken.iter().any(|taken| charset.eq_ignore_ascii_case(taken)) {
        Ok(media_type.eq_ignore_ascii_case(FORM))
    } else {
        Err(Refusal::UnsupportedCharset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &http::HeaderName, values: &[&str]) -> Result<DeclaredFormat, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value.parse().unwrap());
        }
        DeclaredFormat::of(&headers).map_err(|refusal| format!("{refusal:?}"))
    }

    #[test]
    fn gzip_is_the_only_coding_and_may_come_once() {
        for (values, coding) in [
            (&[][..], Some(Coding::Identity)),
            (&["identity"], Some(Coding::Identity)),
            (&["", "identity, Identity"], Some(Coding::Identity)),
            (&["gzip"], Some(Coding::Gzip)),
            (&["X-GZip"], Some(Coding::Gzip)),
            (&["identity, gzip"], Some(Coding::Gzip)),
            (&["gzip, gzip"], None),
            (&["gzip", "x-gzip"], None),
            (&["br"], None),
            (&["deflate, gzip"], None),
            (&["zstd"], None),
            (&["aws-chunked"], None),
        ] {
            assert_eq!(of(&CONTENT_ENCODING, values).ok().map(|declared| declared.coding), coding, "{values:?}");
        }
    }

    #[test]
    fn json_in_utf_8_is_accepted_under_any_type_but_that_of_a_form() {
        for value in [
            "application/json",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json; Charset=utf8; profile=x",
            "application/vnd.api+json",
            "text/plain",
            "text/plain; charset=us-ascii",
            "application/octet-stream",
            "nonsense",
            "",
        ] {
            assert_eq!(of(&CONTENT_TYPE, &[value]), Ok(DeclaredFormat::JSON), "{value:?}");
        }
        for (value, refusal) in [
            ("application/json; charset=utf-16", "UnsupportedCharset"),
            ("application/json; charset=\"ISO-8859-1\"", "UnsupportedCharset"),
            ("text/plain;charset=windows-1252", "UnsupportedCharset"),
            ("Application/X-WWW-Form-URLencoded; charset=latin1", "UnsupportedCharset"),
            ("multipart/form-data; boundary=x", "multipart"),
            ("Multipart/Mixed", "multipart"),
        ] {
            assert!(of(&CONTENT_TYPE, &[value]).is_err_and(|refused| refused.contains(refusal)), "{value:?}");
        }
    }

    #[test]
    fn a_form_is_refused_and_json_that_curl_sends_as_one_is_not() {
        let declared = of(&CONTENT_TYPE, &["Application/X-WWW-Form-URLencoded"]).unwrap();
        for (body, taken) in [
            ("", true),
            (" \n{\"search\": \"a=b\"}", true),
            ("\u{feff}{}", true),
            ("[]", true),
            ("null\n", true),
            ("null=1", false),
            ("search=abc", false),
            ("%7B%7D", false),
            ("a", false),
        ] {
            assert_eq!(declared.check(body.as_bytes()).is_ok(), taken, "{body:?}");
            assert!(DeclaredFormat::JSON.check(body.as_bytes()).is_ok());
        }
    }
}
