//! The `[gateway.domains]` and `[gateway.acme]` tables.

use super::{ACME, Folder, GATEWAY};
use crate::acme::ChallengeKind;
use crate::config::{AuthorityLimits, GatewayConfig};

const KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const DOMAINS: &str = "target = \"edge.example.com\"";

/// A gateway with a registry and both tables.
fn text(domains: &str, acme: &str) -> String {
    let gateway = GATEWAY.replacen("[gateway]\n", "[gateway]\nregistry = \"sqlite:registry.db\"\n", 1);
    format!("{gateway}[gateway.domains]\n{domains}\n[gateway.acme]\n{acme}\n{ACME}")
}

fn acme(lines: &str) -> String {
    format!("contact = [\"it@example.com\"]\naccept_terms = true\nseal_keys = [\"{KEY}\"]\n{lines}")
}

fn load(domains: &str, acme: &str) -> Result<GatewayConfig, String> {
    let loaded = Folder::new().load(&text(domains, acme));
    loaded.map(|config| config.gateway).map_err(|problems| problems.to_string())
}

#[test]
fn lets_encrypt_is_the_authority_if_none_is_configured() {
    let gateway = load(DOMAINS, &acme("")).unwrap();
    let found = gateway.acme.unwrap();
    assert_eq!(found.requests.contact, ["mailto:it@example.com"]);
    assert_eq!(found.requests.challenges, [ChallengeKind::Http01, ChallengeKind::TlsAlpn01]);
    let [authority] = found.requests.authorities.as_slice() else { panic!("one authority") };
    assert_eq!((authority.name.as_str(), authority.issuer.as_deref()), ("letsencrypt", Some("letsencrypt.org")));
    let lets_encrypt = AuthorityLimits { orders: 300, per_domain: Some(50), per_host: Some(5), exempts_renewals: true };
    assert_eq!(found.limits, [lets_encrypt]);
}

#[test]
fn authorities_keep_their_order_and_have_limits_of_their_own() {
    let lines = "challenges = [\"tls-alpn-01\"]\n\
        [[gateway.acme.ca]]\nname = \"own\"\ndirectory = \"https://ca.internal/dir\"\nprofile = \"short\"\n\
        eab = { key_id = \"kid\", hmac_key = \"c2VjcmV0\" }\n\
        [[gateway.acme.ca]]\nname = \"second\"\ndirectory = \"https://acme-v02.api.letsencrypt.org/directory\"\n\
        orders_per_3_hours = 1500";
    let found = load(DOMAINS, &acme(lines)).unwrap().acme.unwrap();
    let names: Vec<_> = found.requests.authorities.iter().map(|authority| authority.name.as_str()).collect();
    assert_eq!(names, ["own", "second"]);
    assert_eq!(found.requests.authorities[0].profile.as_deref(), Some("short"));
    assert!(found.requests.authorities[0].external_account.is_some());
    let own = AuthorityLimits { orders: 300, per_domain: None, per_host: None, exempts_renewals: false };
    let lets_encrypt =
        AuthorityLimits { orders: 1500, per_domain: Some(50), per_host: Some(5), exempts_renewals: true };
    assert_eq!(found.limits, [own, lets_encrypt]);
}

#[test]
fn the_label_of_a_tenant_is_below_the_target_which_the_operator_owns() {
    let domains = load(DOMAINS, &acme("")).unwrap().domains.unwrap();
    assert_eq!(domains.label("acme").unwrap().as_str(), "acme.edge.example.com");
    let owns = |host: &str| domains.owns(&crate::host::HostName::parse(host).unwrap());
    assert!(owns("edge.example.com") && owns("a.edge.example.com"));
    assert!(!owns("badedge.example.com") && !owns("example.com"));
}

#[test]
fn a_gateway_that_obtains_certificates_needs_none_of_a_file() {
    let text = format!(
        "[gateway]\nlisten = [\"127.0.0.1:8443\"]\nregistry = \"sqlite:registry.db\"\n[gateway.domains]\n{DOMAINS}\n\
         [gateway.acme]\n{}\n[gateway.tls]\ncache_mib = 7\n{ACME}",
        acme("")
    );
    let gateway = Folder::new().load(&text).unwrap_or_else(|problems| panic!("{problems}")).gateway;
    assert_eq!((gateway.certificate, gateway.certificate_cache), (None, 7 * 1024 * 1024));
}

