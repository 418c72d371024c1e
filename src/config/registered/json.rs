//! A `[[tenant]]` table as a JSON object: what the operator API takes and returns.
//!
//! The keys are those of the table, and the code for files reports faults; here each fault gets its key. A text that was written by hand keeps its form until it is replaced through the API.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::{Problem, Problems};

/// Faults of a tenant by key: `database`, `tls.forms.acme.org.certificate`. What belongs to no key has the empty one.
pub type Faults = BTreeMap<String, Vec<String>>;

#[derive(Serialize)]
struct Document<'v> {
    tenant: [&'v Map<String, Value>; 1],
}

/// The text of a tenant. `slug` comes first; a different one in the object is a fault.
///
/// # Errors
/// Values that TOML has not.
pub fn to_text(slug: &str, object: &Map<String, Value>) -> Result<String, Faults> {
    let mut faults = Faults::new();
    if object.get("slug").is_some_and(|other| other != slug) {
        faults.entry("slug".to_owned()).or_default().push(format!("the path says `{slug}`"));
    }
    for (key, value) in object {
        if has_null(value) {
            faults.entry(key.clone()).or_default().push("`null` is no value: leave the key out".to_owned());
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let first = Map::from_iter([("slug".to_owned(), Value::from(slug))]);
    let rest = object.iter().filter(|(key, _)| *key != "slug").map(|(key, value)| (key.clone(), value.clone()));
    let rest = Map::from_iter(rest);
    let unwritable = |error: toml::ser::Error| Faults::from([(String::new(), vec![error.to_string()])]);
    // Two documents, since an object may be sorted: the second one begins below the header.
    let head = toml::to_string(&Document { tenant: [&first] }).map_err(unwritable)?;
    let rest = toml::to_string(&Document { tenant: [&rest] }).map_err(unwritable)?;
    Ok(head + rest.strip_prefix("[[tenant]]\n").unwrap_or(&rest))
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(object) => object.values().any(has_null),
        _ => false,
    }
}

/// The object of a tenant's text. Variables are not expanded. None if the text can't be parsed.
#[must_use]
pub fn from_text(text: &str) -> Option<Map<String, Value>> {
    let document: toml::Table = text.parse().ok()?;
    let tenant = document.get("tenant")?.as_array()?.first()?;
    match serde_json::to_value(tenant).ok()? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// Each fault of a text at its key.
#[must_use]
pub fn by_key(problems: &Problems, text: &str) -> Faults {
    let mut faults = Faults::new();
    for problem in problems {
        faults.entry(key_of(problem, text)).or_default().push(problem.in_one_line());
    }
    faults
}

/// The key that a problem belongs to: a missing one, or the one on its line.
fn key_of(problem: &Problem, text: &str) -> String {
    let line = problem.line_and_column().map_or(1, |(line, _)| line);
    let mut header = String::new();
    for before in text.lines().take(line) {
        if let Some(name) = before.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim_start_matches('[').trim_end_matches(']');
            header = name.strip_prefix("tenant").unwrap_or(name).trim_start_matches('.').replace('"', "");
        }
    }
    let missing = problem.title().strip_prefix("missing key `").and_then(|rest| rest.strip_suffix('`'));
    let on_line = text.lines().nth(line - 1).and_then(|line| line.split_once('='));
    let key = missing.or(on_line.map(|(key, _)| key.trim().trim_matches('"'))).unwrap_or_default();
    match (header.is_empty(), key.is_empty()) {
        (true, _) => key.to_owned(),
        (_, true) => header,
        _ => format!("{header}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::{RegisteredTenant, RegistryConfig, TenantVariables};
    use crate::store::DatabaseLocation;

    fn registry() -> RegistryConfig {
        let location = |url: &str| DatabaseLocation::parse(url, Path::new("/")).unwrap();
        let (database, snapshot) = (location("sqlite:registry.db"), location("sqlite:snapshot.db"));
        RegistryConfig {
            database,
            snapshot,
            folder: "/".into(),
            variables: TenantVariables::default(),
            is_written: true,
        }
    }

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other}"),
        }
    }

    fn acme() -> Map<String, Value> {
        object(json!({
            "name": "Acme \"Ltd\"", "address": "acme.example.com", "domains": ["forms.acme.org"],
            "database": "sqlite:acme.db", "timezone": "UTC", "requests_per_minute": 90,
            "tls": { "forms.acme.org": { "certificate": "acme.pem", "private_key": "acme.key" } },
        }))
    }

    #[test]
    fn an_object_is_a_text_and_a_text_an_object() {
        let text = to_text("acme", &acme()).unwrap();
        assert!(text.starts_with("[[tenant]]\nslug = \"acme\"\n"), "{text}");
        let read = RegisteredTenant::read("acme", &text, &registry(), None).unwrap();
        assert_eq!((&*read.config.name, read.config.requests_per_minute), ("Acme \"Ltd\"", 90));
        let mut expected = acme();
        expected.insert("slug".to_owned(), json!("acme"));
        assert_eq!(from_text(&text), Some(expected.clone()));
        assert_eq!(to_text("acme", &expected).unwrap(), text);
    }

    #[test]
    fn each_fault_has_its_key() {
        let mut faulty = acme();
        faulty.insert("timezone".to_owned(), json!("Mars/Base"));
        faulty.insert("requests_per_minute".to_owned(), json!("many"));
        faulty.insert("domains".to_owned(), json!(["forms.acme.org", "a b"]));
        faulty.insert("databse".to_owned(), json!("postgres://user:secret@db/acme"));
        faulty.insert("tls".to_owned(), json!({ "forms.acme.org": { "certificate": "acme.pem" } }));
        faulty.remove("name");
        let text = to_text("acme", &faulty).unwrap();
        let problems = RegisteredTenant::read("acme", &text, &registry(), None).unwrap_err();
        let faults = by_key(&problems, &text);
        let keys: Vec<_> = faults.keys().map(String::as_str).collect();
        let expected =
            ["databse", "domains", "name", "requests_per_minute", "timezone", "tls.forms.acme.org.private_key"];
        assert_eq!(keys, expected, "{faults:?}");
        assert_eq!(faults["databse"], ["unknown key `databse`: did you mean `database`?"]);
        assert!(!format!("{faults:?}").contains("secret"), "{faults:?}");
    }

    #[test]
    fn what_toml_has_not_is_a_fault_of_its_key() {
        let null = object(json!({ "slug": "other", "name": null, "domains": ["a.example", null] }));
        let faults = to_text("acme", &null).unwrap_err();
        assert_eq!(faults.keys().map(String::as_str).collect::<Vec<_>>(), ["domains", "name", "slug"]);
        assert_eq!(from_text("[[tenant]"), None);
        assert_eq!(from_text("a = 1"), None);
    }
}
