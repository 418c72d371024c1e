//! Every configuration key is documented: in deploy/configuration.md, and, except for limits, in tenants.example.toml.
//!
//! The program itself lists the keys, in its report of an unknown one.

use std::fs;

use crate::support::folder;
use crate::support::process::formgate;

const REFERENCE: &str = include_str!("../../../deploy/configuration.md");
const EXAMPLE: &str = include_str!("../../../tenants.example.toml");

/// A configuration with an unknown key in every table but that of the limits.
const UNKNOWN: &str = r#"
unknown = 1
[gateway]
unknown = 1
listen = [
  { address = "127.0.0.1:0", unknown = 1 },
  { address = "127.0.0.1:0", tls = false, unknown = 1 },
  { address = "127.0.0.1:0", redirect_to_https = true, unknown = 1 },
]
redis_sentinel = { sentinels = ["redis://127.0.0.1:1"], master = "main", unknown = 1 }
[gateway.databases]
unknown = 1
[gateway.tls]
unknown = 1
[gateway.administration]
unknown = 1
oidc = { unknown = 1 }
[gateway.operator]
unknown = 1
[[tenant]]
unknown = 1
group_guard = { unknown = 1 }
[tenant.tls."acme.example.test"]
unknown = 1
"#;

const UNKNOWN_LIMIT: &str = "[gateway.limits]\nunknown = 1\n";

/// The keys that the program lists for each unknown one.
fn listed(config: &str) -> Vec<Vec<String>> {
    let folder = folder::temporary("keys");
    let path = folder.path().join("tenants.toml");
    fs::write(&path, config).expect("a temporary folder can be written");
    let report = formgate(&["check", "--config", path.to_str().expect("the path is UTF-8")]);
    let report = format!("{}{}", report.stdout, report.stderr);
    let lists = report.lines().filter_map(|line| line.split_once("the keys here are "));
    lists.map(|(_, keys)| keys.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()).collect()
}

#[test]
fn every_key_is_in_the_reference_and_in_the_example() {
    let tables = listed(UNKNOWN);
    assert_eq!(tables.len(), 14, "{tables:?}");
    for key in tables.iter().flatten() {
        // A key of its own, a key of an inline table, or a table.
        let places = [format!("`{key}`"), format!("{key} = "), format!("[{key}]"), format!("[gateway.{key}]")];
        assert!(places.iter().any(|place| REFERENCE.contains(place)), "{key}");
        assert!(EXAMPLE.contains(key), "{key}");
    }
}

#[test]
fn every_limit_is_in_the_reference() {
    let tables = listed(UNKNOWN_LIMIT);
    assert_eq!(tables.len(), 1, "{tables:?}");
    for key in &tables[0] {
        assert!(REFERENCE.contains(&format!("\n| `{key}` |")), "{key}");
    }
}
