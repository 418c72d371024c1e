//! The body of a request: a JSON object, name by name.

use std::collections::HashMap;
use std::fmt::{self, Display};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json_borrow::{KeyStrType, ObjectAsVec, Value};

use super::ignored::Ignored;
use crate::error::{Faults, Refusal};
use crate::reply::Reply;

/// A body that is a JSON object, its keys in the order in which they came. Its texts stay where they were sent.
#[derive(Debug, Default)]
pub(super) struct Body<'b>(Vec<(KeyStrType<'b>, Value<'b>)>);

impl<'b> Body<'b> {
    /// Reads a body; an empty one is an empty object.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] on `body` for malformed JSON, invalid UTF-8, nesting deeper than 127, and anything but an
    /// object.
    pub(super) fn parse(bytes: &'b [u8]) -> Result<Self, Refusal> {
        Self::parse_with(bytes, &mut AsSent)
    }

    /// The same, each value read by a reader.
    ///
    /// # Errors
    /// As of [`Self::parse`].
    pub(super) fn parse_with(bytes: &'b [u8], reader: &mut impl Reader<'b>) -> Result<Self, Refusal> {
        if bytes.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let malformed =
            |error: &dyn Display| Faults::only("body", format_args!("The body must be valid JSON: {error}."));
        let text = str::from_utf8(bytes).map_err(|error| malformed(&error))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let body = json.deserialize_map(BodyVisitor(reader)).and_then(|body| json.end().map(|()| body));
        body.map_err(|error| match error.classify() {
            Category::Data => Faults::only("body", "The body must be a JSON object."),
            _ => malformed(&error),
        })
    }

    /// The names of everything that was sent.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        entries(&self.0).map(|(name, _)| name)
    }

    /// Names the keys that are not among the known ones in `X-Ignored-Parameters`.
    pub(super) fn name_ignored(&self, reply: Reply, known: &[&str]) -> Reply {
        Ignored::of(self.keys(), known).name_in(reply)
    }

    /// Everything that was sent with a value: `null` is as if it were not sent.
    pub(super) fn sent(&self) -> impl Iterator<Item = (&str, &Value<'b>)> {
        present(&self.0)
    }
}

/// Reads the values of a body as they come, where one is better not kept as a [`Value`].
pub(super) trait Reader<'b> {
    /// The value of a name; what is returned stands in the body for it.
    fn value<A: MapAccess<'b>>(&mut self, name: &str, from: &mut A) -> Result<Value<'b>, A::Error>;
}

struct AsSent;

impl<'b> Reader<'b> for AsSent {
    fn value<A: MapAccess<'b>>(&mut self, _: &str, from: &mut A) -> Result<Value<'b>, A::Error> {
        from.next_value()
    }
}

struct BodyVisitor<'r, R>(&'r mut R);

impl<'b, R: Reader<'b>> Visitor<'b> for BodyVisitor<'_, R> {
    type Value = Body<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Body<'b>, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<KeyStrType<'b>>()? {
            let value = self.0.value(&name, &mut map)?;
            entries.push((name, value));
        }
        Ok(Body(entries))
    }
}

/// Up to so many names of an object are compared with each other. Of more a table is made: a body may have a million.
const FEW: usize = 16;

/// The names and values of an object. Of a name that comes twice the last one counts, as for most who read JSON (RFC 8259,
/// section 4).
fn entries<'o, 'b>(object: &'o [(KeyStrType<'o>, Value<'b>)]) -> impl Iterator<Item = (&'o str, &'o Value<'b>)> {
    let last: Option<HashMap<&str, usize>> =
        (object.len() > FEW).then(|| object.iter().enumerate().map(|(at, (name, _))| (&**name, at)).collect());
    let is_last = move |at: usize, name: &str| match &last {
        Some(last) => last[name] == at,
        None => object[at + 1..].iter().all(|(later, _)| *later != name),
    };
    let named = object.iter().map(|(name, value)| (&**name, value));
    named.enumerate().filter(move |&(at, (name, _))| is_last(at, name)).map(|(_, entry)| entry)
}

/// The same without what is `null`, which is as if it were not sent.
pub(super) fn sent<'o, 'b>(object: &'o ObjectAsVec<'b>) -> impl Iterator<Item = (&'o str, &'o Value<'b>)> {
    present(object.as_vec())
}

fn present<'o, 'b>(object: &'o [(KeyStrType<'o>, Value<'b>)]) -> impl Iterator<Item = (&'o str, &'o Value<'b>)> {
    entries(object).filter(|(_, value)| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
