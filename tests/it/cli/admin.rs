//! `formgate admin link`: one URL, whose secret is nowhere else.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

const LINK: [&str; 6] = ["admin", "link", "--tenant", "acme", "--email", "ana@acme.example"];

fn audited(site: &Site) -> Vec<Value> {
    let output = site.run(&["audit", "list", "--tenant", "acme", "--json"], b"");
    output.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

on_both_databases! {
    async fn a_link_is_printed_once_and_only_its_digest_is_stored(engine: Engine) {
        let site = Site::new().tenant("acme", engine).gateway("administration", toml::Table::new());
        let site = site.gateway("public_port", 8443).write();
        let output = site.run(&[&LINK[..], &["--name", "Ana", "--role", "viewer", "--valid", "30m"]].concat(), b"");
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        let beginning = format!("https://{}:8443/admin/enter/", site.host("acme"));
        let secret = output.stdout.strip_prefix(&beginning).and_then(|rest| rest.strip_suffix('\n'));
        let secret = secret.unwrap_or_else(|| panic!("{}", output.stdout));
        assert_eq!(secret.len(), 43, "256 bits");
        assert!(secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')), "{secret}");

        let database = Database::connect(site.database_url("acme")).await;
        let digest: String = Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let (hex, minutes) = match engine {
            Engine::Sqlite => ("lower(hex(digest))", "(expires_at - created_at) / 60000000"),
            _ => ("encode(digest, 'hex')", "extract(epoch FROM expires_at - created_at)::bigint / 60"),
        };
        let stored = database.texts(&format!("SELECT {hex} || ' ' || email || ' ' || name || ' ' || role FROM admin_links")).await;
        assert_eq!(stored, [format!("{digest} ana@acme.example Ana viewer")]);
        assert_eq!(database.integers(&format!("SELECT {minutes} FROM admin_links")).await, [30]);
        database.close().await;
        let rows = audited(&site);
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["action"], &rows[0]["subject"]), (&"admin.link".into(), &"ana@acme.example".into()));
        assert_eq!(rows[0]["details"]["role"], "viewer");
        assert!(!rows[0].to_string().contains(secret));
    }

    async fn an_expired_link_is_deleted_when_the_next_one_is_made(engine: Engine) {
        let site = Site::new().tenant("acme", engine).gateway("administration", toml::Table::new()).write();
        assert_eq!(site.run(&[&LINK[..], &["--valid", "1s"]].concat(), b"").code, 0);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        assert_eq!(site.run(&LINK, b"").code, 0);
        let database = Database::connect(site.database_url("acme")).await;
        assert_eq!(database.integers("SELECT count(*) FROM admin_links").await, [1]);
        database.close().await;
    }
}

#[test]
fn the_standard_port_is_left_out_and_the_path_is_the_configured_one() {
    let mut area = toml::Table::new();
    area.insert("path".into(), "/account".into());
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("administration", area).gateway("public_port", 443);
    let site = site.write();
    let output = site.run(&LINK, b"");
    let beginning = format!("https://{}/account/enter/", site.host("acme"));
    assert!(output.stdout.starts_with(&beginning), "{}{}", output.stdout, output.stderr);
}

#[test]
fn without_the_administration_area_there_are_no_links() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let output = site.run(&LINK, b"");
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    let expected =
        "error: the administration area is not switched on: add `[gateway.administration]` to the configuration\n";
    assert_eq!(output.stderr, expected);
    assert_eq!(audited(&site), Vec::<Value>::new());
}

#[test]
fn wrong_values_are_wrong_usage() {
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("administration", toml::Table::new()).write();
    for (option, value) in [
        ("--valid", "8d"),
        ("--valid", "0s"),
        ("--valid", "soon"),
        ("--role", "owner"),
        ("--name", ""),
        ("--name", "two\nlines"),
    ] {
        let output = site.run(&[&LINK[..], &[option, value]].concat(), b"");
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{option} {value:?}");
    }
    let email = site.run(&["admin", "link", "--tenant", "acme", "--email", "ana"], b"");
    assert_eq!((email.code, email.stdout.as_str()), (2, ""));
}
