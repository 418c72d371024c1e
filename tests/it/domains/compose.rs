//! The commands at the head of `deploy/compose.yaml` that prepare a test authority.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use crate::support::folder;

#[test]
fn the_certificate_of_the_documented_authority_is_trusted_as_its_own_root() {
    let deploy = format!("{}/deploy", env!("CARGO_MANIFEST_DIR"));
    let head = fs::read_to_string(format!("{deploy}/compose.yaml")).unwrap();
    let head: String = head.lines().map_while(|line| line.strip_prefix('#')).flat_map(|line| [line, "\n"]).collect();
    let (_, command) = head.split_once("With a test authority").unwrap();
    let (command, _) = command[command.find("openssl req").unwrap()..].split_once("\n   chmod").unwrap();
    let folder = folder::temporary("compose");
    fs::create_dir_all(folder.path().join("compose/certs")).unwrap();
    let made = Command::new("sh").args(["-ec", command]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{command}: {}", String::from_utf8_lossy(&made.stderr));

    let certificate = fs::read(folder.path().join("compose/certs/pebble.pem")).unwrap();
    let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let config = fs::read_to_string(format!("{deploy}/compose/acme.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    let directory = config["gateway"]["acme"]["ca"][0]["directory"].as_str().unwrap();
    let host = directory.parse::<http::Uri>().unwrap().host().unwrap().to_owned();
    let name = ServerName::try_from(host).unwrap();
    verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now()).unwrap();
}
