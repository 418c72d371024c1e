//! The tables of OpenID providers.

use secrecy::ExposeSecret;
use serde_json::json;

use super::{ACME, Folder, GATEWAY, assert_fault};
use crate::config::OidcConfig;
use crate::store::AdminRole;

const REQUIRED: &str = "issuer = \"https://login.example.com/realms/staff\"\nclient_id = \"formgate\"\n\
    client_secret = \"${SECRET}\"\nrole_claim = \"groups\"\nadmin_values = [\"admins\"]\n";

fn of_gateway(lines: &str) -> String {
    format!("{GATEWAY}[gateway.administration.oidc]\n{}{ACME}", lines.replace("${SECRET}", "s3cret"))
}

fn load(lines: &str) -> OidcConfig {
    let config = Folder::new().load(&of_gateway(lines)).unwrap_or_else(|problems| panic!("{problems}"));
    let oidc = config.gateway.administration.expect("the table switches it on").oidc.expect("it is there");
    OidcConfig::clone(&oidc)
}

/// The required keys with another value of one of them.
fn with_value(key: &str, value: &str) -> String {
    let lines = REQUIRED.lines().map(|line| match line.split_once(" = ") {
        Some((name, _)) if name == key => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn each_key_is_read_and_the_secret_is_never_shown() {
    let config = load(REQUIRED);
    assert_eq!((&*config.issuer, &*config.client_id), ("https://login.example.com/realms/staff", "formgate"));
    assert_eq!(config.client_secret.expose_secret(), "s3cret");
    assert_eq!((&*config.scopes, &*config.role_claim), ("openid email profile", "groups"));
    assert!(config.viewer_values.is_empty() && config.authorities.is_empty());
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    assert!(
        !config.emails_are_verified && load(&format!("{REQUIRED}emails_are_verified = true\n")).emails_are_verified
    );
    let more = format!("{REQUIRED}viewer_values = [\"viewers\", \"staff\"]\nscopes = \"openid groups\"\n");
    let config = load(&more);
    assert_eq!((config.viewer_values.len(), &*config.scopes), (2, "openid groups"));
}

#[test]
fn a_tenants_table_is_its_own_and_a_change_of_the_secret_is_a_change() {
    let text = |secret: &str| format!("{GATEWAY}{ACME}[tenant.oidc]\n{}", REQUIRED.replace("${SECRET}", secret));
    let tenant = |secret: &str| {
        let config = Folder::new().load(&text(secret)).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(config.gateway.administration, None);
        std::sync::Arc::clone(&config.tenants[0])
    };
    let (one, same, other) = (tenant("one"), tenant("one"), tenant("other"));
    assert_eq!(one.oidc, same.oidc);
    assert_ne!(one.oidc, other.oidc);
}

#[test]
fn the_claim_gives_the_role() {
    let config = load(&format!("{REQUIRED}viewer_values = [\"viewers\"]\n"));
    for (claim, role) in [
        (json!("admins"), Some(AdminRole::Admin)),
        (json!(["viewers", "admins"]), Some(AdminRole::Admin)),
        (json!(["other", "viewers"]), Some(AdminRole::Viewer)),
        (json!("Admins"), None),
        (json!("admins viewers"), None),
        (json!([["admins"]]), None),
        (json!({ "admins": 1 }), None),
        (json!(true), None),
        (json!(null), None),
        (json!([]), None),
    ] {
        assert_eq!(config.role(&claim), role, "{claim}");
    }
}

#[test]
fn a_shared_issuer_of_entra_is_refused_with_what_to_configure() {
    for host in ["login.microsoftonline.com", "login.microsoftonline.us", "LOGIN.microsoftonline.com"] {
        for tenant in
            ["common", "organizations", "consumers", "Common", "{tenantid}", "9188040d-6c67-4c5b-b112-36a304b66dad"]
        {
            let issuer = format!("\"https://{host}/{tenant}/v2.0\"");
            assert_fault(&of_gateway(&with_value("issuer", &issuer)), "8:10 this issuer is not of one organization");
        }
    }
    let own = "\"https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555/v2.0\"";
    assert!(load(&with_value("issuer", own)).issuer.ends_with("/v2.0"));
    assert!(load(&with_value("issuer", "\"https://login.example.com/common\"")).issuer.ends_with("/common"));
}

#[test]
fn a_faulty_value_is_reported() {
    let long = format!("\"{}\"", "x".repeat(513));
    for issuer in [
        "\"http://login.example.com\"",
        "\"login.example.com\"",
        "\"https://a.example/?b\"",
        "\"https://a.example/#b\"",
        "\"https://u:p@a.example/\"",
        "\"https://a b/\"",
        &long,
    ] {
        let expected = "8:10 not the issuer of an OpenID provider";
        assert_fault(&of_gateway(&with_value("issuer", issuer)), expected);
    }
    let description = "\"https://a.example/realms/x/.well-known/openid-configuration\"";
    let expected = "8:10 this is where the provider describes itself, and not its issuer";
    assert_fault(&of_gateway(&with_value("issuer", description)), expected);
    for (key, value, expected) in [
        ("client_id", &*long, "9:13 not a client id"),
        ("client_id", "\"a\\u0000b\"", "9:13 not a client id"),
        ("client_secret", &long, "10:17 not a client secret"),
        ("role_claim", "\"a\\nb\"", "11:14 not a claim"),
        ("role_claim", "\"name\"", "11:14 a claim that users can choose themselves gives no role"),
        ("role_claim", "\"preferred_username\"", "11:14 a claim that users can choose themselves gives no role"),
        ("role_claim", "\"address.country\"", "11:14 a claim that users can choose themselves gives no role"),
        ("role_claim", "\"upn\"", "11:14 a claim that users can choose themselves gives no role"),
        ("admin_values", "[]", "7:1 no role for any user of the provider"),
        ("admin_values", &format!("[{long}]"), "12:17 not a value of a claim"),
    ] {
        assert_fault(&of_gateway(&with_value(key, value)), expected);
    }
    for scopes in ["email", "openid  email", " openid", "openid \\\"", "openid\\temail"] {
        let text = of_gateway(&format!("{REQUIRED}scopes = \"{scopes}\"\n"));
        assert_fault(&text, "13:10 not the scopes of a sign-in");
    }
    assert_fault(
        &of_gateway(&format!("{REQUIRED}viewer_values = [\"admins\"]\n")),
        "13:18 the same value for both roles",
    );
    let many = format!("viewer_values = [{}]\n", (0..=100).map(|n| format!("\"{n}\",")).collect::<String>());
    let faults = Folder::new().faults(&of_gateway(&format!("{REQUIRED}{many}")));
    assert!(faults.len() == 1 && faults[0].ends_with("more than 100 values"), "{faults:?}");
    let faults = Folder::new().faults(&of_gateway(&format!("{REQUIRED}ca_file = \"missing.pem\"\n")));
    assert!(faults.len() == 1 && faults[0].ends_with("can't read the certificate authorities"), "{faults:?}");
    let faults = Folder::new().faults(&of_gateway(""));
    assert_eq!(faults.len(), 5, "each required key is named: {faults:?}");
    let misplaced = format!("{GATEWAY}[gateway.administration]\nissuer = \"https://a.example\"\n{ACME}");
    let faults = Folder::new().faults(&misplaced);
    assert!(faults.len() == 1 && faults[0].contains("unknown key `issuer`"), "{faults:?}");
}
