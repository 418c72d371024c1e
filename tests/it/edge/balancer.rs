//! Behind a balancer: without TLS, with callers that it names, and the redirect beside it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use toml::{Table, Value};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::operator_count;
use crate::support::connection::{ServerNameIndication, exchange, shake_on};
use crate::support::fixture::{Engine, Site};

/// No answer takes this long.
const SILENCE: Duration = Duration::from_secs(5);

/// A node with an entry of `listen` that is a table, and where that listens.
fn listening(keys: &[(&str, Value)]) -> (Acme, SocketAddr) {
    let address = ("address".to_owned(), Value::from("127.0.0.1:0"));
    let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let entry: Table = keys.chain([address]).collect();
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test"));
    let site = site.requests_per_minute(100_000).gateway("listen", vec!["127.0.0.1:0".into(), Value::from(entry)]);
    let mut acme = Acme::of(site);
    let [_, address] = acme.node.addresses()[..] else { panic!("two listeners") };
    (acme, address)
}

/// The answer to some text without TLS.
async fn plain(address: SocketAddr, text: &str) -> Answer {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let bytes = exchange(stream, text.as_bytes(), SILENCE).await;
    Answer::read(&bytes).unwrap_or_else(|| panic!("{text:?}: {:?}", String::from_utf8_lossy(&bytes)))
}

