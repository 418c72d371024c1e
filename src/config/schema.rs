//! The JSON schema of a configuration file, with which editors complete and check it.
//!
//! Written from the declarations of the keys. It knows types, ranges, choices and required keys, so it accepts every file that
//! `formgate check` accepts, and some more: what depends on several keys, on other files or on a variable is left to that.

use serde_json::{Map, Value, json};

use super::declaration::{Default, Key, Keys, Kind};

/// The schema of a file with these keys at its top, in JSON.
pub(super) fn of(root: Keys) -> String {
    let head = [("$schema", "http://json-schema.org/draft-07/schema#"), ("title", "The configuration of formgate")];
    let head = head.map(|(name, value)| (name.to_owned(), value.into()));
    format!("{:#}\n", head.into_iter().chain(object(root)).collect::<Value>())
}

fn object(keys: Keys) -> Map<String, Value> {
    let properties: Map<_, _> = keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let required: Vec<_> = keys.iter().filter(|key| key.is_required()).map(|key| key.name).collect();
    let parts = [("type", "object".into()), ("properties", properties.into()), ("additionalProperties", false.into())];
    let required = (!required.is_empty()).then(|| ("required", required.into()));
    parts.into_iter().chain(required).map(|(name, value): (_, Value)| (name.to_owned(), value)).collect()
}

fn property(key: &Key) -> Value {
    let string = || json!({ "type": "string", "minLength": 1 });
    // A variable may be one of them.
    let choice = |values| json!({ "type": "string", "anyOf": [{ "enum": values }, { "pattern": "\\$\\{" }] });
    let array = |items: Value| match key.is_required() {
        true => json!({ "type": "array", "items": items, "minItems": 1 }),
        false => json!({ "type": "array", "items": items }),
    };
    let mut property = match key.kind {
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Integer { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::String => string(),
        Kind::Choice(values) => choice(values),
        Kind::Strings => array(string()),
        Kind::Choices(values) => array(choice(values)),
        Kind::StringsOrTables(keys) => array(json!({ "anyOf": [string(), object(keys)] })),
        Kind::Table(keys) => object(keys).into(),
        Kind::Tables(keys) => json!({ "type": "array", "items": object(keys) }),
        Kind::NamedTables(_, keys) => json!({ "type": "object", "additionalProperties": object(keys) }),
    };
    let without = match key.default {
        Default::Words(words) => format!(". Without it: {words}"),
        Default::Required | Default::Value(_) => String::new(),
    };
    let restart = if key.needs_restart { ". A change takes effect at the next start" } else { "" };
    property["description"] = format!("{}{without}{restart}", without_links(key.about)).into();
    if let Default::Value(value) = key.default {
        let table: toml::Table = format!("value = {value}").parse().expect("a default is written as in TOML");
        property["default"] = serde_json::to_value(&table["value"]).expect("each value of TOML has one of JSON");
    }
    property
}

/// A line of Markdown without the targets of its links, which are relative to another file.
fn without_links(mut markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    while let Some((before, target)) = markdown.split_once("](") {
        let (above, words) = before.rsplit_once('[').unwrap_or((before, ""));
        text.extend([above, words]);
        markdown = target.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + markdown
}
