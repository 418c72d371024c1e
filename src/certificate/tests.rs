//! Valid certificate files, and every way in which files can be invalid.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, DnType, IsCa, KeyPair};

use super::*;
use crate::host::HostName;

fn write(folder: &Path, chain: &str, key: &str) -> CertificateFiles {
    let (certificate, private_key) = (folder.join("chain.pem").into(), folder.join("key.pem").into());
    let files = CertificateFiles { certificate, private_key };
    fs::write(&files.certificate, chain).unwrap();
    fs::write(&files.private_key, key).unwrap();
    files
}

fn issue(names: &[&str]) -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_valid_pair_is_read_with_the_names_it_covers() {
    let folder = tempfile::tempdir().unwrap();
    let issued = issue(&["*.example.com", "forms.acme.org"]);
    let files = write(folder.path(), &issued.cert.pem(), &issued.signing_key.serialize_pem());
    let certificate = read(&files).unwrap();
    for (host, covered) in [("acme.example.com", true), ("forms.acme.org", true), ("acme.org", false)] {
        assert_eq!(certificate.names.covers(&HostName::parse(host).unwrap()), covered, "{host}");
    }
    assert_eq!(certificate.key.cert.len(), 1);
    let [from, until] = [1975, 4096].map(|year| rcgen::date_time_ymd(year, 1, 1).unix_timestamp());
    assert_eq!(certificate.validity, Validity { from, until }, "what rcgen leaves it at");
    let before = Timestamp::from_second(from - 1).unwrap();
    let fault = check_date(certificate.validity, &files, before).unwrap_err().to_string();
    assert!(fault.ends_with("chain.pem` is out of date"), "{fault}");
}

#[test]
fn a_stamp_changes_with_each_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), "chain", "key");
    let mut last = files.stamp();
    assert_eq!(files.stamp(), last);
    for step in 0..3 {
        match step {
            0 => fs::write(&files.certificate, "longer than before").unwrap(),
            1 => {
                let draft = folder.path().join("draft");
                fs::write(&draft, "yek").unwrap();
                fs::rename(draft, &files.private_key).unwrap();
            }
            _ => fs::remove_file(&files.certificate).unwrap(),
        }
        assert_ne!(files.stamp(), last, "step {step}");
        last = files.stamp();
    }
}

#[test]
fn each_fault_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (issue(&["a.example"]), issue(&["b.example"]));
    let (chain, key) = (ours.cert.pem(), ours.signing_key.serialize_pem());
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let damaged = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    for (chain, key, expected) in [
        ("", key.as_str(), "chain.pem` holds no certificate in PEM form"),
        (broken, &key, "chain.pem` is malformed"),
        (&chain, "", "key.pem` holds no private key in PEM form"),
        (&chain, damaged, "key.pem` can't be used"),
        (&chain, &other.signing_key.serialize_pem(), "key.pem` does not fit the certificate in `"),
    ] {
        let files = write(folder.path(), chain, key);
        let fault = read(&files).unwrap_err().to_string();
        assert!(fault.contains(expected), "{fault}");
    }
    let (certificate, private_key) = (Path::new("/nowhere.pem").into(), Path::new("/nowhere.key").into());
    let missing = CertificateFiles { certificate, private_key };
    assert!(matches!(read(&missing), Err(CertificateError::CertificateUnreadable { .. })));
    assert!(matches!(read_key(&missing.private_key), Err(CertificateError::KeyUnreadable { .. })));
}

/// Reads a chain and a key from `samples`, created with OpenSSL because rcgen can't.
fn read_samples(chain: &str, key: &str) -> Result<Certificate, CertificateError> {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("src/certificate/samples").join(name);
    read(&CertificateFiles { certificate: file(chain).into(), private_key: file(key).into() })
}

