//! `check` names the key and the place of each value that can't be used, also where it shows no line because the value may
//! be a secret.

use std::fs;

use crate::support::process::formgate;
use crate::support::{certificate, folder};

/// Wrong lines of a section, the key at fault, and the line of it from the header of the section.
const WRONG: &[(&str, &str, usize)] = &[
    ("[gateway.webhooks]\ntimeout_seconds = \"15\"", "timeout_seconds", 1),
    ("[gateway.webhooks]\nsecret_key = \"c2hvcnQ=\"", "secret_key", 1),
    (
        "[gateway.webhooks]\nallow_targets = [\n  \"10.0.0.0/8\",\n  \"https://hooks.internal/x\",\n]",
        "allow_targets",
        3,
    ),
    ("[gateway.webhooks]\nallow_targets = [\"169.254.169.254\"]", "allow_targets", 1),
    ("[gateway.webhooks]\nca_file = \"nothere.pem\"", "ca_file", 1),
    ("[gateway.webhooks]\ndns_servers = [\"dns.google\"]", "dns_servers", 1),
    ("[gateway.administration]\npath = \"admin\"", "path", 1),
    ("[gateway.administration]\nlanguage = \"fr\"", "language", 1),
    ("[gateway.administration]\nidle_minutes = 0", "idle_minutes", 1),
    ("[gateway.administration]\nsign_in_url = \"https://example.com/{tenant}\"", "sign_in_url", 1),
    ("[gateway.operator]\nlisten = [\"0.0.0.0\"]", "listen", 1),
    ("[gateway.operator]\nlisten = [\"127.0.0.1:22801\"]", "listen", 1),
    ("[gateway.operator]\nlisten = [\"unix:nowhere/operator.sock\"]", "listen", 1),
    ("[gateway.domains]\ntarget = \"https://edge.example.com\"", "target", 1),
    ("[gateway.domains]\ntarget = \"edge.example.com\"\nresolvers = [\"dns.google\"]", "resolvers", 2),
    ("[gateway.domains]\naddresses = [\"192.0.2.1:443\"]", "addresses", 1),
    ("[gateway.databases]\nwait_ms = \"1 s\"", "wait_ms", 1),
    ("[gateway.limits]\nstreams = []", "streams", 1),
    ("[gateway.administration.oidc]\nissuer = \"http://login.example.com\"", "issuer", 1),
    ("[gateway.administration.oidc]\nscopes = \"email\"", "scopes", 1),
    ("[gateway.administration.oidc]\nadmin_values = \"a\"", "admin_values", 1),
];

#[test]
fn a_wrong_value_is_refused_with_its_key_and_its_place() {
    let folder = folder::temporary("wrong");
    let issued = certificate::issue(folder.path(), &["*.example.test"]);
    let head = format!(
        "[gateway]\nlisten = [\"127.0.0.1:22801\"]\nregistry = \"sqlite:registry.db\"\n[gateway.tls]\n\
         certificate = \"{}\"\nprivate_key = \"{}\"\n",
        issued.certificate.display(),
        issued.private_key.display()
    );
    let file = folder.path().join("tenants.toml");
    for (section, key, line) in WRONG {
        fs::write(&file, format!("{head}{section}\n")).unwrap();
        let checked = formgate(&["check", "--config", &file.display().to_string()]);
        assert_eq!(checked.code, 1, "{section}: {checked:?}");
        let place = format!("{}:{}:", file.display(), head.lines().count() + 1 + line);
        let reports: Vec<_> = checked.stdout.split("\nerror: ").filter(|report| report.contains(&place)).collect();
        assert!(reports.iter().any(|report| report.contains(key)), "{section}: {place}: {}", checked.stdout);
        assert!(!checked.stdout.contains("c2hvcnQ"), "{}", checked.stdout);
    }
}
