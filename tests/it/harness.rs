//! The harness itself: that its parts are real, and that its client refuses what it should.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::net::TcpListener;

use crate::support::client::{Client, Unanswered};
use crate::support::connection::{Protocol, raw};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::postgres::Postgres;
use crate::support::process::{Listener, formgate, listening};
use crate::support::redis::Redis;
use crate::support::{certificate, folder, tls_server};

#[tokio::test]
async fn each_database_is_new_and_in_utf_8() {
    let (one, other) = (Postgres::database(), Postgres::database());
    assert_ne!(one, other);
    let mut connection = PgConnection::connect(&one).await.expect("the database takes connections");
    for (setting, value) in [("server_encoding", "UTF8"), ("max_connections", "400"), ("fsync", "off")] {
        let query = sqlx::query_scalar("SELECT current_setting($1)").bind(setting);
        let found: String = query.fetch_one(&mut connection).await.expect("the setting exists");
        assert_eq!(found, value, "{setting}");
    }
}

on_both_databases! {
    async fn each_engine_has_a_database(engine: Engine) {
        let folder = folder::temporary("engine");
        let url = engine.empty_database(folder.path(), "acme");
        let one: i32 = match engine {
            Engine::Postgres | Engine::PostgresOn(_) => {
                let mut connection = PgConnection::connect(&url).await.expect("the database takes connections");
                sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await
            }
            Engine::Sqlite => {
                let mut connection = SqliteConnection::connect(&format!("{url}?mode=rwc")).await.expect("a new file");
                sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await
            }
        }
        .expect("one is one");
        assert_eq!(one, 1);
    }
}