#[test]
fn a_key_that_is_encrypted_or_too_weak_is_named_with_the_remedy() {
    for (chain, key, fault, remedy) in [
        ("sha-1.pem", "encrypted-pkcs-8.key", "is encrypted", "openssl pkey"),
        ("sha-1.pem", "encrypted-sec-1.key", "is encrypted", "openssl pkey"),
        ("rsa-1024.pem", "rsa-1024.key", "an RSA key of 1024 bits, which is too short", "generate another key"),
        ("secp256k1.pem", "secp256k1.key", "EC on secp256k1", "generate another key"),
    ] {
        let error = read_samples(chain, key).unwrap_err();
        let said = crate::store::with_causes(&error);
        assert!(said.contains(fault) && error.remedy().contains(remedy), "{key}: {said}: {}", error.remedy());
    }
    assert!(read_samples("sha-1.pem", "ec-with-parameters.key").is_ok(), "parameters before the key are no fault");
}

#[test]
fn older_labels_are_read_and_what_openssl_adds_to_a_certificate_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let issued = issue(&["a.example"]);
    let (chain, key) = (issued.cert.pem(), issued.signing_key.serialize_pem());
    let file = folder.path().join("trusted.pem");
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["x509", "-trustout", "-addtrust", "serverAuth", "-out"]).arg(&file);
    let mut openssl = openssl.stdin(std::process::Stdio::piped()).spawn().expect("openssl is installed");
    io::Write::write_all(&mut openssl.stdin.take().unwrap(), chain.as_bytes()).unwrap();
    assert!(openssl.wait().unwrap().success());
    let trusted = fs::read_to_string(file).unwrap();
    assert!(trusted.starts_with("-----BEGIN TRUSTED CERTIFICATE-----"), "{trusted}");
    for text in [trusted, chain.replace(" CERTIFICATE-", " X509 CERTIFICATE-")] {
        let files = write(folder.path(), &format!("{text}{chain}"), &key);
        let read = read(&files).unwrap();
        assert_eq!(read.key.cert, [issued.cert.der().clone(), issued.cert.der().clone()], "{text}");
    }
}

#[test]
fn a_file_of_another_kind_is_distinguished_from_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let issued = issue(&["a.example"]);
    let (chain, key) = (issued.cert.pem(), issued.signing_key.serialize_pem());
    let section = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n").into_bytes();
    let utf_16: Vec<u8> = [0xff, 0xfe].into_iter().chain(chain.bytes().flat_map(|byte| [byte, 0])).collect();
    let pkcs_12 = b"\x30\x82\x0a\x01\x02\x01\x03\x30\x82\x09\xc7\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01\xa0";
    let cases: [(Vec<u8>, Contents, Contents); 11] = [
        (b" \n".to_vec(), Contents::Empty, Contents::Empty),
        (b"hello".to_vec(), Contents::NoSection, Contents::NoSection),
        (utf_16, Contents::Utf16, Contents::Utf16),
        (issued.cert.der().to_vec(), Contents::Der, Contents::Der),
        (pkcs_12.to_vec(), Contents::Pkcs12, Contents::Pkcs12),
        (section("CERTIFICATE REQUEST"), Contents::Request, Contents::Request),
        (section("NEW CERTIFICATE REQUEST"), Contents::Request, Contents::Request),
        (section("PKCS7"), Contents::Pkcs7, Contents::Pkcs7),
        (section("PUBLIC KEY"), Contents::PublicKey, Contents::PublicKey),
        (section("OPENSSH PRIVATE KEY"), Contents::OpenSsh, Contents::OpenSsh),
        (section("X509 CRL"), Contents::Section("X509 CRL".to_owned()), Contents::Section("X509 CRL".to_owned())),
    ];
    let path = folder.path().join("file");
    for (bytes, as_chain, as_key) in cases {
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read_chain(&path).unwrap_err().contents(), Some(&as_chain));
        assert_eq!(read_key(&path).unwrap_err().contents(), Some(&as_key));
    }
    fs::write(&path, &key).unwrap();
    assert_eq!(read_chain(&path).unwrap_err().contents(), Some(&Contents::PrivateKey));
    fs::write(&path, &chain).unwrap();
    assert_eq!(read_key(&path).unwrap_err().contents(), Some(&Contents::Certificate));
    fs::write(&path, &chain[..chain.len() / 2]).unwrap();
    assert_eq!(read_chain(&path).unwrap_err().contents(), Some(&Contents::Damaged));
    let secret = "-----BEGIN hunter2-----\n";
    fs::write(&path, secret).unwrap();
    assert_eq!(read_key(&path).unwrap_err().contents(), Some(&Contents::NoSection), "no label is quoted that is none");

    let with_mark = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let files = write(folder.path(), &with_mark(&chain), &with_mark(&key));
    assert!(read(&files).is_ok(), "what an editor of Windows leaves is no fault");
}

