//! Reads the JSON of directories: keys without case, values in every form that directories send.
//!
//! A body is split into the JSON texts of the values that are read; all others are validated and passed over, so that a
//! body of any number of values costs only its own bytes. Lists of members are read as a stream.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::Fault;
use crate::json_text::without_mark;

/// The most bytes of a value that is read as a whole: everything but lists of members and of operations.
///
/// Larger: a body of many small values takes many times its size in memory. Smaller: a user with many addresses is refused.
const MAX_VALUE: usize = 64 * 1024;

/// The maximum length of a text in characters: columns of the databases take no more.
pub(super) const MAX_TEXT: usize = 255;

/// The values of an object, by keys in lower case: those that are read, in the order of the object.
#[derive(Debug, Default)]
pub(super) struct Object<'b>(Vec<(Cow<'b, str>, &'b RawValue)>);

/// Which keys of an object are read.
struct ObjectSeed<F>(F);

impl<'b, F: Fn(&str) -> bool> DeserializeSeed<'b> for ObjectSeed<F> {
    type Value = Object<'b>;

    fn deserialize<D: Deserializer<'b>>(self, json: D) -> Result<Object<'b>, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'b, F: Fn(&str) -> bool> Visitor<'b> for ObjectSeed<F> {
    type Value = Object<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut entries: A) -> Result<Object<'b>, A::Error> {
        #[derive(Deserialize)]
        struct Key<'b>(#[serde(borrow)] Cow<'b, str>);

        let mut found: Vec<(Cow<'b, str>, &'b RawValue)> = Vec::new();
        while let Some(Key(key)) = entries.next_key()? {
            let key = key.to_ascii_lowercase();
            if !(self.0)(&key) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = entries.next_value()?;
            // The last value of a repeated key counts, as in most JSON parsers (RFC 8259, section 4).
            found.retain(|(known, _)| *known != key);
            found.push((key.into(), value));
        }
        Ok(Object(found))
    }
}

impl<'b> Object<'b> {
    /// Reads a text that is an object.
    fn read(text: &'b str, is_read: impl Fn(&str) -> bool) -> Result<Self, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_str(text);
        let object = ObjectSeed(is_read).deserialize(&mut json)?;
        json.end()?;
        Ok(object)
    }

    /// Reads the body of a request.
    pub(super) fn of_body(body: &'b [u8], is_read: impl Fn(&str) -> bool) -> Result<Self, Fault> {
        let text = std::str::from_utf8(without_mark(body));
        let text = text.map_err(|_| Fault::syntax("The body is not UTF-8."))?;
        Self::read(text, is_read).map_err(|error| Fault::syntax(format!("The body is not a JSON object: {error}.")))
    }

    /// Reads a value that is an object; `None` if it is something else.
    pub(super) fn of_value(value: &'b RawValue, is_read: impl Fn(&str) -> bool) -> Option<Self> {
        Self::read(value.get(), is_read).ok()
    }

    /// The value of a key in lower case. `null` counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'b RawValue> {
        self.entries().find(|(known, _)| *known == key).map(|(_, value)| value).filter(|value| value.get() != "null")
    }

    /// Whether a key is there with `null` as its value.
    pub(super) fn has_null(&self, key: &str) -> bool {
        self.entries().any(|(known, value)| known == key && value.get() == "null")
    }

    /// The keys in lower case and the values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &'b RawValue)> {
        self.0.iter().map(|(key, value)| (&**key, *value))
    }
}

/// Reads at most `most` elements of an array; `None` if it is no array or has more.
pub(super) fn elements(value: &RawValue, most: usize) -> Option<Vec<&RawValue>> {
    struct Elements(usize);

    impl<'b> Visitor<'b> for Elements {
        type Value = Vec<&'b RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<Vec<&'b RawValue>, A::Error> {
            let mut found = Vec::new();
            while let Some(item) = items.next_element()? {
                if found.len() == self.0 {
                    return Err(A::Error::custom("too many"));
                }
                found.push(item);
            }
            Ok(found)
        }
    }

    serde_json::Deserializer::from_str(value.get()).deserialize_seq(Elements(most)).ok()
}