#[tokio::test]
async fn a_redis_outlives_the_thread_that_started_it_and_ends_when_dropped() {
    let redis = thread::spawn(Redis::start).join().expect("Redis starts");
    assert_ne!(redis.url(), Redis::shared().url());
    let client = redis::Client::open(redis.url()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis takes connections");
    let pong: String = redis::cmd("PING").query_async(&mut connection).await.expect("Redis answers");
    assert_eq!(pong, "PONG");
    drop(redis);
    assert!(client.get_multiplexed_async_connection().await.is_err());
}

#[test]
fn the_address_is_found_in_text_in_colour_and_in_json() {
    let callers = Some((Listener::Callers, SocketAddr::from(([127, 0, 0, 1], 4433))));
    let text = "2024-05-01T13:45:30Z  INFO formgate::edge: listening address=127.0.0.1:4433";
    let coloured = "\u{1b}[32m INFO\u{1b}[0m listening \u{1b}[3maddress\u{1b}[0m\u{1b}[2m=\u{1b}[0m127.0.0.1:4433";
    let json = r#"{"level":"INFO","fields":{"message":"listening","address":"127.0.0.1:4433"}}"#;
    for line in [text, coloured, json] {
        assert_eq!(listening(line), callers, "{line:?}");
    }
    let operator = listening("INFO admin listening address=127.0.0.1:9464");
    assert_eq!(operator, Some((Listener::Operator, SocketAddr::from(([127, 0, 0, 1], 9464)))));
    assert_eq!(listening("INFO connected address=127.0.0.1:4433"), None);
}

#[test]
fn a_command_ends_with_a_code() {
    assert_eq!(formgate(&["--help"]).code, 0);
}

#[test]
fn a_site_is_written_with_its_tenants() {
    let site = Site::new()
        .tenant("acme", Engine::Sqlite)
        .tenant_with("globex", Engine::Postgres, |tenant| tenant.domain("forms.globex.test"))
        .requests_per_minute(1000)
        .redis(Redis::shared())
        .write();
    let text = std::fs::read_to_string(&site.config_path).expect("the configuration was written");
    let config: toml::Table = text.parse().expect("the configuration is TOML");
    let [acme, globex] = config["tenant"].as_array().expect("an array of tables").as_slice() else {
        panic!("two tenants")
    };
    assert_eq!(config["gateway"]["redis"].as_str(), Some(Redis::shared().url().as_str()));
    assert_eq!(acme["address"].as_str(), Some("acme.example.test"));
    assert_eq!(acme["requests_per_minute"].as_integer(), Some(1000));
    assert!(acme.get("domains").is_none());
    let key = globex["tls"]["forms.globex.test"]["private_key"].as_str().expect("a path");
    assert!(std::path::Path::new(key).starts_with(site.folder()));
    assert!(std::fs::exists(key).expect("the site's folder can be read"));
}

/// A TLS server for `*.example.test` that gives the same answer to everything.
async fn server_of(status: u16, headers: &[(&'static str, &'static str)], body: String) -> SocketAddr {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    answer.headers_mut().extend(headers.iter().map(|(name, value)| {
        (name.parse::<http::HeaderName>().expect("a name"), http::HeaderValue::from_static(value))
    }));
    let folder = folder::temporary("server");
    let issued = certificate::issue(folder.path(), &["*.example.test"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
    let address = listener.local_addr().expect("a bound socket has an address");
    tls_server::accept(listener, issued, &[b"h2", b"http/1.1"], move |handshake| {
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut answer = answer.clone();
            if request.method() == Method::HEAD {
                *answer.body_mut() = Full::default(); // hyper would send it over HTTP/2
            }
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        async move {
            let Ok(tls) = handshake.await else { return };
            let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let stream = TokioIo::new(tls);
            let _ = if is_http2 {
                http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
            } else {
                http1::Builder::new().serve_connection(stream, service).await
            };
        }
    });
    address
}

/// The headers of a flawless answer.
const FLAWLESS: &[(&str, &str)] = &[
    ("x-request-id", "018f"),
    ("content-type", "application/json"),
    ("x-ratelimit-limit", "60"),
    ("x-ratelimit-remaining", "59"),
];

fn flawless_but(changed: &'static str, to: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    let kept = FLAWLESS.iter().copied().filter(|(name, _)| *name != changed);
    kept.chain(to.map(|value| (changed, value))).collect()
}

/// The panic of the client at an answer, if it panics; outside of the API, which has a description of its own.
async fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: String) -> Option<String> {
    let caller = Client::new(server_of(status, headers, body).await).to("acme.example.test");
    let joined = tokio::spawn(async move { caller.get("/me").send().await }).await;
    joined.err().map(|error| *error.into_panic().downcast::<String>().expect("a message"))
}

#[tokio::test]
async fn the_test_client_accepts_a_valid_response_over_both_protocols_and_on_kept_connections() {
    let address = server_of(200, FLAWLESS, json!({"message": "Welcome"}).to_string()).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let caller = Client::new(address).to("acme.example.test").with("fg_x").over(protocol);
        for call in [caller.get("/a"), caller.post("/b").json(&json!({})), caller.get("/c").fresh()] {
            let answer = call.send().await;
            assert_eq!((answer.status, answer.json()), (StatusCode::OK, json!({"message": "Welcome"})));
        }
        futures_util::future::join_all((0..10).map(|_| caller.get("/d").send())).await;
        assert_eq!(caller.head("/e").send().await.body, b"");
    }
}

#[tokio::test]
async fn the_test_client_refuses_a_response_without_the_common_headers() {
    let body = json!({"message": "Welcome"}).to_string();
    assert_eq!(refusal(200, FLAWLESS, body.clone()).await, None);
    for (header, value) in [
        ("x-request-id", None),
        ("content-type", None),
        ("content-type", Some("text/html")),
        ("x-ratelimit-limit", None),
        ("x-ratelimit-remaining", Some("some")),
        ("x-ratelimit-remaining", Some("61")),
    ] {
        let refusal = refusal(200, &flawless_but(header, value), body.clone()).await;
        assert!(refusal.is_some_and(|panic| panic.contains("Welcome")), "{header}: {value:?}");
    }
    assert!(refusal(200, FLAWLESS, "Welcome".into()).await.is_some());
}

#[tokio::test]
async fn the_client_refuses_a_refusal_of_the_wrong_shape() {
    let message = json!({"message": "No"}).to_string();
    for status in [401, 405, 422, 429] {
        assert!(refusal(status, FLAWLESS, message.clone()).await.is_some(), "{status}");
    }
    assert!(refusal(500, FLAWLESS, json!({"error": "No"}).to_string()).await.is_some());
    assert!(refusal(429, &flawless_but("retry-after", Some("0")), message.clone()).await.is_some());
    assert_eq!(refusal(429, &flawless_but("retry-after", Some("1")), message.clone()).await, None);
    assert!(refusal(422, FLAWLESS, json!({"message": "No", "errors": {"page": "No"}}).to_string()).await.is_some());
    assert_eq!(refusal(422, FLAWLESS, json!({"message": "No", "errors": {"page": ["No"]}}).to_string()).await, None);
}

#[tokio::test]
async fn without_an_account_the_test_client_expects_no_rate_headers() {
    for (status, message) in [(400, "Bad request"), (421, "Misdirected request"), (404, "Account not found")] {
        assert_eq!(refusal(status, &[], json!({"message": message}).to_string()).await, None, "{status}");
    }
    assert!(refusal(404, &[], json!({"message": "Not found"}).to_string()).await.is_some());
    assert!(refusal(421, &[], String::new()).await.is_some());
}

#[tokio::test]
async fn the_client_trusts_a_certificate_for_its_names_only() {
    let address = server_of(200, FLAWLESS, "{}".into()).await;
    let elsewhere = Client::new(address).get("/").host("forms.acme.test").try_send().await;
    assert!(matches!(elsewhere, Err(Unanswered::Unconnected(_))), "{elsewhere:?}");
    let misdirected = Client::new(address).get("/").host("forms.acme.test").server_name("acme.example.test");
    assert_eq!(misdirected.send().await.status, 200);
}

#[tokio::test]
async fn malformed_bytes_reach_the_server_as_they_are() {
    let address = server_of(200, FLAWLESS, "{}".into()).await;
    let answer = raw(address, "acme.example.test", b"GET / HTTP/1.1\r\nHost acme\r\n\r\n").await;
    assert!(answer.starts_with(b"HTTP/1.1 400 Bad Request\r\n"), "{:?}", String::from_utf8_lossy(&answer));
}
