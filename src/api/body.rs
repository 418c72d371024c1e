//! The body of a request: a JSON object.
//!
//! Owns which keys are kept. A body is read in two steps. First it is validated as a whole and split into the JSON
//! texts of its known values; then each value is read ([`super::values`]). Values that no reader needs are never
//! built, so a body of 16 MiB costs only its own bytes, however many values it has.

use std::fmt::{self, Display};
use std::mem;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::Call;
use super::ignored::IgnoredParameters;
use super::reader::{ReadKey, ReaderSeed, Skip, ValueReader};
use crate::error::{Faults, Refusal};
use crate::json_text::without_mark;

/// A body that is a JSON object.
#[derive(Debug, Default)]
pub(super) struct Body<'b> {
    /// The known entries in body order.
    entries: Vec<BodyEntry<'b>>,
    ignored: IgnoredParameters,
}

/// A key and its value as JSON text.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyEntry<'b> {
    /// The key.
    pub(super) name: &'static str,
    /// The JSON text of the value.
    pub(super) json: &'b RawValue,
}

impl<'b> Body<'b> {
    /// Parses the body of a call, and records its unknown keys in [`Call::ignored`].
    ///
    /// # Errors
    /// See [`Body::parse`].
    pub(super) fn of(call: &'b Call<'_>, known: &[&'static str]) -> Result<Self, Refusal> {
        let mut body = Self::parse(&call.body, known)?;
        call.ignored.get_or_init(|| mem::take(&mut body.ignored));
        Ok(body)
    }

    /// Parses a body. An empty one counts as an empty object, and so do `null` and `[]`, which is what PHP writes for an
    /// object without keys. If a key is repeated, the last value counts, as in most JSON parsers (RFC 8259, section 4).
    ///
    /// # Errors
    /// [`Refusal::Invalid`] on `body` for malformed JSON, invalid UTF-8, nesting deeper than 127, and anything but an
    /// object.
    pub(super) fn parse(bytes: &'b [u8], known: &[&'static str]) -> Result<Self, Refusal> {
        let bytes = without_mark(bytes);
        if bytes.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let text = str::from_utf8(bytes).map_err(|error| malformed(&error))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let body = json.deserialize_any(BodyVisitor { known }).and_then(|body| json.end().map(|()| body));
        body.map_err(|error| match error.classify() {
            Category::Data => Faults::single("body", "The body must be a JSON object."),
            _ => malformed(&error),
        })
    }

    /// The known entries, except those with the value `null`, which counts as absent.
    pub(super) fn entries(&self) -> impl Iterator<Item = &BodyEntry<'b>> {
        self.entries.iter().filter(|entry| !is_null(entry.json))
    }

    /// Whether a known key is present, even with the value `null`.
    pub(super) fn has_key(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }
}

impl<'b> BodyEntry<'b> {
    /// Reads the value.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] on `body` for values that turn out not to be JSON: a number out of range, an unpaired
    /// surrogate, nesting deeper than 127.
    pub(super) fn read<S: ValueReader<'b>>(&self, reader: S) -> Result<S::Value, Refusal> {
        let value = ReaderSeed(reader).deserialize(&mut serde_json::Deserializer::from_str(self.json.get()));
        value.map_err(|error| malformed(&format_args!("{error} of `{}`", self.name)))
    }
}

/// Whether a JSON text is `null`.
pub(super) fn is_null(text: &RawValue) -> bool {
    text.get() == "null"
}

fn malformed(error: &dyn Display) -> Refusal {
    Faults::single("body", format_args!("The body must be valid JSON: {error}."))
}

struct BodyVisitor<'k> {
    known: &'k [&'static str],
}

impl<'b> Visitor<'b> for BodyVisitor<'_> {
    type Value = Body<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<Body<'b>, E> {
        Ok(Body::default())
    }

    fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<Body<'b>, A::Error> {
        match items.next_element::<IgnoredAny>()? {
            None => Ok(Body::default()),
            Some(_) => Err(Error::invalid_type(Unexpected::Seq, &self)),
        }
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Body<'b>, A::Error> {
        let (mut entries, mut ignored) = (Vec::new(), IgnoredParameters::default());
        let mut known = |name: &str| {
            let known = self.known.iter().copied().find(|known| *known == name);
            if known.is_none() {
                ignored.add(name);
            }
            known
        };
        while let Some(name) = map.next_key_seed(ReadKey(&mut known))? {
            match name {
                Some(name) => {
                    let json = map.next_value()?;
                    entries.retain(|entry: &BodyEntry<'_>| entry.name != name);
                    entries.push(BodyEntry { name, json });
                }
                None => map.next_value_seed(Skip)?,
            }
        }
        Ok(Body { entries, ignored })
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::{ReadScalar, Scalar};
    use super::super::values;
    use super::*;

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        for (text, expected) in [
            (r#"{"a": 1, "b": 2, "a": 3}"#, vec![("b", 2), ("a", 3)]),
            (r#"{"a": 1, "a": null}"#, vec![]),
            (r#"{"a": [1e999, "\ud800"], "\u0061": 4, "c": [[]]}"#, vec![("a", 4)]),
        ] {
            let body = Body::parse(text.as_bytes(), &["a", "b"]).unwrap();
            let mut faults = Faults::default();
            let number = |entry: &BodyEntry<'_>, faults: &mut Faults| {
                entry.read(ReadScalar(|value: Scalar<'_>| values::number(&value, entry.name.into(), faults))).unwrap()
            };
            let read: Vec<_> = body.entries().map(|entry| (entry.name, number(entry, &mut faults).unwrap())).collect();
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn anything_but_a_json_object_is_a_fault_of_the_body() {
        let deep = |inside: &str| format!("{inside}{}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes();
        for body in [
            b"[1]".to_vec(),
            b"[[]]".to_vec(),
            b"1".to_vec(),
            b"{".to_vec(),
            b"{\"a\":1}x".to_vec(),
            b"\xff".to_vec(),
            b"{\"a\":\"\xff\"}".to_vec(),
            b"\xef\xbb\xbf\xef\xbb\xbf{}".to_vec(),
            b"{\0}\0".to_vec(),
            b"{\"unknown\": 1e999}".to_vec(),
            deep(""),
            [deep("{\"unknown\":"), b"}".to_vec()].concat(),
        ] {
            assert!(Body::parse(&body, &["a"]).is_err(), "{:?}", String::from_utf8_lossy(&body[..body.len().min(40)]));
        }
        for body in [&b""[..], b" \n", b"{}", b"[]", b" [ ] ", b"null", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}"] {
            assert_eq!(Body::parse(body, &["a"]).unwrap().entries().count(), 0);
        }
    }

    #[test]
    fn unknown_names_are_ignored_once_each_however_many_they_are() {
        let ignored = |text: &str| Body::parse(text.as_bytes(), &["known"]).unwrap().ignored;
        let expected = IgnoredParameters::from_names(["a", "b ü"].into_iter(), &[]);
        assert_eq!(ignored(r#"{"a": 1, "": 2, "known": 3, "b ü": 4, "a": []}"#), expected);
        assert_eq!(ignored(r#"{"": 1, "known": 2}"#), IgnoredParameters::default());
    }
}