/// A root, an intermediate certificate, and a leaf with its key.
struct Chain {
    root: String,
    intermediate: String,
    leaf: String,
    key: String,
}

fn chain(differ: impl FnOnce(&mut CertificateParams)) -> Chain {
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let root = CertifiedIssuer::self_signed(authority("Root"), KeyPair::generate().unwrap()).unwrap();
    let intermediate =
        CertifiedIssuer::signed_by(authority("Intermediate"), KeyPair::generate().unwrap(), &root).unwrap();
    let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
    differ(&mut params);
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, &intermediate).unwrap().pem();
    Chain { root: root.pem(), intermediate: intermediate.pem(), leaf, key: key.serialize_pem() }
}

#[test]
fn a_leaf_that_is_not_the_first_certificate_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let Chain { root, intermediate, leaf, key } = chain(|_| ());
    for (text, position) in [(format!("{intermediate}{leaf}"), 2), (format!("{root}{intermediate}{leaf}"), 3)] {
        let error = read(&write(folder.path(), &text, &key)).unwrap_err();
        assert!(
            matches!(error, CertificateError::LeafNotFirst { position: found, .. } if found == position),
            "{error}"
        );
    }
    let error = read(&write(folder.path(), &format!("{intermediate}{root}"), &key)).unwrap_err();
    assert!(matches!(error, CertificateError::KeyMismatch { .. }), "{error}");
}

#[test]
fn a_chain_that_clients_may_refuse_is_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    let Chain { root, intermediate, leaf, key } = chain(|_| ());
    let concerns_of = |text: &str, key: &str, roots: &Roots, now| {
        let read = read(&write(folder.path(), text, key)).unwrap();
        concerns(&read.key.cert, roots, now)
    };
    let now = Timestamp::now();
    let unknown = |text: String| concerns_of(&text, &key, &Roots::default(), now);
    let missing = |name: &str, position| {
        let issuer = format!("CN=rcgen self signed cert, CN={name}");
        let short = format!("CN={name}");
        move |found: &[ChainConcern]| match found {
            [ChainConcern::NoIssuer { position: at, issuer: named }] => {
                *at == position && (*named == issuer || *named == short)
            }
            _ => false,
        }
    };
    assert_eq!(unknown(format!("{leaf}{intermediate}")), []);
    assert_eq!(unknown(format!("{leaf}{intermediate}{root}")), []);
    assert!(missing("Intermediate", 1)(&unknown(leaf.clone())), "{:?}", unknown(leaf.clone()));
    assert!(missing("Intermediate", 1)(&unknown(format!("{leaf}{root}"))), "{:?}", unknown(format!("{leaf}{root}")));
    assert_eq!(unknown(format!("{leaf}{root}{intermediate}")), [ChainConcern::Unordered { position: 1 }]);
    let selfsigned = issue(&["a.example"]);
    let alone = concerns_of(&selfsigned.cert.pem(), &selfsigned.signing_key.serialize_pem(), &Roots::default(), now);
    assert_eq!(alone, [], "one that is signed by its own key has no issuer");

    let far = Timestamp::from_second(rcgen::date_time_ymd(5000, 1, 1).unix_timestamp()).unwrap();
    let late = concerns_of(&format!("{leaf}{intermediate}"), &key, &Roots::default(), far);
    assert!(matches!(late.as_slice(), [ChainConcern::IssuerOutOfDate { position: 2, .. }]), "{late:?}");

    let client = chain(|params| params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth]);
    let text = format!("{}{}", client.leaf, client.intermediate);
    assert_eq!(concerns_of(&text, &client.key, &Roots::default(), now), [ChainConcern::NotForServers]);

    let old = read_samples("sha-1.pem", "ec-with-parameters.key").unwrap();
    let old = concerns(&old.key.cert, &Roots::default(), now);
    assert_eq!(old, [ChainConcern::WeakSignature { position: 1, hash: "SHA-1" }]);
}
