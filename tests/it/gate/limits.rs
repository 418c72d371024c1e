//! What a request may take of the gateway: time, bytes, a place.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use toml::Table;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::client::{Call, operator_count, wait_for_count};
use crate::support::connection::{Connection, Protocol, handshake};
use crate::support::fixture::{Engine, Site};

const ME: &str = "/api/v1/me";
const SEARCH: &str = "/api/v1/submission";

/// `acme`, behind a gateway with limits of its own.
fn limited(limits: &str) -> Acme {
    let limits: Table = limits.parse().expect("TOML");
    Acme::of(Site::new().gateway("limits", limits).tenant("acme", Engine::Sqlite).requests_per_minute(100_000))
}

/// Sends the head of a POST and none of its body.
async fn begin(acme: &Acme, length: usize) -> TlsStream<TcpStream> {
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "POST {SEARCH} HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nContent-Length: {length}\r\n\r\n",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("a fresh connection");
    stream.flush().await.expect("a fresh connection");
    stream
}

async fn answer(mut stream: TlsStream<TcpStream>) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("the connection is closed in good order");
    Answer::read(&bytes).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&bytes)))
}

#[tokio::test]
async fn every_limit_on_sizes_can_be_set() {
    let acme =
        limited("head_bytes = 4096\nhttp2_head_bytes = 5000\nhead_fields = 10\ntarget_bytes = 256\nbody_bytes = 1024");
    for (protocol, limit) in [(Protocol::Http1, 4096), (Protocol::Http2, 5000)] {
        let caller = acme.caller().over(protocol);
        for (length, status) in [(limit - 300, 200), (limit + 1, 431)] {
            let call = caller.get(ME).header("x-long", &"x".repeat(length));
            assert_eq!(call.send().await.status, status, "{length} over {protocol:?}");
        }
        let many = (0..10).fold(caller.get(ME), |call, _| call.header("x-many", "x"));
        assert_eq!(many.send().await.status, 431, "{protocol:?}");
        assert_eq!(caller.get(&format!("{ME}?x={}", "y".repeat(256))).send().await.status, 414, "{protocol:?}");
        for (length, status) in [(1024, 200), (1025, 413)] {
            let call = caller.post(SEARCH).fresh().body(vec![b' '; length]);
            assert_eq!(call.send().await.status, status, "{length} over {protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_answered_with_408_and_its_connection_closed() {
    // Less than the whole body may take, and far more than the second takes on a busy machine.
    const LIMIT: Duration = Duration::from_secs(20);
    let acme = limited("body_grace_seconds = 1\nbody_bytes_per_second = 1000");
    let began = Instant::now();
    let mut dripping = begin(&acme, 10_000).await;
    for _ in 0..5 {
        // A machine may take so long for this that the time is over, and the node reads on only to be heard.
        let _ = dripping.write_all(b" ").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let answer = answer(dripping).await;
    assert_eq!(answer.status, 408, "{answer:?}");
    assert_eq!(answer.json(), json!({"message": "The request body did not arrive in time"}));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.header("x-request-id").is_some() && answer.header("x-ratelimit-limit").is_some());
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn as_many_requests_as_may_be_are_worked_on_and_the_next_is_refused_at_once() {
    let mut acme = limited("in_flight = 2\nbody_grace_seconds = 30");
    let held = [begin(&acme, 2).await, begin(&acme, 2).await];
    wait_until_in_flight(&mut acme, 2).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut connection = Connection::open(acme.node.address, &acme.host(), protocol).await.expect("a connection");
        let uri = if protocol == Protocol::Http2 { "https://acme.example.test/api/v1/me" } else { ME };
        let request = http::Request::get(uri).header("host", "acme.example.test").header("x-request-id", "mine");
        let answer = connection.send(request.body(<_>::default()).expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers()["x-request-id"], "mine");
        assert_eq!(answer.headers()["content-type"], "application/json");
    }
    for mut stream in held {
        stream.write_all(b"{}").await.expect("it is still read");
        stream.flush().await.expect("it is still read");
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.expect("an answer");
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    wait_until_in_flight(&mut acme, 0).await;
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
    let operator = acme.node.operator_address();
    assert_eq!(operator_count(operator, r#"formgate_requests_refused_total{reason="in_flight"}"#).await, 2);
}

async fn wait_until_in_flight(acme: &mut Acme, requests: u64) {
    wait_for_count(acme.node.operator_address(), "formgate_requests_in_flight", requests).await;
}

#[tokio::test]
async fn a_client_that_disconnects_releases_its_permit() {
    let mut acme = limited("in_flight = 2");
    drop([begin(&acme, 2).await, begin(&acme, 2).await]);
    wait_until_in_flight(&mut acme, 0).await;
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
}

#[tokio::test]
async fn a_long_method_is_cut_in_the_log() {
    let mut acme = Acme::start();
    let method = "BREW".repeat(5000);
    let answer = acme.raw(format!("{method} {ME} HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n"));
    assert_eq!(answer.await.status, 501);
    let log = acme.stop().await;
    let line = log.lines().find(|line| line.contains("BREWBREW")).expect("a line of the request");
    assert!(line.contains(&format!("\"method\":\"{}…\"", &method[..63])) && line.len() < 600, "{line}");
}

#[tokio::test]
async fn unknown_methods_are_501_and_tunnels_are_400() {
    let acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for method in ["BREW", "PROPFIND", "GETS", "PURGE"] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            for caller in [acme.caller(), acme.stranger()] {
                let answer = caller.over(protocol).method(method.clone(), ME).send().await;
                assert_eq!(answer.status, 501, "{method} over {protocol:?}: {answer:?}");
                assert_eq!(answer.json(), json!({"message": "Unknown method"}));
            }
        }
        for method in [Method::OPTIONS, Method::TRACE, Method::PATCH, Method::from_bytes(b"QUERY").expect("a method")] {
            assert_eq!(acme.caller().over(protocol).method(method, ME).send().await.status, 405, "{protocol:?}");
        }
        assert_eq!(
            acme.caller().over(protocol).get(ME).send().await.number("x-ratelimit-remaining"),
            Some(100_000 - if protocol == Protocol::Http1 { 5 } else { 10 }),
            "an unknown method costs nothing"
        );
    }
    for request in [
        "CONNECT acme.example.test:443 HTTP/1.1\r\nHost: acme.example.test\r\n\r\n",
        "CONNECT elsewhere.test:443 HTTP/1.1\r\nHost: elsewhere.test:443\r\n\r\n",
        "CONNECT /api/v1/me HTTP/1.1\r\nHost: acme.example.test\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: acme.example.test\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: acme.example.test\r\n\r\n",
    ] {
        let answer = acme.raw(request).await;
        assert_eq!(answer.status, 400, "{request}");
        assert_eq!(answer.json(), json!({"message": "Invalid request target"}), "{request}");
        assert_eq!(answer.header("connection"), Some("close"), "{request}");
        assert!(answer.header("x-request-id").is_some(), "{request}");
    }
    let mut connection =
        Connection::open(acme.node.address, &acme.host(), Protocol::Http2).await.expect("a connection");
    for authority in ["acme.example.test:443", "elsewhere.test:443"] {
        let request = http::Request::connect(authority).body(<_>::default()).expect("a request");
        assert_eq!(connection.send(request).await.expect("an answer").status(), 400, "{authority}");
    }
}

#[tokio::test]
async fn a_malformed_request_is_refused_in_json_with_a_request_id() {
    let acme = Acme::start();
    for (fields, message) in [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "The length of the request body is ambiguous"),
        ("Content-Length: 2\r\nContent-Length: 2\r\n", "The length of the request body is ambiguous"),
        ("No colon\r\n", "Malformed request"),
    ] {
        let answer = acme.raw(format!("POST {SEARCH} HTTP/1.1\r\nHost: acme.example.test\r\n{fields}\r\n{{}}")).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json(), json!({"message": message}));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(answer.header("x-request-id").is_some(), "{answer:?}");
    }
    let chunks = format!(
        "POST {SEARCH} HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        acme.token
    );
    let answer = acme.raw(chunks).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(answer.json(), json!({"message": "The request body is malformed or incomplete"}));
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn a_request_has_its_time_for_every_step_and_a_group_its_own() {
    let limits = "request_seconds = 1\ngroup_request_seconds = 2".parse::<Table>().expect("TOML");
    let acme = Acme::of(Site::new().gateway("limits", limits).tenant("acme", Engine::Postgres));
    // The first request opens the database, for which a busy machine may take longer.
    let began = Instant::now();
    while acme.caller().get(ME).send().await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(30), "the database is not opened");
    }
    let mut database = PgConnection::connect(acme.site.database_url("acme")).await.expect("the database");
    // A statement waits for a lock no longer than a group may take.
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$; \
        CREATE TRIGGER slow BEFORE INSERT ON groups FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(&mut database).await.expect("the database");
    // The look-up of a token that is not remembered, a handler that reads, and one that writes.
    let fresh = || acme.stranger().with(&acme.site.token("acme", "fresh")).get(ME);
    let reading = || acme.caller().get("/api/v1/group");
    let writing = || acme.caller().put("/api/v1/group").json(&json!({"name": "Managers"}));
    type Slow<'c> = (Option<&'static str>, u64, &'c dyn Fn() -> Call);
    let calls: [Slow<'_>; 3] = [
        (Some("LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE"), 1, &fresh),
        (Some("LOCK TABLE groups IN ACCESS EXCLUSIVE MODE"), 1, &reading),
        (None, 2, &writing),
    ];
    for (lock, seconds, call) in calls {
        let limit = Duration::from_secs(seconds);
        takes_less_than(limit + Duration::from_millis(900), "a refusal", async || {
            let call = call();
            let mut locking = database.begin().await.expect("the database");
            if let Some(lock) = lock {
                sqlx::query(lock).execute(&mut *locking).await.expect("the database");
            }
            let began = Instant::now();
            let answer = call.send().await;
            let took = began.elapsed();
            locking.rollback().await.expect("the database");
            assert_eq!(answer.status, 504, "{lock:?}: {answer:?}");
            assert_eq!(answer.json(), json!({"message": "The request took too long"}));
            assert!(took >= limit, "{lock:?}: {took:?}");
            took
        })
        .await;
    }
}
