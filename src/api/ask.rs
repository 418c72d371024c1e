//! Reading a request's JSON: every fault is noted under its path, and reading goes on.
//!
//! Derived deserialisation stops at the first wrong type; callers are to learn of all faults at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use http::header::{HeaderName, HeaderValue};
use serde_json_borrow::{Number, ObjectAsVec, Value};

use super::id::{Kind, parse_number};
use crate::error::{Faults, Refusal};
use crate::reply::Reply;

const IGNORED: HeaderName = HeaderName::from_static("x-ignored-parameters");

/// How much of `X-Ignored-Parameters` is shown: enough for every mistake, too little to fill a proxy's header buffer.
const IGNORED_LIMIT: usize = 1024;

/// A body that is a JSON object, its keys in the order in which they came. Its texts stay where they were sent.
#[derive(Debug)]
pub(super) struct Body<'b>(ObjectAsVec<'b>);

impl<'b> Body<'b> {
    /// Reads a body; an empty one is an empty object.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] on `body` for malformed JSON, invalid UTF-8, nesting deeper than 127, and anything but an
    /// object.
    pub(super) fn parse(bytes: &'b [u8]) -> Result<Self, Refusal> {
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(ObjectAsVec::default()));
        }
        // A text is checked at once here and by pieces there; but there it is told where it is none.
        let parsed = str::from_utf8(bytes).map_or_else(|_| serde_json::from_slice(bytes), serde_json::from_str);
        match parsed {
            Ok(Value::Object(object)) => Ok(Self(object)),
            Ok(_) => Err(Faults::only("body", "The body must be a JSON object.")),
            Err(error) => Err(Faults::only("body", format_args!("The body must be valid JSON: {error}."))),
        }
    }

    /// The names of everything that was sent.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        entries(&self.0).map(|(name, _)| name)
    }

    /// Names the parameters that were ignored in a header of the answer, so that a caller who wrote `status` for
    /// `statuses` can see why it did nothing. What can't stand in a header is percent-encoded.
    pub(super) fn name_ignored(&self, reply: Reply, known: &[&str]) -> Reply {
        let mut names = String::new();
        // One without a name can't be named.
        for name in self.keys().filter(|name| !name.is_empty() && !known.contains(name)) {
            let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
            if names.len() + name.len() + 2 > IGNORED_LIMIT {
                break;
            }
            if !names.is_empty() {
                names.push_str(", ");
            }
            names.push_str(&name);
        }
        if names.is_empty() {
            return reply;
        }
        reply.with_header(IGNORED, HeaderValue::from_str(&names).expect("percent-encoded names are visible ASCII"))
    }

    /// Everything that was sent with a value: `null` is as if it were not sent.
    pub(super) fn sent(&self) -> impl Iterator<Item = (&str, &Value<'b>)> {
        sent(&self.0)
    }
}

/// Up to so many names of an object are compared with each other. Of more a table is made: a body may have a million.
const FEW: usize = 16;

/// The names and values of an object. Of a name that comes twice the last one counts, as for most who read JSON (RFC 8259,
/// section 4).
fn entries<'o, 'b>(object: &'o ObjectAsVec<'b>) -> impl Iterator<Item = (&'o str, &'o Value<'b>)> {
    let last: Option<HashMap<&str, usize>> =
        (object.len() > FEW).then(|| object.keys().enumerate().map(|(at, name)| (name, at)).collect());
    let is_last = move |at: usize, name: &str| match &last {
        Some(last) => last[name] == at,
        None => object.keys().skip(at + 1).all(|later| later != name),
    };
    object.iter().enumerate().filter(move |&(at, (name, _))| is_last(at, name)).map(|(_, entry)| entry)
}

/// The same without what is `null`, which is as if it were not sent.
pub(super) fn sent<'o, 'b>(object: &'o ObjectAsVec<'b>) -> impl Iterator<Item = (&'o str, &'o Value<'b>)> {
    entries(object).filter(|(_, value)| !value.is_null())
}

/// Where a value stands, as its faults name it: `members.3.email`. It becomes a text with the first fault, since a body may
/// have a hundred thousand members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'p> {
    Top(&'p str),
    Key(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(name),
            Self::Key(of, key) => write!(f, "{of}.{key}"),
            Self::Item(of, at) => write!(f, "{of}.{at}"),
        }
    }
}

impl<'p> From<&'p str> for Path<'p> {
    fn from(name: &'p str) -> Self {
        Self::Top(name)
    }
}