/// A value as a whole.
pub(super) fn whole(name: &str, value: &RawValue) -> Result<Value, Fault> {
    if value.get().len() > MAX_VALUE {
        return Err(Fault::value(format!("The value of {name} is too long.")));
    }
    serde_json::from_str(value.get())
        .map_err(|error| Fault::syntax(format!("The value of {name} is not JSON: {error}.")))
}

/// The only value in a list, or the value of an object: some directories wrap simple values.
fn unwrapped(value: &Value) -> &Value {
    match value {
        Value::Array(items) if items.len() == 1 => unwrapped(&items[0]),
        Value::Object(object) => {
            let inner = object.iter().find(|(key, _)| key.eq_ignore_ascii_case("value"));
            inner.map_or(value, |(_, inner)| inner)
        }
        _ => value,
    }
}

/// A text; `None` for `null` and for an empty one.
pub(super) fn text(name: &str, value: &Value) -> Result<Option<String>, Fault> {
    let text = match unwrapped(value) {
        Value::Null => return Ok(None),
        Value::String(text) => text.clone(),
        // Any other one was rounded when it was read.
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            return Err(Fault::value(format!("The value of {name} must be a text.")));
        }
    };
    if text.chars().nth(MAX_TEXT).is_some() {
        return Err(Fault::value(format!("The value of {name} must have at most {MAX_TEXT} characters.")));
    }
    if text.contains('\0') {
        return Err(Fault::value(format!("The value of {name} must not contain NUL characters.")));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// A truth, also as a text: Entra ID sends `"False"`.
pub(super) fn truth(name: &str, value: &Value) -> Result<bool, Fault> {
    match unwrapped(value) {
        Value::Bool(truth) => Ok(*truth),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(Fault::value(format!("The value of {name} must be true or false."))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_found_without_case_and_the_last_of_equal_ones_counts() {
        let object = Object::of_body(b"\xef\xbb\xbf{\"Op\": 1, \"other\": {}, \"oP\": [2], \"path\": null}", |key| {
            ["op", "path"].contains(&key)
        });
        let object = object.unwrap();
        assert_eq!(object.get("op").unwrap().get(), "[2]");
        assert_eq!((object.get("path").is_none(), object.entries().count()), (true, 2));
        for faulty in ["", "[]", "7", "{", "{}{}", "{\"a\": }", "\u{fffd}"] {
            assert!(Object::of_body(faulty.as_bytes(), |_| true).is_err(), "{faulty}");
        }
        assert!(Object::of_body(b"\xff", |_| true).is_err());
    }

    #[test]
    fn truths_and_texts_are_taken_in_every_form() {
        for (value, expected) in [
            (json!(true), Some(true)),
            (json!("False"), Some(false)),
            (json!("TRUE"), Some(true)),
            (json!([{"value": "false"}]), Some(false)),
            (json!({"value": true}), Some(true)),
            (json!("yes"), None),
            (json!(1), None),
            (json!(null), None),
            (json!([]), None),
        ] {
            assert_eq!(truth("active", &value).ok(), expected, "{value}");
        }
        for (value, expected) in [
            (json!("a"), Some(Some("a"))),
            (json!(["a"]), Some(Some("a"))),
            (json!([{"Value": "a"}]), Some(Some("a"))),
            (json!(7), Some(Some("7"))),
            (json!(""), Some(None)),
            (json!(null), Some(None)),
            (json!(["a", "b"]), None),
            (json!({"other": "a"}), None),
            (json!("a\0"), None),
            (json!("x".repeat(256)), None),
        ] {
            assert_eq!(text("displayName", &value).ok(), expected.map(|text| text.map(str::to_owned)), "{value}");
        }
    }

    #[test]
    fn arrays_are_read_up_to_a_number_of_elements() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert_eq!(elements(&raw("[1, {}]"), 2).unwrap().len(), 2);
        for faulty in ["[1, 2, 3]", "{}", "7"] {
            assert!(elements(&raw(faulty), 2).is_none(), "{faulty}");
        }
    }
}
