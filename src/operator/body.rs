//! Reads bodies and query parameters. A missing or unknown key, or a value of another type, is a fault of the key.
//!
//! As in the API of the accounts, `null` is an absent key, and a whole number may be written with a point or an exponent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::{DeserializeOwned, Deserializer as _, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use url::form_urlencoded;

use super::Call;
use super::refusal::OperatorRefusal;
use crate::json_text::{whole, without_mark};

/// The longest time that a call waits for the nodes, or for a change.
///
/// Larger: callers hold connections for longer. Smaller: nodes that are slow to take a large batch are not waited for.
const MAX_WAIT: u64 = 60;

/// How deep arrays and objects may be nested, as in other JSON.
///
/// Larger: a body can use up the stack. Smaller: no table of a tenant is nested more than three times.
const MAX_DEPTH: usize = 127;

impl Call<'_> {
    /// The body as a JSON object.
    pub(super) fn object(&self) -> Result<Map<String, Value>, OperatorRefusal> {
        match serde_json::from_slice(without_mark(self.body)).and_then(|body| value_of(body, MAX_DEPTH)) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(OperatorRefusal::Malformed("The body must be a JSON object".to_owned())),
            Err(error) => Err(OperatorRefusal::Malformed(format!("The body is no JSON: {error}"))),
        }
    }

    /// The body as a value whose type says what is allowed.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, OperatorRefusal> {
        let object = self.object()?;
        serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| {
            let (path, text) = (steps(error.path()), error.inner().to_string());
            // The path of a missing key is that of the object that lacks it.
            let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
            let key = path.iter().map(String::as_str).chain(missing).collect::<Vec<_>>().join(".");
            OperatorRefusal::of(
                &key,
                if key.is_empty() || missing.is_some() { text } else { format!("`{key}`: {text}") },
            )
        })
    }

    /// The query parameters. Unknown ones are faults: a mistyped `migrate` must not be passed over.
    pub(super) fn query(&self) -> Result<Query, OperatorRefusal> {
        let (mut values, known) = (BTreeMap::new(), self.known);
        for (key, value) in form_urlencoded::parse(self.head.uri.query().unwrap_or_default().as_bytes()) {
            if !known.contains(&&*key) {
                return Err(OperatorRefusal::of(&key, unknown_parameter(&key, known)));
            }
            if values.insert(key.to_string(), value.into_owned()).is_some() {
                return Err(OperatorRefusal::of(&key, format!("the query parameter `{key}` is given twice")));
            }
        }
        Ok(Query(values))
    }
}

/// The value of a JSON text, without the keys whose value is `null`. Numbers are read from the text, since the nearest `f64` of
/// `1.00000000000000000001` is 1.
fn value_of(text: &RawValue, depth: usize) -> Result<Value, serde_json::Error> {
    let json = text.get();
    let below = depth.checked_sub(1).ok_or_else(|| serde_json::Error::custom("nested too deeply"));
    match json.as_bytes()[0] {
        b'{' => {
            serde_json::Deserializer::from_str(json).deserialize_map(ObjectVisitor { below: below? }).map(Value::Object)
        }
        b'[' => {
            let below = below?;
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            items.into_iter().map(|item| value_of(item, below)).collect::<Result<_, _>>().map(Value::Array)
        }
        _ => whole(json).map_or_else(|| serde_json::from_str(json), |number| Ok(number.into())),
    }
}

/// Reads an object, in the order of its keys.
struct ObjectVisitor {
    /// How deep its values may be nested.
    below: usize,
}

impl<'b> Visitor<'b> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            // The last value of a repeated key counts.
            match value_of(value, self.below).map_err(A::Error::custom)? {
                Value::Null => _ = object.shift_remove(&key),
                value => _ = object.insert(key, value),
            }
        }
        Ok(object)
    }
}

/// Where a value is in the body, by keys and positions.
fn steps(path: &serde_path_to_error::Path) -> Vec<String> {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}

fn unknown_parameter(key: &str, known: &[&str]) -> String {
    let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
    let known =
        if known.is_empty() { "this call has none".to_owned() } else { format!("there are {}", known.join(", ")) };
    format!("unknown query parameter `{key}`; {known}")
}

/// The query parameters of a request.
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// An integer in a range, in digits only.
    pub(super) fn integer(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, OperatorRefusal> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|value| digits && range.contains(value));
        let fault = || OperatorRefusal::of(key, format!("`{key}` must be from {} to {}", range.start(), range.end()));
        value.map(Some).ok_or_else(fault)
    }

    /// `1` or `0`.
    pub(super) fn flag(&self, key: &str) -> Result<bool, OperatorRefusal> {
        Ok(self.integer(key, 0..=1)? == Some(1))
    }

    /// The time that the caller waits.
    pub(super) fn wait(&self) -> Result<Option<Duration>, OperatorRefusal> {
        Ok(self.integer("wait", 0..=MAX_WAIT)?.map(Duration::from_secs))
    }

    /// A revision or a position.
    pub(super) fn number(&self, key: &str) -> Result<i64, OperatorRefusal> {
        let most = i64::MAX.unsigned_abs();
        Ok(self.integer(key, 0..=most)?.map_or(0, |number| i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text).and_then(|body| value_of(body, MAX_DEPTH))
    }

    #[test]
    fn a_key_that_is_null_is_absent_and_a_whole_number_has_no_point() {
        let body = r#"{"a": null, "b": 60.0, "c": 6e1, "d": [1.0, null, {"e": null}], "f": {"g": null, "h": "60.0"}, "i": -0.0,
            "j": 1.00000000000000000001, "k": 9223372036854775807, "l": 18446744073709551615, "m": true, "b": 61.0,
            "n": 1, "n": null}"#;
        let expected = json!({
            "b": 61, "c": 60, "d": [1, null, {}], "f": {"h": "60.0"}, "i": 0,
            "j": 1.0, "k": i64::MAX, "l": u64::MAX, "m": true,
        });
        let read_body = read(body).unwrap();
        assert_eq!(read_body, expected);
        assert_eq!(
            read_body.as_object().unwrap().keys().take(3).collect::<Vec<_>>(),
            ["b", "c", "d"],
            "in their order"
        );
        for faulty in ["", "{", "{\"a\": 1e999}", "{\"a\": \"\\ud800\"}", "{} x", "{\"a\": 01}"] {
            assert!(read(faulty).is_err(), "{faulty}");
        }
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(MAX_DEPTH)).is_ok());
        assert!(read(&deep(100_000)).is_err());
    }
}