/// A text without NUL, which no database here can hold.
pub(super) fn text<'a>(value: &'a Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<&'a str> {
    match value {
        // JSON has no NUL that is not escaped, and what is escaped is not borrowed.
        Value::Str(Cow::Borrowed(text)) => Some(text),
        Value::Str(text) if !text.contains('\0') => Some(text),
        Value::Str(_) => {
            faults.add(path, format_args!("The {path} must not contain NUL characters."));
            None
        }
        _ => {
            faults.add(path, format_args!("The {path} must be a string."));
            None
        }
    }
}

/// Every item of an array, read one by one; the faulty ones are left out.
pub(super) fn list<'v, 'b, T>(
    value: &'v Value<'b>,
    path: Path<'_>,
    faults: &mut Faults,
    mut read: impl FnMut(&'v Value<'b>, Path<'_>, &mut Faults) -> Option<T>,
) -> Vec<T> {
    let Some(items) = value.as_array() else {
        faults.add(path, format_args!("The {path} must be an array."));
        return Vec::new();
    };
    let mut read_items = Vec::with_capacity(items.len());
    read_items.extend(items.iter().enumerate().filter_map(|(at, item)| read(item, Path::Item(&path, at), faults)));
    read_items
}

/// A positive 64-bit number, or a text of one.
pub(super) fn number(value: &Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<i64> {
    let number = match value {
        Value::Number(number) => whole(number),
        Value::Str(text) => parse_number(text),
        _ => None,
    };
    if number.is_none() {
        faults.add(path, format_args!("The {path} must be a positive integer."));
    }
    number
}

/// A positive 64-bit number, however it is spelled: JSON has one kind of numbers, and languages that do so too write
/// `7.0` or `7e0`.
fn whole(number: &Number) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    let spelled_otherwise = || {
        let number = number.as_f64().filter(|number| number.fract() == 0.0 && (1.0..END).contains(number))?;
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and within 64 bits")]
        Some(number as i64)
    };
    number.as_i64().filter(|&number| number > 0).or_else(spelled_otherwise)
}

/// A prefixed or bare id.
pub(super) fn id(value: &Value<'_>, path: Path<'_>, kind: Kind, faults: &mut Faults) -> Option<i64> {
    let id = match value {
        Value::Number(number) => whole(number),
        Value::Str(text) => kind.parse(text),
        _ => None,
    };
    if id.is_none() {
        faults
            .add(path, format_args!("The {path} must be a {} id: {}<number> or a number.", kind.name(), kind.prefix()));
    }
    id
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_is_read_however_it_is_spelled() {
        for (text, expected) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("70e-1", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854774784.0", Some(9_223_372_036_854_774_784)),
            ("9223372036854775808", None),
            ("9223372036854775808.0", None),
            ("1e400", None),
            ("7.5", None),
            ("0.0", None),
            ("-7.0", None),
        ] {
            let read = serde_json::from_str(text)
                .ok()
                .and_then(|value| number(&value, Path::Top("x"), &mut Faults::default()));
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn of_a_name_that_comes_twice_the_last_one_counts() {
        let many: String = (0..2 * FEW).map(|at| format!("\"{at}\": 1, ")).collect();
        for (text, expected) in [
            (r#"{"a": 1, "b": 2, "a": 3}"#.to_owned(), vec![("b", 2), ("a", 3)]),
            (r#"{"a": 1, "a": null}"#.to_owned(), vec![]),
            (format!(r#"{{"a": 1, {many}"b": 2, "a": 3}}"#), vec![("b", 2), ("a", 3)]),
        ] {
            let body = Body::parse(text.as_bytes()).unwrap();
            let read: Vec<_> = body.sent().map(|(name, value)| (name, value.as_i64().unwrap())).collect();
            let letters: Vec<_> = read.into_iter().filter(|(name, _)| name.chars().all(char::is_alphabetic)).collect();
            assert_eq!(letters, expected, "{text}");
        }
    }

    #[test]
    fn ignored_parameters_are_named_and_one_without_a_name_is_not() {
        let named = |body: serde_json::Value| {
            let text = body.to_string();
            let body = Body::parse(text.as_bytes()).unwrap();
            let reply = body.name_ignored(Reply::json(StatusCode::OK, &json!({})), &["known"]);
            reply.headers.get(IGNORED).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(named(json!({"a": 1, "": 2, "known": 3, "b ü": 4})).as_deref(), Some("a, b+%C3%BC"));
        assert_eq!(named(json!({"": 1, "known": 2})), None);
    }
}
