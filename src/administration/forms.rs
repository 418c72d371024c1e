//! The body of a form, parsed, and the parameters of a query.
//!
//! Owns what is accepted as a form: a single encoding, UTF-8, few fields, each of them once but for boxes to check.

use std::borrow::Cow;
use std::collections::HashSet;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request;

/// The most fields of a form. Larger: more fields that nothing reads. Smaller: the largest form does not fit.
const MAX_FIELDS: usize = 20;

/// The field that a form may have several times: a browser sends it for each box that is checked.
const BOXES: &str = "scopes";

/// Why a body is no form of this area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormFault {
    /// It has another type.
    Type,
    /// It is not UTF-8, has too many fields, or one of them twice.
    Content,
}

/// The fields of a form.
#[derive(Debug)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn parse(head: &request::Parts, body: &[u8]) -> Result<Self, FormFault> {
        let media = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        let is_form = media.eq_ignore_ascii_case("application/x-www-form-urlencoded");
        if !is_form || head.headers.contains_key(CONTENT_ENCODING) {
            return Err(FormFault::Type);
        }
        // The parser replaces what is not UTF-8.
        let is_text = percent_encoding::percent_decode(body).decode_utf8().is_ok();
        let fields: Vec<_> = form_urlencoded::parse(body).into_owned().take(MAX_FIELDS + 1).collect();
        let is_twice = |(at, (name, _)): (usize, &(String, String))| {
            name != BOXES && fields[..at].iter().any(|(other, _)| other == name)
        };
        if !is_text || fields.len() > MAX_FIELDS || fields.iter().enumerate().any(is_twice) {
            return Err(FormFault::Content);
        }
        Ok(Self(fields))
    }

    /// A field as sent; a missing one is empty.
    pub(super) fn field(&self, name: &str) -> &str {
        self.fields(name).next().unwrap_or_default()
    }

    /// Each value of a field.
    pub(super) fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| &**value)
    }
}

/// A parameter of a query; a missing one is empty.
pub(super) fn parameter<'q>(query: Option<&'q str>, name: &str) -> Cow<'q, str> {
    let mut parameters = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    parameters.find(|(parameter, _)| parameter == name).map(|(_, value)| value).unwrap_or_default()
}

/// A number as links contain it: without a sign or leading zeros.
pub(super) fn parse_id(id: &str) -> Option<i64> {
    id.parse().ok().filter(|number: &i64| number.to_string() == id)
}

/// Whether a query has a parameter more than once: which one is meant can't be known.
pub(super) fn repeats_a_parameter(query: Option<&str>) -> bool {
    let mut names = HashSet::new();
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).any(|(name, _)| !names.insert(name))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const TYPE: &str = "application/x-www-form-urlencoded";

    fn parse(media: &str, body: &str) -> Result<Form, FormFault> {
        let (head, ()) = Request::post("/").header(CONTENT_TYPE, media).body(()).unwrap().into_parts();
        Form::parse(&head, body.as_bytes())
    }

    #[test]
    fn a_form_is_read_as_browsers_send_it() {
        let form =
            parse("Application/X-WWW-Form-Urlencoded; charset=UTF-8", "name=Z%C3%BCrich+%26+B%2B&expires=").unwrap();
        assert_eq!((form.field("name"), form.field("expires"), form.field("other")), ("Zürich & B+", "", ""));
        let form = parse(TYPE, "scopes=&scopes=forms%3Aread&scopes=scim").unwrap();
        assert_eq!(form.fields("scopes").collect::<Vec<_>>(), ["", "forms:read", "scim"]);
    }

    #[test]
    fn a_parameter_that_is_given_twice_is_noticed_however_it_is_spelled() {
        for (query, expected) in
            [(None, false), (Some("a=1&b=1"), false), (Some("a=1&b=2&%61=1"), true), (Some("show=x&show"), true)]
        {
            assert_eq!(repeats_a_parameter(query), expected, "{query:?}");
        }
    }

    #[test]
    fn anything_else_is_no_form() {
        for media in ["application/json", "multipart/form-data; boundary=x", "text/plain", ""] {
            assert_eq!(parse(media, "name=a").unwrap_err(), FormFault::Type, "{media}");
        }
        let many: Vec<_> = (0..=MAX_FIELDS).map(|n| format!("a{n}=")).collect();
        for body in ["name=%FF", "name=a&name=b", &many.join("&")] {
            assert_eq!(parse(TYPE, body).unwrap_err(), FormFault::Content, "{body}");
        }
    }
}
