//! The `[gateway.webhooks]` table.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};

use super::{ACME, Folder, GATEWAY};
use crate::config::WebhookConfig;
use crate::seal::{SealKey, Seals};

fn with_webhooks(lines: &str) -> String {
    format!("{GATEWAY}[gateway.webhooks]\n{lines}\n{ACME}")
}

fn load(folder: &Folder, lines: &str) -> WebhookConfig {
    folder.load(&with_webhooks(lines)).unwrap_or_else(|problems| panic!("{problems}")).gateway.webhooks
}

#[test]
fn texts_become_networks_hosts_addresses_and_certificates() {
    let folder = Folder::new();
    let lines = r#"enabled = false
allow_targets = ["10.0.0.0/8", "fd00::/8", "192.168.0.7", "Hooks.Internal", "bücher.internal"]
ca_file = "certs/acme.pem"
dns_servers = ["10.0.0.2", "10.0.0.3:5353", "fd00::2", "[fd00::3]:5353"]"#;
    let WebhookConfig { enabled, requests, .. } = load(&folder, lines);
    assert!(!enabled);
    let networks: Vec<_> = requests.allowed.networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "fd00::/8", "192.168.0.7/32"]);
    let hosts: Vec<_> = requests.allowed.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["hooks.internal", "xn--bcher-kva.internal"]);
    let servers: Vec<_> = requests.dns_servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["10.0.0.2:53", "10.0.0.3:5353", "[fd00::2]:53", "[fd00::3]:5353"]);
    assert_eq!(requests.authorities.len(), 1);

    let both = ["certs/acme.pem", "certs/wildcard.pem"].map(|file| fs::read_to_string(folder.path(file)).unwrap());
    folder.write("both.pem", both.concat());
    assert_eq!(load(&folder, "ca_file = \"both.pem\"").requests.authorities.len(), 2);
}

/// The certificate of an authority, and one that it has issued for a server.
fn authority_and_server() -> [String; 2] {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "internal");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let mut server = CertificateParams::new(["hooks.internal".to_owned()]).unwrap();
    server.distinguished_name = DistinguishedName::new();
    server.distinguished_name.push(DnType::CommonName, "hooks.internal");
    let server = server.signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
    [authority.pem(), server.pem()]
}

#[test]
fn faults_have_a_position() {
    let folder = Folder::new();
    folder.write("empty.pem", "");
    let [authority, server] = authority_and_server();
    folder.write("authority.pem", &authority);
    folder.write("server.pem", authority + &server);
    folder.write("malformed.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (lines, expected) in [
        ("allow_targets = [\"10.0.0.0/8\", \"10.0.0.0/33\"]", "8:32 neither a network nor a host name"),
        ("allow_targets = [\"10.0.0.256\"]", "8:18 neither a network nor a host name"),
        ("allow_targets = [\"https://hooks.internal\"]", "8:18 neither a network nor a host name"),
        ("allow_targets = [\"169.254.169.254\"]", "8:18 this target can't be allowed"),
        ("allow_targets = [\"10.0.0.1\", \"fe80::/64\"]", "8:30 this target can't be allowed"),
        ("ca_file = \"none.pem\"", "8:11 can't read the certificate authorities"),
        ("ca_file = \"empty.pem\"", "8:11 no certificate in PEM form"),
        ("ca_file = \"certs/acme.key\"", "8:11 no certificate in PEM form"),
        ("ca_file = \"malformed.pem\"", "8:11 a certificate authority is malformed"),
        ("ca_file = \"server.pem\"", "8:11 a certificate is not that of a certificate authority"),
        ("dns_servers = [\"dns.internal\"]", "8:16 not the address of a DNS server"),
        ("dns_servers = [\"10.0.0.2:99999\"]", "8:16 not the address of a DNS server"),
        ("secret_key = \"c2hvcnQ=\"", "8:14 not the Base64 of 32 bytes"),
        ("timeout = 7", "8:1 unknown key `timeout`"),
    ] {
        assert_eq!(folder.faults(&with_webhooks(lines)), [format!("tenants.toml:{expected}")], "{lines}");
    }
    let key = STANDARD.encode([1; 32]);
    let alone = folder.load(&with_webhooks(&format!("previous_secret_key = \"{key}\""))).unwrap();
    assert!(
        alone.warnings[0].contains("tenants.toml:8:1") && alone.warnings[0].contains("no `secret_key`"),
        "{alone:?}"
    );
    let report = folder.load(&with_webhooks("ca_file = \"server.pem\"")).unwrap_err().to_string();
    for words in ["number 2 is for `CN=hooks.internal`", "`CA:TRUE`", "server.pem"] {
        assert!(report.contains(words), "{words}: {report}");
    }
    assert_eq!(load(&folder, "ca_file = \"authority.pem\"").requests.authorities.len(), 1);
    let report = folder.load(&with_webhooks("ca_file = \"none.pem\"")).unwrap_err().to_string();
    assert!(report.contains("No such file") && report.contains("none.pem"), "{report}");
    let report = folder.load(&with_webhooks("ca_file = \"${PASSWORD}\"")).unwrap_err().to_string();
    assert!(report.contains("check the variable") && !report.contains("hunter2"), "{report}");
    for key in ["secret_key", "previous_secret_key"] {
        for value in ["c2hvcnQ=", "${PASSWORD}"] {
            let report = folder.load(&with_webhooks(&format!("{key} = \"{value}\""))).unwrap_err().to_string();
            let is_hidden = !report.contains("c2hvcnQ=") && !report.contains("hunter2");
            assert!(report.contains("openssl rand -base64 32") && is_hidden, "{report}");
        }
    }
}

#[test]
fn keys_that_seal_are_the_base64_of_32_bytes() {
    let folder = Folder::new();
    let [first, second] = [[1; 32], [2; 32]].map(|bytes| STANDARD.encode(bytes));
    let lines = format!("secret_key = \"{second}\"\nprevious_secret_key = \"{first}\"");
    let keys = [&second, &first].map(|text| SealKey::parse(text).ok());
    let [current, previous] = keys;
    assert_eq!(load(&folder, &lines).seals, Seals::new(current, previous));
    assert_eq!(load(&folder, "").seals, Seals::default());
}
