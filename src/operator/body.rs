//! Reads bodies and query parameters. A missing or unknown key, one that is given twice, or a value of another type, is a fault of
//! the key.
//!
//! As in the API of the accounts, `null` is an absent key, and a whole number may be written with a point or an exponent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::{DeserializeOwned, Deserializer as _, MapAccess, Visitor};
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
    /// The body as a JSON object, without the keys whose value is `null`.
    pub(super) fn object(&self) -> Result<Map<String, Value>, OperatorRefusal> {
        let mut object = self.object_with_nulls()?;
        object.retain(|_, value| !value.is_null());
        Ok(object)
    }

    /// The same with its own keys whose value is `null`.
    fn object_with_nulls(&self) -> Result<Map<String, Value>, OperatorRefusal> {
        let body: &RawValue = serde_json::from_slice(without_mark(self.body)).map_err(Unreadable::Json)?;
        if !body.get().starts_with('{') {
            return Err(OperatorRefusal::Malformed("The body must be a JSON object".to_owned()));
        }
        Ok(object_of(body, MAX_DEPTH)?)
    }

    /// The body as a value whose type says what is allowed.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, OperatorRefusal> {
        read_as(self.object()?)
    }

    /// The same for a change, where a `null` is not an absent key.
    pub(super) fn change<T: DeserializeOwned>(&self) -> Result<T, OperatorRefusal> {
        read_as(self.object_with_nulls()?)
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

/// Why a body is no value.
#[derive(Debug)]
enum Unreadable {
    /// It is no JSON.
    Json(serde_json::Error),
    /// It is nested too deeply.
    TooDeep,
    /// A key is there twice; where it is, the last part first.
    Twice(Vec<String>),
}

impl Unreadable {
    fn within(self, part: &impl ToString) -> Self {
        match self {
            Self::Twice(mut path) => {
                path.push(part.to_string());
                Self::Twice(path)
            }
            other => other,
        }
    }
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl From<Unreadable> for OperatorRefusal {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Json(error) => Self::Malformed(format!("The body is no JSON: {error}")),
            Unreadable::TooDeep => Self::Malformed(format!("The body is nested more than {MAX_DEPTH} times")),
            Unreadable::Twice(mut path) => {
                path.reverse();
                let key = path.join(".");
                Self::of(&key, format!("the key `{key}` is given twice"))
            }
        }
    }
}

/// The value of a JSON text, without the keys whose value is `null`. Numbers are read from the text, since the nearest `f64` of
/// `1.00000000000000000001` is 1.
fn value_of(text: &RawValue, depth: usize) -> Result<Value, Unreadable> {
    let json = text.get();
    match json.as_bytes()[0] {
        b'{' => {
            let mut object = object_of(text, depth)?;
            object.retain(|_, value| !value.is_null());
            Ok(Value::Object(object))
        }
        b'[' => {
            let below = depth.checked_sub(1).ok_or(Unreadable::TooDeep)?;
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            let values = items.into_iter().enumerate();
            values.map(|(at, item)| value_of(item, below).map_err(|error| error.within(&at))).collect()
        }
        _ => Ok(match whole(json) {
            Some(number) => number.into(),
            None => serde_json::from_str(json)?,
        }),
    }
}

/// The object of a JSON text, in the order of its keys, also of those whose value is `null`.
fn object_of(text: &RawValue, depth: usize) -> Result<Map<String, Value>, Unreadable> {
    let below = depth.checked_sub(1).ok_or(Unreadable::TooDeep)?;
    let entries = serde_json::Deserializer::from_str(text.get()).deserialize_map(EntriesVisitor)?;
    let mut object = Map::new();
    for (key, value) in entries {
        if object.contains_key(&key) {
            return Err(Unreadable::Twice(vec![key]));
        }
        let value = value_of(value, below).map_err(|error| error.within(&key))?;
        object.insert(key, value);
    }
    Ok(object)
}

/// Reads the entries of an object.
struct EntriesVisitor;

impl<'b> Visitor<'b> for EntriesVisitor {
    type Value = Vec<(String, &'b RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// Reads an object as a value whose type says what is allowed.
fn read_as<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, OperatorRefusal> {
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| {
        let (path, text) = (steps(error.path()), error.inner().to_string());
        // The path of a missing key is that of the object that lacks it.
        let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        let key = path.iter().map(String::as_str).chain(missing).collect::<Vec<_>>().join(".");
        OperatorRefusal::of(&key, in_words(&key, &text))
    })
}

/// What is wrong with the value of a key, in words of JSON: serde's are those of Rust.
fn in_words(key: &str, text: &str) -> String {
    if text.starts_with("missing field") {
        return format!("`{key}` is missing");
    }
    if let Some((_, known)) = text.strip_prefix("unknown field ").and_then(|rest| rest.split_once(", ")) {
        let known = known.trim_start_matches("expected ").trim_start_matches("one of ");
        return format!("unknown key `{key}`; there are {}", known.replace(" or ", ", "));
    }
    let expected = text.strip_prefix("invalid ").and_then(|rest| rest.rsplit_once(", expected "));
    match expected.map(|(_, expected)| expected) {
        Some("u64") => format!("`{key}` must be a whole number, 0 or more"),
        Some("a sequence") => format!("`{key}` must be an array"),
        Some("a string") => format!("`{key}` must be a string"),
        // Objects of this API are structures and maps.
        Some(_) => format!("`{key}` must be an object"),
        // One that this API reads by itself.
        None => format!("`{key}` {text}"),
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

    /// Where a page begins: `meta.after` of the page before.
    pub(super) fn number(&self, key: &str) -> Result<i64, OperatorRefusal> {
        let most = i64::MAX.unsigned_abs();
        let fault = |_| OperatorRefusal::of(key, format!("`{key}` must be `meta.{key}` of a page"));
        let number = self.integer(key, 0..=most).map_err(fault)?;
        Ok(number.map_or(0, |number| i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, Unreadable> {
        value_of(serde_json::from_str(text)?, MAX_DEPTH)
    }

    #[test]
    fn a_key_that_is_null_is_absent_and_a_whole_number_has_no_point() {
        let body = r#"{"a": null, "b": 60.0, "c": 6e1, "d": [1.0, null, {"e": null}], "f": {"g": null, "h": "60.0"}, "i": -0.0,
            "j": 1.00000000000000000001, "k": 9223372036854775807, "l": 18446744073709551615, "m": true}"#;
        let expected = json!({
            "b": 60, "c": 60, "d": [1, null, {}], "f": {"h": "60.0"}, "i": 0,
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
            assert!(matches!(read(faulty), Err(Unreadable::Json(_))), "{faulty}");
        }
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(MAX_DEPTH)).is_ok());
        assert!(matches!(read(&deep(MAX_DEPTH + 1)), Err(Unreadable::TooDeep)));
        assert!(read(&deep(100_000)).is_err());
    }

    #[test]
    fn a_key_that_is_given_twice_is_named() {
        for (body, expected) in [
            (r#"{"a": 1, "a": 1}"#, "a"),
            (r#"{"a": null, "\u0061": 2}"#, "a"),
            (r#"{"a": [{}, {"b": {"c": 1, "d": 2, "c": 3}}]}"#, "a.1.b.c"),
        ] {
            let OperatorRefusal::Faults(faults) = read(body).unwrap_err().into() else { panic!("{body}") };
            assert_eq!(faults.into_keys().collect::<Vec<_>>(), [expected]);
        }
    }
}
