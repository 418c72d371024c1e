//! The keys of the registry and the `[gateway.operator]` table.

use std::path::{Path, PathBuf};

use super::{ACME, Folder, GATEWAY};
use crate::config::{Config, GatewayConfig, OperatorAddress};

/// A configuration with keys of `[gateway]`, and an address of the operator API.
fn with(keys: &str, listen: Option<&str>) -> String {
    let gateway = GATEWAY.replacen("[gateway]\n", &format!("[gateway]\n{keys}\n"), 1);
    let operator = listen.map(|listen| format!("[gateway.operator]\nlisten = [{listen}]\n")).unwrap_or_default();
    format!("{gateway}{operator}{ACME}")
}

fn load(folder: &Folder, keys: &str, listen: Option<&str>) -> GatewayConfig {
    let config = folder.load(&with(keys, listen)).unwrap_or_else(|problems| panic!("{problems}"));
    GatewayConfig::clone(&config.gateway)
}

#[test]
fn a_registry_has_a_snapshot_beside_the_file_and_lets_tenants_use_some_variables() {
    let folder = Folder::new();
    let without = load(&folder, "", None);
    assert_eq!((without.registry, without.operator), (None, None));
    let registry = load(&folder, "registry = \"sqlite:registry.db\"", None).registry.expect("it is configured");
    let name = |file: Option<&Path>| file.and_then(Path::file_name).map(PathBuf::from);
    assert_eq!(name(registry.database.file()), Some("registry.db".into()));
    assert_eq!(name(registry.snapshot.file()), Some("registry-snapshot.db".into()));
    assert_eq!(registry.snapshot.file().and_then(Path::parent), Some(&*registry.folder));
    let may_use = |keys: &str, name: &str| {
        let keys = format!("registry = \"sqlite:registry.db\"\n{keys}");
        load(&folder, &keys, None).registry.expect("it is configured").variables.allow(name)
    };
    for (keys, name, expected) in [
        ("", "FORMGATE_TENANT_DB_PASSWORD", true),
        ("", "DB_PASSWORD", false),
        ("tenant_variables = [\"DB_PASSWORD\"]", "DB_PASSWORD", true),
        ("tenant_variables = [\"DB_PASSWORD\"]", "DB_PASSWORD_2", false),
        ("tenant_variables = [\"DB_PASSWORD\"]", "FORMGATE_TENANT_DB_PASSWORD", false),
        ("tenant_variables = [\"A_*\", \"B\"]", "A_1", true),
        ("tenant_variables = [\"*\"]", "ANY", true),
        ("tenant_variables = []", "FORMGATE_TENANT_DB_PASSWORD", false),
    ] {
        assert_eq!(may_use(keys, name), expected, "{keys} {name}");
    }
}

#[test]
fn the_operator_api_listens_on_sockets_and_with_a_registry_on_tcp() {
    let folder = Folder::new();
    let of = |keys: &str, listen: &str| load(&folder, keys, Some(listen)).operator.expect("the table is there").listen;
    let socket = OperatorAddress::Unix("/run/formgate/operator.sock".into());
    assert_eq!(of("", "\"unix:/run/formgate/operator.sock\""), std::slice::from_ref(&socket));
    let registry = "registry = \"postgres://registry@127.0.0.1/registry\"";
    let both = of(registry, "\"unix:/run/formgate/operator.sock\", \"127.0.0.1:9465\"");
    assert_eq!(both, [socket, OperatorAddress::Tcp("127.0.0.1:9465".parse().unwrap())]);
}

