//! The documents that the declarations of the keys are written to: the tables of deploy/configuration.md, and the schema.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

use super::declarations::every_table;
use crate::config::declaration::{Default, Key, Kind, Place, path_of, places};
use crate::config::{gateway, include, schema};

/// Set to anything, it has the tests write the files.
const WRITE: &str = "FORMGATE_WRITE_DOCUMENTS";
const END: &str = "<!-- end of keys -->";

/// Compares a file with what it should be, or writes it.
fn assert_written(name: &str, expected: impl FnOnce(&str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let expected = expected(&text);
    if env::var_os(WRITE).is_some() {
        fs::write(path, &expected).unwrap();
        return;
    }
    let other: Vec<_> = expected.lines().filter(|line| !text.lines().any(|known| known == *line)).collect();
    assert!(text == expected, "{name} is out of date: run this test with {WRITE}=1; what is new: {other:#?}");
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Default::Required => "required".to_owned(),
        Default::Value(value) if matches!(key.kind, Kind::Integer { .. }) => value.to_owned(),
        Default::Value(value) => format!("`{value}`"),
        Default::Words(words) => words.to_owned(),
    };
    let range = match key.kind {
        Kind::Integer { least, most } => format!("; {least} to {most}"),
        _ => String::new(),
    };
    format!("| `{}` | {default} | {}{range} |\n", key.name, key.about)
}

fn table(place: &Place) -> String {
    place
        .keys
        .iter()
        .fold("| key | default | meaning |\n| --- | --- | --- |\n".to_owned(), |table, key| table + &row(key))
}

/// The keys of the gateway whose change waits for a restart, a table as a whole in place of its keys.
fn waiting() -> String {
    let gateway = places(gateway::key::KEYS);
    let keys = gateway.iter().flat_map(|place| place.keys).filter(|key| key.needs_restart);
    keys.fold(String::new(), |mut list, key| {
        let path = path_of(gateway::key::KEYS, key);
        let shown = if key.keys().is_some() { format!("[gateway.{path}]") } else { path };
        write!(list, "{}`{shown}`", if list.is_empty() { "" } else { ", " }).unwrap();
        list
    })
}

/// A page with other text between a marker and its end.
fn with_part(page: &str, marker: &str, part: &str) -> String {
    let (before, rest) = page.split_once(marker).unwrap_or_else(|| panic!("the page needs {marker} and {END}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{marker} needs {END}"));
    format!("{before}{marker}\n{part}{END}{after}")
}

#[test]
fn the_reference_has_a_table_of_the_keys_of_each_table() {
    assert_written("deploy/configuration.md", |page| {
        let page = with_part(page, "<!-- keys that need a restart -->", &format!("{}\n", waiting()));
        let mut written = Vec::new();
        places(include::key::KEYS).iter().fold(page, |page, place| {
            // A table that is in two places is described in the first one.
            if written.contains(&std::ptr::from_ref(place.keys[0])) {
                return page;
            }
            written.push(std::ptr::from_ref(place.keys[0]));
            let path = if place.path.is_empty() { String::new() } else { format!(" {}", place.path) };
            with_part(&page, &format!("<!-- keys:{path} -->"), &table(place))
        })
    });
}

#[test]
fn the_schema_is_published() {
    assert_written("deploy/tenants.schema.json", |_| schema::of(include::key::KEYS));
}

#[test]
fn the_schema_accepts_every_key_and_no_other() {
    let schema = serde_json::from_str(&schema::of(include::key::KEYS)).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let is_valid =
        |text: &str| validator.is_valid(&serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap());
    let text = every_table(true);
    assert!(is_valid(&text), "{text}");
    for header in text.lines().filter(|line| line.starts_with('[')) {
        assert!(!is_valid(&text.replace(header, &format!("{header}\nunknown = 1"))), "{header}");
    }
}

#[test]
fn the_example_shows_every_key_and_its_default() {
    let example = include_str!("../../../tenants.example.toml");
    let shown: String = example.replace("\n#", "\n").replace("Default: ", "");
    let settings: Vec<_> = shown.lines().map(str::trim).collect();
    for place in places(include::key::KEYS).iter().filter(|place| place.path != "gateway.limits") {
        for key in place.keys {
            assert!(shown.contains(key.name), "{}.{}", place.path, key.name);
            let Default::Value(value) = key.default else { continue };
            let is_shown = settings.iter().any(|line| line.starts_with(&format!("{} = {value}", key.name)));
            let is_other = ["include", "redis_cluster", "admin_values", "viewer_values", "profile"].contains(&key.name);
            assert!(
                is_shown || is_other || shown.contains(&format!("{} = ", key.name)),
                "{}.{} = {value}",
                place.path,
                key.name
            );
        }
    }
}
