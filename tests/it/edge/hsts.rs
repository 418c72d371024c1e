//! `Strict-Transport-Security`: on every response over HTTPS, once it is configured.

use std::fs;
use std::time::Duration;

use tokio::net::TcpStream;
use toml::Value;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::connection::{Protocol, exchange};
use crate::support::fixture::{Engine, Site};

const HEADER: &str = "strict-transport-security";
const VALUE: &str = "max-age=31536000; includeSubDomains";

#[tokio::test]
async fn no_response_has_it_by_default() {
    let acme = Acme::start();
    assert_eq!(acme.caller().get("/api/v1/me").send().await.header(HEADER), None);
}

#[tokio::test]
async fn every_response_over_https_has_it_and_no_redirect() {
    let entry = |key: &str| {
        Value::from(toml::Table::from_iter([
            ("address".to_owned(), Value::from("127.0.0.1:0")),
            (key.to_owned(), Value::from(key != "tls")),
        ]))
    };
    let listen: Vec<Value> = vec!["127.0.0.1:0".into(), entry("tls"), entry("redirect_to_https")];
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("listen", listen).gateway("hsts", VALUE);
    let mut acme = Acme::of(site);
    let [_, balancer, redirect] = acme.node.addresses()[..] else { panic!("three listeners") };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for (path, status) in [("/api/v1/me", 200), ("/api/v1/nowhere", 404), ("/", 404)] {
            let answer = acme.caller().over(protocol).get(path).send().await;
            assert_eq!((answer.status.as_u16(), answer.header(HEADER)), (status, Some(VALUE)), "{path}");
        }
        assert_eq!(acme.stranger().over(protocol).get("/api/v1/me").send().await.header(HEADER), Some(VALUE));
    }
    let malformed = acme.raw("GET / HTTP/1.1\r\nHost: acme.example.test\r\nno field\r\n\r\n").await;
    assert_eq!((malformed.status.as_u16(), malformed.header(HEADER)), (400, Some(VALUE)));
    for (address, status, expected) in [(balancer, 401, Some(VALUE)), (redirect, 308, None)] {
        let request = "GET /api/v1/me HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n";
        let stream = TcpStream::connect(address).await.expect("a connection");
        let bytes = exchange(stream, request.as_bytes(), Duration::from_secs(5)).await;
        let answer = Answer::read(&bytes).expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.header(HEADER)), (status, expected));
    }
}

#[tokio::test]
async fn it_changes_without_a_restart_and_a_faulty_one_is_refused() {
    let mut acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite).gateway("hsts", "max-age=300"));
    let config = fs::read_to_string(&acme.site.config_path).expect("it was written");
    let write = |value: &str| {
        let draft = acme.site.config_path.with_extension("draft");
        fs::write(&draft, config.replace("max-age=300", value)).expect("the site's folder can be written");
        fs::rename(&draft, &acme.site.config_path).expect("the site's folder can be written");
    };
    write(VALUE);
    let since = std::time::Instant::now();
    while acme.caller().get("/api/v1/me").send().await.header(HEADER) != Some(VALUE) {
        assert!(since.elapsed() < Duration::from_secs(20), "it is not reloaded");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    write("includeSubDomains");
    let refused = acme.node.wait_for_log(Duration::from_secs(20), |line| {
        (line.contains("invalid configuration ignored") && line.contains("`max-age` is missing")).then_some(())
    });
    assert!(refused.is_some());
    assert_eq!(acme.caller().get("/api/v1/me").send().await.header(HEADER), Some(VALUE));
}