#[test]
fn each_fault_is_reported_at_its_key() {
    for (domains, acme, fault) in [
        ("", acme(""), "nothing says where hosts have to point"),
        ("target = \"edge\"", acme(""), "not a host name"),
        ("addresses = [\"edge.example.com\"]", acme(""), "not an IP address"),
        ("target = \"edge.example.com\"\nresolvers = [\"dns\"]", acme(""), "not the address of a DNS server"),
        (DOMAINS, acme("").replace("true", "false"), "the terms of the authorities are not accepted"),
        (DOMAINS, acme("").replace("true", "false"), "accept_terms = false"),
        (DOMAINS, acme("").replace("accept_terms = true\n", ""), "the terms of the authorities are not accepted"),
        (DOMAINS, acme("").replace("it@example.com", "it"), "not an e-mail address"),
        (DOMAINS, acme("").replace(KEY, "c2hvcnQ="), "not the Base64 of 32 bytes"),
        (DOMAINS, acme("").replace(KEY, &format!("{KEY}\", \" {KEY}")), "this key is in `seal_keys` already"),
        (DOMAINS, acme("challenges = [\"dns-01\"]"), "unknown challenge"),
        (
            DOMAINS,
            acme("[[gateway.acme.ca]]\nname = \"A B\"\ndirectory = \"https://ca/\""),
            "not the name of an authority",
        ),
        (
            DOMAINS,
            acme("[[gateway.acme.ca]]\nname = \"a\"\ndirectory = \"http://ca/\""),
            "not the directory of an authority",
        ),
        (
            DOMAINS,
            acme(
                "[[gateway.acme.ca]]\nname = \"a\"\ndirectory = \"https://ca/\"\neab = { key_id = \"k\", hmac_key = \"+\" }",
            ),
            "not Base64",
        ),
        (
            DOMAINS,
            acme(&"[[gateway.acme.ca]]\nname = \"a\"\ndirectory = \"https://ca/\"\n".repeat(2)),
            "two authorities are called `a`",
        ),
    ] {
        let report = load(domains, &acme).unwrap_err();
        assert!(report.contains(fault), "{fault}: {report}");
        assert!(!report.contains("c2hvcnQ="), "{report}");
    }
    for (without, fault) in
        [("seal_keys = []\n", "`seal_keys` needs at least one entry"), ("", "missing key `seal_keys`")]
    {
        let report = load(DOMAINS, &acme("").replace(&format!("seal_keys = [\"{KEY}\"]\n"), without)).unwrap_err();
        assert!(report.contains(fault) && report.contains("make one: `openssl rand -base64 32`"), "{report}");
    }
    let without = text(DOMAINS, &acme("")).replacen("registry = \"sqlite:registry.db\"\n", "", 1);
    let report = Folder::new().load(&without).unwrap_err().to_string();
    assert!(report.contains("there is no registry, which has the state of each domain"), "{report}");
    let without = text(DOMAINS, &acme("")).replacen(&format!("[gateway.domains]\n{DOMAINS}\n"), "", 1);
    let report = Folder::new().load(&without).unwrap_err().to_string();
    assert!(report.contains("missing table `domains`"), "{report}");
}

#[test]
fn challenges_that_no_listener_can_answer_are_a_warning() {
    let warnings = |lines: &str| Folder::new().load(&text(DOMAINS, &acme(lines))).unwrap().warnings;
    assert_eq!(warnings(""), Vec::<String>::new());
    assert_eq!(warnings("challenges = [\"tls-alpn-01\"]"), Vec::<String>::new());
    let [warning] = &warnings("challenges = [\"http-01\"]")[..] else { panic!("one warning") };
    assert!(warning.contains("no entry of `listen` can answer") && warning.contains("[gateway.acme]"), "{warning}");
}
