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
    ("[gateway.domains]\ntarget = \"1.2.3.4\"", "target", 1),
    ("[gateway.domains]\naddresses = [\"0.0.0.0\"]", "addresses", 1),
    ("[gateway.domains]\ntarget = \"edge.example.com\"\naddresses = [\"192.0.2.1\", \"::\"]", "addresses", 2),
    ("[gateway.domains]\naddresses = [\"224.0.0.1\"]", "addresses", 1),
    ("[gateway.limits]\nbody_bytes = 8388608\nmemory_bytes = 4194304", "body_bytes", 1),
    ("[gateway.limits]\nmemory_bytes_per_tenant = 1048576\ngroup_body_bytes = 2097152", "group_body_bytes", 2),
    ("[gateway.limits]\nmemory_bytes = 4194304\nmemory_bytes_per_tenant = 4194305", "memory_bytes_per_tenant", 2),
    ("[gateway.webhooks]\nin_flight = 1\nper_tenant = 2", "per_tenant", 2),
    ("[gateway.webhooks]\nin_flight = 20\nper_subscription = 21", "per_subscription", 2),
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

/// Each fault is reported once, and what follows from it is not.
#[test]
fn a_wrong_value_brings_no_other_report() {
    let folder = folder::temporary("wrong");
    let issued = certificate::issue(folder.path(), &["*.example.test"]);
    let file = folder.path().join("tenants.toml");
    let check = |gateway: &str| {
        let tls = format!(
            "[gateway.tls]\ncertificate = \"{}\"\nprivate_key = \"{}\"\n",
            issued.certificate.display(),
            issued.private_key.display()
        );
        fs::write(&file, format!("[gateway]\nlisten = [\"127.0.0.1:22801\"]\n{gateway}{tls}")).unwrap();
        formgate(&["check", "--config", &file.display().to_string()])
    };
    let registry = "registry = \"sqlite:registry.db\"\n";
    check(registry);
    let config = file.display().to_string();
    for slug in ["acme", "globex"] {
        let (address, url) = (format!("{slug}.example.test"), format!("sqlite:${{FORMGATE_TENANT_FOLDER}}/{slug}.db"));
        let add = ["tenant", "add", slug, "--address", &address, "--database", &url, "--migrate", "--config", &config];
        let variables = [("FORMGATE_TENANT_FOLDER", folder.path().to_str().unwrap())];
        let added = crate::support::process::formgate_with_environment(&add, &variables);
        assert_eq!(added.code, 0, "{added:?}");
    }
    for wrong in ["tenant_variables = \"X\"\n", "tenant_variables = [\"*FOO\"]\n", "tenant_variables = [\"\"]\n"] {
        let checked = check(&format!("{registry}{wrong}"));
        assert!(!checked.stdout.contains("may not use"), "{wrong}: {}", checked.stdout);
    }
    let checked = check("registry = \"postgres://r:${NOT_SET_ANYWHERE}@127.0.0.1/r\"\nregistry_snapshot = \"s.db\"\n");
    assert_eq!(checked.stdout.matches("error: ").count(), 1, "{checked:?}");
    assert!(checked.stdout.contains("NOT_SET_ANYWHERE"), "{checked:?}");
    // Loopback works for tests only.
    let loopback = check(&format!("{registry}[gateway.domains]\naddresses = [\"127.0.0.1\"]\n"));
    assert!(
        loopback.stdout.contains("warning: `addresses`: no client reaches a gateway at `127.0.0.1`"),
        "{loopback:?}"
    );
}

#[test]
fn a_file_or_a_database_of_another_kind_is_named() {
    let folder = folder::temporary("wrong");
    let issued = certificate::issue(folder.path(), &["*.example.test"]);
    let file = folder.path().join("tenants.toml");
    let config = file.display().to_string();
    let write = |registry: &str, snapshot: &str, database: &str| {
        let text = format!(
            "[gateway]\nlisten = [\"127.0.0.1:22801\"]\nregistry = \"sqlite:{registry}\"\nregistry_snapshot = \"{snapshot}\"\n\
             [gateway.tls]\ncertificate = \"{}\"\nprivate_key = \"{}\"\n[[tenant]]\nslug = \"acme\"\nname = \"Acme\"\n\
             address = \"acme.example.test\"\ndatabase = \"sqlite:{database}\"\ntimezone = \"UTC\"\n",
            issued.certificate.display(),
            issued.private_key.display()
        );
        fs::write(&file, text).unwrap();
    };
    let run = |command: &[&str]| formgate(&[command, &["--config", &config]].concat());
    write("registry.db", "snapshot.db", "acme.db");
    assert_eq!(run(&["migrate"]).code, 0);
    assert_eq!(run(&["operator-token", "create", "--name", "x"]).code, 0);
    assert_eq!(run(&["check"]).code, 0);
    fs::copy(folder.path().join("registry.db"), folder.path().join("copy-of-registry.db")).unwrap();
    fs::copy(folder.path().join("acme.db"), folder.path().join("copy-of-acme.db")).unwrap();
    fs::write(folder.path().join("text.db"), "This is no database, whatever its name is.\n").unwrap();
    for (registry, snapshot, database, fault) in [
        ("registry.db", "text.db", "acme.db", "the file of the snapshot is no SQLite database"),
        (
            "registry.db",
            "copy-of-acme.db",
            "acme.db",
            "the file of its snapshot: the database has the tables of a tenant",
        ),
        ("copy-of-acme.db", "snapshot.db", "acme.db", "the database has the tables of a tenant"),
        ("registry.db", "snapshot.db", "copy-of-registry.db", "the database has the tables of the registry"),
        ("registry.db", "snapshot.db", "text.db", "is no SQLite database"),
    ] {
        write(registry, snapshot, database);
        let checked = run(&["check"]);
        assert!(checked.code == 1 && checked.stdout.contains(fault), "{fault}: {checked:?}");
        assert!(!checked.stdout.contains("unreleased"), "{fault}: {checked:?}");
    }
    let migrated = run(&["migrate", "--tenant", "acme"]);
    assert!(migrated.code == 1 && migrated.stderr.contains("is no SQLite database"), "{migrated:?}");
    assert!(!migrated.stderr.contains("free space"), "{migrated:?}");
}
