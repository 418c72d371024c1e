//! Certificates of tenants: chosen by name, read when they are asked for, renewed by themselves; and what a broken one costs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use rustls::{AlertDescription, Error};

use crate::support::acme::Acme;
use crate::support::certificate;
use crate::support::client::{operator_count, operator_get};
use crate::support::connection::{ServerNameIndication, shake};
use crate::support::fixture::{Engine, Site};
use crate::support::folder;

/// What comes by itself comes well within this, on a busy machine too.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// The certificate that a host is served.
async fn served(acme: &Acme, host: &str) -> io::Result<Vec<u8>> {
    let stream = shake(acme.node.address, host, ServerNameIndication::Sent, &[]).await?;
    let chain = stream.get_ref().1.peer_certificates().expect("a handshake shows a certificate");
    Ok(chain[0].to_vec())
}

fn is_internal_error(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    cause == Some(&Error::AlertReceived(AlertDescription::InternalError))
}

fn with_forms() -> Site {
    Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test"))
}

#[tokio::test]
async fn a_wildcard_serves_the_hosts_below_it_that_have_none_of_their_own() {
    let site = Site::new().tenant("globex", Engine::Sqlite);
    let folder = site.folder().join("certs");
    let wildcard = certificate::issue(&folder, &["*.acme.test"]);
    let own = certificate::issue(&folder, &["forms.acme.test"]);
    let table = |issued: &certificate::Issued| {
        let path = |path: &std::path::Path| toml::Value::from(path.to_str().expect("UTF-8"));
        let keys = [("certificate", path(&issued.certificate)), ("private_key", path(&issued.private_key))];
        toml::Value::Table(keys.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
    };
    let tls: toml::Table = [("*.acme.test", table(&wildcard)), ("forms.acme.test", table(&own))]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect();
    let mut acme = Acme::of(site.tenant_with("acme", Engine::Sqlite, |tenant| {
        tenant.set("domains", vec!["hr.acme.test", "it.acme.test", "forms.acme.test"]).set("tls", tls)
    }));
    let (hr, it) = (served(&acme, "hr.acme.test").await, served(&acme, "it.acme.test").await);
    assert_eq!(hr.expect("the wildcard"), it.expect("the same"));
    assert_ne!(
        served(&acme, "forms.acme.test").await.expect("its own"),
        served(&acme, "hr.acme.test").await.expect("x")
    );
    assert!(served(&acme, "other.acme.test").await.is_err(), "no host of the tenant");
    let operator = acme.node.operator_address();
    assert_eq!(operator_count(operator, "formgate_certificates_cached").await, 2);

    // 421 goes by the names of the certificate that was served.
    for (server_name, host, status) in [
        ("hr.acme.test", "it.acme.test", 401),
        ("hr.acme.test", "forms.acme.test", 401),
        ("forms.acme.test", "hr.acme.test", 421),
        ("hr.acme.test", "globex.example.test", 421),
        ("globex.example.test", "acme.example.test", 401),
    ] {
        let stream =
            shake(acme.node.address, server_name, ServerNameIndication::Sent, &[]).await.expect("a known name");
        let request = format!("GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let bytes = crate::support::connection::exchange(stream, request.as_bytes(), Duration::from_secs(5)).await;
        let answer = crate::support::answer::Answer::read(&bytes).expect("an answer");
        assert_eq!(answer.status, status, "{host} over {server_name}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_signal_and_a_half_written_one_is_not() {
    let mut acme = Acme::of(with_forms());
    let before = served(&acme, "forms.acme.test").await.expect("the first one");
    let certs = acme.site.folder().join("certs");
    let elsewhere = folder::temporary("renewed");
    let renewed = certificate::issue(elsewhere.path(), &["forms.acme.test"]);
    fs::rename(renewed.certificate, certs.join("forms.acme.test.pem")).expect("the folder can be written");
    let line = acme
        .node
        .wait_for_log(BY_ITSELF, |line| line.contains("the previous one stays in effect").then(|| line.to_owned()));
    let line = line.expect("half of it is noticed");
    assert!(line.contains(r#""tenant":"acme""#) && line.contains("forms.acme.test.key"), "{line}");
    assert_eq!(served(&acme, "forms.acme.test").await.expect("the one before goes on"), before);
    fs::rename(renewed.private_key, certs.join("forms.acme.test.key")).expect("the folder can be written");
    let began = Instant::now();
    while served(&acme, "forms.acme.test").await.expect("there is always one") == before {
        assert!(began.elapsed() < BY_ITSELF, "the renewed one is not served");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(acme.node.log().matches("the previous one stays in effect").count(), 1, "it is logged once");
    assert!(!acme.node.log().contains("is reloaded"), "the configuration did not change");
}

#[tokio::test]
async fn a_broken_certificate_affects_only_its_host_and_recovers_by_itself() {
    let site = with_forms().tenant_with("globex", Engine::Sqlite, |tenant| tenant.domain("forms.globex.test")).write();
    let key = site.folder().join("certs/forms.acme.test.key");
    let token = site.token("acme", "tests");
    let sound = fs::read(&key).expect("it was issued");
    fs::write(&key, "-----BEGIN PRIVATE KEY-----\nMARKER").expect("it can be written");
    let node = site.start();
    let mut acme = Acme { site, node, token };

    for _ in 0..5 {
        let error = served(&acme, "forms.acme.test").await.expect_err("there is none to serve");
        assert!(is_internal_error(&error), "{error}");
        served(&acme, "forms.globex.test").await.expect("another tenant");
    }
    assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200, "the tenant's other host");
    let log = acme.node.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("the tenant's certificate can't be served")).collect();
    let [line] = lines.as_slice() else { panic!("it is logged once:\n{log}") };
    assert!(line.contains(r#""tenant":"acme""#) && line.contains("forms.acme.test.key"), "{line}");
    assert!(!log.contains("MARKER"), "{log}");
    let operator = acme.node.operator_address();
    assert!(operator_count(operator, r#"formgate_certificate_loads_total{result="failed"}"#).await >= 1);

    fs::write(&key, sound).expect("it can be written");
    let began = Instant::now();
    while served(&acme, "forms.acme.test").await.is_err() {
        assert!(began.elapsed() < BY_ITSELF, "it does not heal");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(acme.node.log().contains("the tenant's certificate is back"));
}

#[tokio::test]
async fn faulty_certificates_are_found_before_a_client_needs_them() {
    let site = with_forms().write();
    fs::remove_file(site.folder().join("certs/forms.acme.test.pem")).expect("it was issued");
    let mut node = site.start();
    let line = node
        .wait_for_log(BY_ITSELF, |line| line.contains("a certificate is faulty or missing").then(|| line.to_owned()));
    assert!(line.expect("it is found").contains("forms.acme.test.pem"));
}

#[tokio::test]
async fn an_expired_pair_that_replaces_the_gateways_own_is_reported_and_not_served() {
    let mut acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite));
    let before = served(&acme, "acme.example.test").await.expect("the first one");
    let certs = acme.site.folder().join("certs");
    let elsewhere = folder::temporary("expired");
    let expired = certificate::issue_for_days(elsewhere.path(), &["*.example.test"], -30..-1);
    for (from, to) in [(expired.certificate, "pem"), (expired.private_key, "key")] {
        fs::rename(from, certs.join(format!("wildcard.example.test.{to}"))).expect("the folder can be written");
    }
    let operator = acme.node.operator_address();
    let began = Instant::now();
    // Between the two renames the node may find a key that does not belong to its certificate.
    loop {
        let readiness = operator_get(operator, "/readyz").await.json();
        let fault = readiness["tenants"]["gateway"].to_string();
        if readiness["parts"]["certificates"] == "1 does not work"
            && fault.contains("wildcard.example.test.pem` is out of date: it expired on")
        {
            break;
        }
        assert!(began.elapsed() < BY_ITSELF, "{readiness}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(served(&acme, "acme.example.test").await.expect("the one before goes on"), before);
    // The log may come later than the state.
    acme.node.wait_for_lines(BY_ITSELF, "invalid renewed certificate ignored; the previous one stays in effect", 1);
}

#[tokio::test]
async fn a_log_next_to_certificates_hides_no_fault_of_theirs() {
    let site = with_forms().write();
    let certs = site.folder().join("certs");
    let [link, file, log] = ["forms.acme.test.pem", "archived.pem", "a.log"].map(|name| certs.join(name));
    fs::rename(&link, &file).expect("it was issued");
    symlink(&file, &link).expect("the folder can be written");
    let mut node = site.start();
    for line in 0..20 {
        fs::write(&log, line.to_string()).expect("the folder can be written");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Longer than files must be quiet, so that the node ignores the log by now. A pause that is too short on a loaded
    // machine makes the test easier to pass, not harder: the fault is then handled together with the log.
    tokio::time::sleep(Duration::from_millis(600)).await;
    fs::write(&file, "no certificate").expect("the folder can be written");
    let line = node
        .wait_for_log(BY_ITSELF, |line| line.contains("a certificate is faulty or missing").then(|| line.to_owned()));
    assert!(line.expect("it is found").contains("forms.acme.test.pem"));
}

#[tokio::test]
async fn the_expiry_of_certificates_is_a_metric() {
    let mut acme = Acme::of(with_forms());
    let operator = acme.node.operator_address();
    for owner in ["gateway", "acme"] {
        let series = format!("formgate_certificate_expiry_timestamp_seconds{{tenant=\"{owner}\"}}");
        let began = Instant::now();
        // What rcgen leaves it at: the year 4096.
        while operator_count(operator, &series).await != 67_090_118_400 {
            assert!(began.elapsed() < BY_ITSELF, "{series}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn without_its_own_certificate_the_gateway_does_not_start() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    fs::remove_file(site.folder().join("certs/wildcard.example.test.key")).expect("it was issued");
    let output = site.run(&["serve"], b"");
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("can't read the private key"), "{}", output.stderr);
}