#[test]
fn what_can_not_be_used_is_a_fault() {
    let long = format!("\"unix:/{}\"", "a".repeat(107));
    for (keys, listen, title) in [
        ("registry = \"redis://127.0.0.1\"", None, "not the address of a database"),
        ("registry_snapshot = \"snapshot.db\"", None, "there is no registry to keep a snapshot of"),
        (
            "registry = \"sqlite:a.db\"\nregistry_snapshot = \"none/../a.db\"",
            None,
            "the registry can't be its own snapshot",
        ),
        ("registry = \"sqlite:a.db\"\nregistry_snapshot = \"a.db\"", None, "the registry can't be its own snapshot"),
        ("tenant_variables = [\"A*B\"]", None, "not the name of an environment variable"),
        ("tenant_variables = [\"**\"]", None, "not the name of an environment variable"),
        ("tenant_variables = \"A\"", None, "expected an array of strings"),
        ("", Some(""), "`listen` needs at least one entry"),
        ("", Some("\"localhost\""), "not an address to listen on"),
        ("", Some("\"unix:\""), "not the path of a socket"),
        ("", Some("\"unix:/run/formgate/\""), "not the path of a socket"),
        ("", Some(&*long), "not the path of a socket"),
        ("", Some("\"127.0.0.1:9465\""), "callers over TCP need tokens, which the registry keeps"),
        ("registry = \"sqlite:acme.db\"", None, "the database is that of the registry"),
        ("registry = \"sqlite:a.db\"\nregistry_snapshot = \"acme.db\"", None, "that of the snapshot of the registry"),
        (
            "registry = \"sqlite:a.db\"\nadmin_listen = \"127.0.0.1:9465\"",
            Some("\"127.0.0.1:9465\""),
            "`127.0.0.1:9465` stands here twice",
        ),
        (
            "registry = \"sqlite:a.db\"\nadmin_listen = \"0.0.0.0:9465\"",
            Some("\"127.0.0.1:9465\""),
            "`127.0.0.1:9465` and `0.0.0.0:9465` exclude each other",
        ),
        ("", Some("\"unix:rel.sock\", \"unix:./rel.sock\""), "`unix:./rel.sock` is the socket of an earlier entry"),
        ("", Some("\"unix:none/../a\", \"unix:a\""), "`unix:a` is the socket of an earlier entry"),
    ] {
        let faults = Folder::new().faults(&with(keys, listen));
        assert!(faults.len() == 1 && faults[0].contains(title), "{title}: {faults:?}");
    }
}

/// What `formgate check` finds of the addresses and folders that a configuration names, and whether each is a warning.
fn places(folder: &Folder, keys: &str, listen: Option<&str>) -> Vec<(String, bool)> {
    folder.write("tenants.toml", with(keys, listen));
    let problems = Config::examine(&folder.path("tenants.toml"), None).place_problems();
    problems.iter().map(|problem| (folder.short(problem), problem.is_warning())).collect()
}

#[test]
fn what_a_node_could_not_open_is_a_fault_of_check() {
    let folder = Folder::new();
    folder.write("taken.sock", "");
    let registry = "registry = \"sqlite:a.db\"";
    assert_eq!(places(&folder, registry, Some("\"unix:operator.sock\", \"127.0.0.1:9465\"")), []);
    for (keys, listen, place, title, is_warning) in [
        (registry, Some("\"unix:none/operator.sock\""), "9:11", "the folder of the socket does not exist", false),
        (
            registry,
            Some("\"unix:/run/no-such-service/x.sock\""),
            "9:11",
            "the folder of the socket does not exist",
            true,
        ),
        (registry, Some("\"unix:taken.sock\""), "9:11", "there is a file at the path of the socket", false),
        (registry, Some("\"192.0.2.7:9465\""), "9:11", "`192.0.2.7` is not an address of this machine", false),
        ("admin_listen = \"192.0.2.7:0\"", None, "2:16", "`192.0.2.7` is not an address of this machine", false),
        (
            "registry = \"sqlite:a.db\"\nregistry_snapshot = \"none/a.db\"",
            None,
            "3:1",
            "the folder of the snapshot does not exist",
            false,
        ),
    ] {
        let expected = [(format!("tenants.toml:{place} {title}"), is_warning)];
        assert_eq!(places(&folder, keys, listen), expected, "{keys} {listen:?}");
    }
}

#[test]
fn the_operator_api_on_every_network_is_a_warning() {
    let folder = Folder::new();
    let loaded = folder.load(&with("registry = \"sqlite:a.db\"", Some("\"0.0.0.0:9465\""))).unwrap();
    let [warning] = loaded.warnings.as_slice() else { panic!("{:?}", loaded.warnings) };
    assert!(warning.contains("has no TLS") && warning.contains("tenants.toml:9:11"), "{warning}");
}
