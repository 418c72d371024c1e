//! Reads bodies and query parameters. A missing or unknown key, or a value of another type, is a fault of the key.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use url::form_urlencoded;

use super::Call;
use super::refusal::OperatorRefusal;

/// The longest time that a call waits for the nodes, or for a change.
///
/// Larger: callers hold connections for longer. Smaller: nodes that are slow to take a large batch are not waited for.
const MAX_WAIT: u64 = 60;

impl Call<'_> {
    /// The body as a JSON object.
    pub(super) fn object(&self) -> Result<Map<String, Value>, OperatorRefusal> {
        match serde_json::from_slice(self.body) {
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
