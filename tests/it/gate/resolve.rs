//! Which account a request is for.

use http::{Method, Request};
use http_body_util::{BodyExt, Full};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::connection::{Connection, Protocol, ServerNameIndication, exchange, shake};
use crate::support::fixture::{Engine, Site};

/// `acme` and `globex` at their sign-in addresses, which share a wildcard certificate, and at a domain of their own each.
fn two_accounts() -> Acme {
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test").domain("xn--bcher-kva.test"))
        .tenant_with("globex", Engine::Sqlite, |tenant| tenant.domain("forms.globex.test"));
    Acme::of(site.requests_per_minute(100_000))
}

/// The account that answers `GET /me`.
async fn account(caller: &Client) -> serde_json::Value {
    let answer = caller.get("/api/v1/me").send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["account"]["id"].clone()
}

/// The answer to a raw `GET /me` with the token, where the lines between stand in for `Host`.
async fn with_head(acme: &Acme, server_name: &str, target: &str, hosts: &str) -> Answer {
    let stream = shake(acme.node.address, server_name, ServerNameIndication::Sent, &[]).await.expect("a known name");
    let token = &acme.token;
    let request = format!("GET {target} HTTP/1.1\r\n{hosts}Authorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    let bytes = exchange(stream, request.as_bytes(), std::time::Duration::from_secs(5)).await;
    Answer::read(&bytes).unwrap_or_else(|| panic!("{request:?}: {:?}", String::from_utf8_lossy(&bytes)))
}

#[tokio::test]
async fn an_account_answers_at_its_sign_in_address_and_its_domains_however_they_are_written() {
    let acme = two_accounts();
    for (server_name, host) in [
        ("acme.example.test", "acme.example.test"),
        ("acme.example.test", "ACME.Example.TEST"),
        ("acme.example.test", "acme.example.test:8443"),
        ("acme.example.test", "acme.example.test."),
        ("acme.example.test", "Acme.Example.Test.:443"),
        ("acme.example.test", "acme.example.test:"),
        ("forms.acme.test", "forms.acme.test"),
        ("forms.acme.test", "FORMS.acme.test.:8443"),
        ("xn--bcher-kva.test", "xn--bcher-kva.test"),
        ("xn--bcher-kva.test", "XN--BCHER-KVA.test"),
        ("xn--bcher-kva.test", "bücher.test"),
        ("xn--bcher-kva.test", "BÜCHER.test:8443"),
    ] {
        let answer = with_head(&acme, server_name, "/api/v1/me", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        assert_eq!(answer.json()["account"]["id"], "acme", "{host}");
    }
}

#[tokio::test]
async fn a_request_that_names_no_valid_host_is_refused_in_json() {
    let acme = two_accounts();
    for hosts in [
        "",
        "Host:\r\n",
        "Host: acme.example.test\r\nHost: acme.example.test\r\n",
        "Host: acme.example.test\r\nHost: globex.example.test\r\n",
        "Host: acme.example.test, globex.example.test\r\n",
        "Host: acme example.test\r\n",
        "Host: https://acme.example.test\r\n",
        "Host: acme.example.test/api\r\n",
        "Host: user@acme.example.test\r\n",
        "Host: acme.example.test:port\r\n",
        "Host: acme.example.test:65536\r\n",
        "Host: acme..example.test\r\n",
        "Host: [::1\r\n",
        "Host: %61cme.example.test\r\n",
    ] {
        let answer = with_head(&acme, "acme.example.test", "/api/v1/me", hosts).await;
        assert_eq!(answer.status, 400, "{hosts:?}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{hosts:?}");
        assert_eq!(answer.json(), serde_json::json!({"message": "Invalid host"}), "{hosts:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), None, "no account, no budget");
    }
}

#[tokio::test]
async fn where_there_is_no_account_there_are_no_rate_headers() {
    let acme = two_accounts();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for path in ["/api/v1/me", "/", "/api/v1/nowhere"] {
            let call = acme.caller().get(path).over(protocol).host("nobody.example.test");
            let answer = call.server_name("acme.example.test").send().await;
            assert_eq!((answer.status.as_u16(), answer.json()["message"].as_str()), (404, Some("Account not found")));
            for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "www-authenticate"] {
                assert_eq!(answer.header(name), None, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_host_that_the_connections_certificate_does_not_name_is_misdirected() {
    let acme = two_accounts();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for (server_name, host) in [
            ("forms.acme.test", "forms.globex.test"),
            ("forms.acme.test", "acme.example.test"),
            ("forms.acme.test", "nobody.example.test"),
            ("acme.example.test", "forms.acme.test"),
            ("acme.example.test", "example.test"),
            ("acme.example.test", "a.acme.example.test"),
        ] {
            let answer =
                acme.caller().get("/api/v1/me").over(protocol).host(host).server_name(server_name).send().await;
            assert_eq!(answer.status, 421, "{host} over {server_name}");
            assert_eq!(answer.json(), serde_json::json!({"message": "Misdirected request"}));
            assert_eq!(answer.header("x-ratelimit-limit"), None);
        }
    }
}

#[tokio::test]
async fn one_connection_serves_every_host_of_its_wildcard_certificate() {
    let acme = two_accounts();
    let globex = acme.site.token("globex", "tests");
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut connection =
            Connection::open(acme.node.address, "acme.example.test", protocol).await.expect("a connection");
        for (host, token, account) in [
            ("acme.example.test", &acme.token, "acme"),
            ("globex.example.test", &globex, "globex"),
            ("acme.example.test", &acme.token, "acme"),
        ] {
            let request = request_of(protocol, host, token, None);
            let answer = connection.send(request).await.expect("an answer");
            let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(body["account"]["id"], account, "{protocol:?}");
        }
    }
}

/// `GET /me` with the host where the protocol has it, and with a `Host` beside it.
fn request_of(protocol: Protocol, host: &str, token: &str, beside: Option<&str>) -> Request<Full<bytes::Bytes>> {
    let (uri, own) = match protocol {
        Protocol::Http1 => ("/api/v1/me".to_owned(), Some(host)),
        Protocol::Http2 => (format!("https://{host}/api/v1/me"), None),
    };
    let mut request =
        Request::builder().method(Method::GET).uri(uri).header("authorization", format!("Bearer {token}"));
    for host in own.into_iter().chain(beside) {
        request = request.header("host", host);
    }
    request.body(Full::default()).expect("a valid request")
}

#[tokio::test]
async fn an_absolute_target_must_name_the_same_host_as_the_header() {
    let acme = two_accounts();
    for (target, host, status) in [
        ("https://acme.example.test/api/v1/me", "acme.example.test", 200),
        ("https://ACME.example.test:8443/api/v1/me", "acme.example.test", 200),
        ("https://acme.example.test/api/v1/me", "globex.example.test", 400),
        ("https://globex.example.test/api/v1/me", "acme.example.test", 400),
        ("https://user@acme.example.test/api/v1/me", "acme.example.test", 400),
    ] {
        let answer = with_head(&acme, "acme.example.test", target, &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, status, "{target} at {host}: {answer:?}");
    }
}

#[tokio::test]
async fn over_http_2_a_host_header_must_agree_with_the_authority() {
    let acme = two_accounts();
    let mut connection =
        Connection::open(acme.node.address, "acme.example.test", Protocol::Http2).await.expect("a connection");
    for (beside, status) in [("acme.example.test", 200), ("ACME.example.test.:8443", 200), ("globex.example.test", 400)]
    {
        let request = request_of(Protocol::Http2, "acme.example.test", &acme.token, Some(beside));
        let answer = connection.send(request).await.expect("an answer");
        assert_eq!(answer.status(), status, "{beside}");
    }
}

#[tokio::test]
async fn outside_the_api_an_account_has_nothing() {
    let acme = two_accounts();
    for path in ["/", "/api", "/api/", "/api/v2/me", "/api/v1x", "/API/v1/me", "/me", "//api/v1/me", "/api/v1%2Fme"] {
        for caller in [acme.caller(), acme.stranger()] {
            let answer = caller.get(path).header("x-request-id", "mine").send().await;
            assert_eq!((answer.status.as_u16(), answer.json()["message"].as_str()), (404, Some("Not found")), "{path}");
            assert_eq!(answer.header("x-request-id"), Some("mine"));
            assert_eq!(answer.number("x-ratelimit-remaining"), Some(100_000), "{path} costs nothing");
        }
    }
    assert_eq!(account(&acme.caller()).await, "acme");
}
