//! The `[gateway.administration]` table.

use std::time::Duration;

use super::{ACME, Folder, GATEWAY, assert_fault};
use crate::config::{AdministrationConfig, Language};
use crate::host::HostName;

fn with_keys(lines: &str) -> String {
    format!("{GATEWAY}[gateway.administration]\n{lines}\n{ACME}")
}

fn load(lines: &str) -> AdministrationConfig {
    let folder = Folder::new();
    let config = folder.load(&with_keys(lines)).unwrap_or_else(|problems| panic!("{problems}"));
    config.gateway.administration.expect("the table switches it on")
}

#[test]
fn the_table_switches_the_area_on() {
    let folder = Folder::new();
    let without = folder.load(&format!("{GATEWAY}{ACME}")).unwrap().gateway;
    assert_eq!(without.administration, None);
    assert_eq!(without.administration_url(&HostName::parse("acme.example.com").unwrap()), None);
    assert_eq!(load(""), AdministrationConfig::default());
    let default = AdministrationConfig::default();
    assert_eq!(
        (&*default.path, default.idle, default.session),
        ("/admin", Duration::from_mins(60), Duration::from_hours(12))
    );
    assert_eq!((default.language, default.sign_in_url("acme")), (None, None));
}

#[test]
fn each_key_is_read() {
    let config = load(
        "path = \"/forms/manage-2\"\nlanguage = \"de\"\nidle_minutes = 5\nsession_hours = 1\n\
         sign_in_url = \"https://{slug}.example.com/account?of={slug}\"",
    );
    assert_eq!(
        (&*config.path, config.idle, config.session),
        ("/forms/manage-2", Duration::from_mins(5), Duration::from_hours(1))
    );
    assert_eq!(config.language, Some(Language::German));
    assert_eq!(config.sign_in_url("acme").as_deref(), Some("https://acme.example.com/account?of=acme"));
}

#[test]
fn a_value_out_of_bounds_is_a_fault() {
    let long = format!("/{}", "a".repeat(100));
    for path in
        ["", "/", "admin", "/admin/", "//admin", "/a b", "/ä", "/a?b", "/.", "/a/../b", "/api", "/api/v1/x", &long]
    {
        let folder = Folder::new();
        let faults = folder.faults(&with_keys(&format!("path = {path:?}")));
        assert!(faults.len() == 1 && faults[0].starts_with("tenants.toml:8:8 "), "{path}: {faults:?}");
    }
    for url in [
        "example.com",
        "/sign-in",
        "http://example.com",
        "javascript:alert(1)",
        "https://",
        "https://a b/",
        "https://a.example/{tenant}",
        "https://a.example/{slug",
    ] {
        let expected = "8:15 not the URL of a page where administrators sign in";
        assert_fault(&with_keys(&format!("sign_in_url = {url:?}")), expected);
    }
    for language in ["fr", "DE", "de-DE", "english"] {
        let expected = "8:12 not a language of the administration area";
        assert_fault(&with_keys(&format!("language = {language:?}")), expected);
    }
}

#[test]
fn links_have_the_port_of_the_first_tls_listener_unless_another_is_public() {
    let address = HostName::parse("acme.example.com").unwrap();
    let url = |listen: &str, key: &str| {
        let text = with_keys("").replace("listen = [\"127.0.0.1:0\"]", &format!("listen = [{listen}]\n{key}"));
        Folder::new().load(&text).unwrap_or_else(|problems| panic!("{problems}")).gateway.administration_url(&address)
    };
    let balancer = "{ address = \"127.0.0.1:1\", tls = false }";
    for (listen, key, expected) in [
        ("\"127.0.0.1:8443\"", "", "https://acme.example.com:8443/admin"),
        ("\"127.0.0.1:443\"", "", "https://acme.example.com/admin"),
        ("\"127.0.0.1:8443\"", "public_port = 443", "https://acme.example.com/admin"),
        (&format!("{balancer}, \"127.0.0.1:2\", \"127.0.0.1:3\""), "", "https://acme.example.com:2/admin"),
        (&format!("{balancer}, \"127.0.0.1:2\""), "public_port = 4", "https://acme.example.com:4/admin"),
    ] {
        assert_eq!(url(listen, key).as_deref(), Some(expected), "{listen} {key}");
    }
    let balancer = with_keys("").replace("listen = [\"127.0.0.1:0\"]", &format!("listen = [{balancer}]"));
    let behind = Folder::new().load(&balancer).unwrap().gateway;
    assert_eq!(behind.administration_url(&address).as_deref(), Some("https://acme.example.com/admin"));
}