fn get(target: &str, host: &str, token: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_listener_without_tls_serves_every_host_of_a_tenant() {
    let (acme, address) = listening(&[("tls", false.into())]);
    // Each of the two has a certificate of its own, so that one connection for both would be misdirected over TLS.
    for host in ["acme.example.test", "forms.acme.test"] {
        let answer = plain(address, &get("/api/v1/me", host, &acme.token)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.fault(&http::Method::GET), None);
    }
    let answer = plain(address, &get("/api/v1/form", "acme.example.test:8080", &acme.token)).await;
    assert_eq!(answer.json()["links"]["first"], "https://acme.example.test:8080/api/v1/form?page=1");
    let unknown = plain(address, &get("/api/v1/me", "other.example.test", &acme.token)).await;
    assert_eq!((unknown.status.as_u16(), unknown.json()["message"].as_str()), (404, Some("Account not found")));
    let misdirected = acme.caller().get("/api/v1/me").host("forms.acme.test").server_name("acme.example.test");
    assert_eq!(misdirected.send().await.status, 421, "the listener with TLS is as it was");
}

#[tokio::test]
async fn a_gateway_without_tls_needs_no_certificate() {
    let entry: Table = [("address", Value::from("127.0.0.1:0")), ("tls", false.into())]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("listen", vec![Value::from(entry)]);
    let site = site.write();
    let text = std::fs::read_to_string(&site.config_path).expect("it was written");
    let mut config: Table = text.parse().expect("it is TOML");
    config["gateway"].as_table_mut().expect("a table").remove("tls").expect("it has a certificate");
    std::fs::write(&site.config_path, config.to_string()).expect("the site's folder can be written");
    let said = site.run(&["check"], b"").stdout;
    assert!(said.contains("no entry of `listen` speaks TLS") && said.contains("no faults"), "{said}");
    let mut node = site.start();
    let answer =
        plain(node.addresses()[0], &get("/api/v1/me", "acme.example.test", &site.token("acme", "tests"))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let readiness = crate::support::client::operator_get(node.operator_address(), "/readyz").await;
    assert_eq!(readiness.json()["parts"]["certificates"], "ok");
}

#[tokio::test]
async fn plain_http_is_redirected_to_https_with_path_and_query() {
    let (mut acme, address) = listening(&[("redirect_to_https", true.into())]);
    let (target, https) = ("/api/v1/form?page=2&x=%20", "https://acme.example.test/api/v1/form?page=2&x=%20");
    for request in [
        format!("GET {target} HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\nHost: ACME.example.test.:8080\r\nConnection: close\r\n\r\n"),
        format!("GET {target} HTTP/1.0\r\nHost: acme.example.test\r\n\r\n"),
        format!("HEAD {target} HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n"),
        format!(
            "GET http://acme.example.test{target} HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n"
        ),
        format!(
            "POST {target} HTTP/1.1\r\nHost: acme.example.test\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        ),
    ] {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let bytes = exchange(stream, request.as_bytes(), SILENCE).await;
        let text = String::from_utf8(bytes).expect("text");
        let answer = Answer::read(text.replacen("HTTP/1.0 ", "HTTP/1.1 ", 1).as_bytes()).expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.header("location")), (308, Some(https)), "{request}");
        assert_eq!(answer.body.is_empty(), request.starts_with("HEAD"), "{request}");
    }
    let other = plain(address, &get("/", "forms.acme.test", "none")).await;
    assert_eq!(other.header("location"), Some("https://forms.acme.test/"));
    let series = r#"formgate_requests_total{method="GET",route="redirect",status="308"}"#;
    assert_eq!(operator_count(acme.node.operator_address(), series).await, 5);
    assert!(acme.node.log().contains(r#""route":"redirect""#));
}

#[tokio::test]
async fn a_one_time_link_that_was_opened_without_tls_is_not_redirected() {
    let entry: Table = "address = '127.0.0.1:0'\nredirect_to_https = true".parse().expect("TOML");
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("administration", Table::new());
    let acme = Acme::of(site.gateway("listen", vec!["127.0.0.1:0".into(), Value::from(entry)]));
    let mut node = acme.node;
    let [_, address] = node.addresses()[..] else { panic!("two listeners") };
    for (path, status) in [
        ("/admin/enter/secret", 404),
        ("/admin/enter/secret?to=%2Ftokens", 404),
        ("/admin/enter/", 404),
        ("/admin/enter", 308),
        ("/admin/entering/x", 308),
        ("/admin", 308),
        ("/enter/secret", 308),
    ] {
        let answer = plain(address, &get(path, "acme.example.test", "none")).await;
        assert_eq!((answer.status.as_u16(), answer.header("location").is_some()), (status, status == 308), "{path}");
    }
    assert!(!node.log().contains("secret"));
}

#[tokio::test]
async fn no_redirect_leads_to_an_unknown_host() {
    let (_acme, address) = listening(&[("redirect_to_https", true.into()), ("https_port", 8443.into())]);
    for (host, status) in [("evil.test", 404), ("127.0.0.1", 404), ("a/b", 400), ("user@acme.example.test", 400)] {
        let answer = plain(address, &get("/", host, "none")).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (status, None), "{host}");
        assert!(answer.json()["message"].is_string());
    }
    let long = plain(address, &get(&format!("/{}", "x".repeat(9000)), "acme.example.test", "none")).await;
    assert_eq!(long.status, 414);
    let answer = plain(address, &get("//evil.test/", "acme.example.test:80", "none")).await;
    assert_eq!(answer.header("location"), Some("https://acme.example.test:8443//evil.test/"));
}

#[tokio::test]
async fn the_client_that_a_balancer_names_is_logged() {
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n";
    let proxies = || ("proxy_protocol_from", Value::from(vec!["10.0.0.0/8", "127.0.0.1"]));
    let (mut acme, address) = listening(&[proxies(), ("tls", false.into())]);
    let request = [&header[..], get("/api/v1/me", "acme.example.test", &acme.token).as_bytes()].concat();
    assert_eq!(plain(address, std::str::from_utf8(&request).expect("text")).await.status, 200);
    assert!(acme.stop().await.contains(r#""client":"192.0.2.7:40000""#));

    let (mut acme, address) = listening(&[proxies()]);
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(header).await.expect("the header is taken");
    let stream = shake_on(stream, "acme.example.test", ServerNameIndication::Sent, &[]).await.expect("a handshake");
    let request = get("/api/v1/me", "acme.example.test", &acme.token);
    let bytes = exchange(stream, request.as_bytes(), SILENCE).await;
    assert_eq!(Answer::read(&bytes).expect("an answer").status, 200);

    let stream = TcpStream::connect(address).await.expect("a connection");
    assert!(shake_on(stream, "acme.example.test", ServerNameIndication::Sent, &[]).await.is_err(), "no header");
    let operator = acme.node.operator_address();
    assert_eq!(operator_count(operator, r#"formgate_connections_refused_total{reason="proxy"}"#).await, 1);
    assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200, "the other listener expects none");
    let log = acme.stop().await;
    assert!(log.contains(r#""client":"192.0.2.7:40000""#) && log.contains(r#""client":"127.0.0.1:"#), "{log}");
}
