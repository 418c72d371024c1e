//! Answers that are known before the request's body has arrived: they reach the client, and announce the end if there is
//! one.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use toml::{Table, Value};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::connection::{Protocol, handshake};
use crate::support::fixture::{Engine, Site};

/// Nothing takes this long.
const LIMIT: Duration = Duration::from_secs(30);

/// How long the gateway waits for a small rest, and some more.
const DRAIN: Duration = Duration::from_secs(1);

const HOST: &str = "Host: acme.example.test\r\n";

/// A connection on which a test writes bytes of its own.
struct Raw<IO> {
    stream: IO,
    read: Vec<u8>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Raw<IO> {
    fn on(stream: IO) -> Self {
        Self { stream, read: Vec::new() }
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(LIMIT, self.stream.write_all(bytes.as_ref())).await.expect("it is read").expect("it is not reset");
        self.stream.flush().await.expect("it is not reset");
    }

    /// The next answer, whole.
    async fn answer(&mut self) -> Answer {
        loop {
            if let Some(answer) = Answer::read(&self.read)
                && let Some(length) = answer.number("content-length").and_then(|length| usize::try_from(length).ok())
                && answer.body.len() == length
            {
                let end = self.read.windows(4).position(|four| four == b"\r\n\r\n").expect("it has a head");
                self.read.drain(..end + 4 + length);
                return answer;
            }
            let came = timeout(LIMIT, self.stream.read_buf(&mut self.read)).await.expect("an answer in time");
            assert!(came.expect("no reset") > 0, "it is closed after {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn is_closed(&mut self) -> bool {
        let came = timeout(LIMIT, self.stream.read_buf(&mut self.read)).await.expect("the end in time");
        matches!(came, Ok(0)) && self.read.is_empty()
    }
}

async fn connect(acme: &Acme) -> Raw<impl AsyncRead + AsyncWrite + Unpin> {
    Raw::on(handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection"))
}

fn head(request: &str, token: &str, fields: &str) -> String {
    format!("{request} HTTP/1.1\r\n{HOST}Authorization: Bearer {token}\r\n{fields}\r\n")
}

fn is_last(answer: &Answer) -> bool {
    answer.header("connection") == Some("close")
}

#[tokio::test]
async fn a_small_unread_rest_is_discarded_and_the_connection_stays_open() {
    let acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3));
    let mut raw = connect(&acme).await;
    for (request, token, status) in [
        ("POST /api/v1/nowhere", &*acme.token, 404),
        ("DELETE /api/v1/submission", &acme.token, 405),
        ("POST /elsewhere", &acme.token, 404),
        ("POST /api/v1/submission", "bad", 401),
        ("GET /api/v1/me", &acme.token, 200),
        ("PUT /api/v1/group", &acme.token, 429),
        ("BREW /api/v1/me", &acme.token, 501),
    ] {
        for length in [1, 20, 60_000] {
            raw.write(head(request, token, &format!("Content-Length: {length}\r\n"))).await;
            raw.write("x".repeat(length)).await;
            let answer = raw.answer().await;
            let expected = [status, if status == 404 || status == 405 || status == 200 { 429 } else { status }];
            assert!(expected.contains(&answer.status.as_u16()), "{request}: {answer:?}");
            assert!(!is_last(&answer), "{request} with {length} bytes: {answer:?}");
        }
        raw.write(head(request, token, "Transfer-Encoding: chunked\r\n")).await;
        raw.write("5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: x\r\n\r\n").await;
        assert!(!is_last(&raw.answer().await), "{request} in chunks");
    }
}

#[tokio::test]
async fn the_requests_behind_a_dropped_rest_are_answered_in_their_order() {
    let acme = Acme::start();
    let mut raw = connect(&acme).await;
    let bad = head("POST /api/v1/submission", "bad", "Content-Length: 2\r\n");
    let good = head("GET /api/v1/me", &acme.token, "");
    raw.write(format!("{bad}{{}}{good}{bad}")).await;
    assert_eq!(raw.answer().await.status, 401);
    assert_eq!(raw.answer().await.status, 200);
    raw.write(format!("{{}}{good}")).await;
    assert_eq!(raw.answer().await.status, 401);
    assert_eq!(raw.answer().await.status, 200);
}

#[tokio::test]
async fn a_slightly_too_large_body_is_refused_and_the_connection_stays_open() {
    let site = Site::new().tenant("acme", Engine::Sqlite);
    let acme = Acme::of(site.gateway("limits", "body_bytes = 1024".parse::<Table>().expect("TOML")));
    let mut raw = connect(&acme).await;
    raw.write(head("POST /api/v1/submission", &acme.token, "Content-Length: 2000\r\n")).await;
    raw.write("x".repeat(2000)).await;
    let declared = raw.answer().await;
    assert_eq!((declared.status.as_u16(), is_last(&declared)), (413, false));
    raw.write(head("POST /api/v1/submission", &acme.token, "Transfer-Encoding: chunked\r\n")).await;
    raw.write(format!("800\r\n{}\r\n", "x".repeat(0x800))).await;
    raw.write("1\r\nx\r\n0\r\n\r\n").await;
    let counted = raw.answer().await;
    assert_eq!((counted.status.as_u16(), is_last(&counted)), (413, false));
    raw.write(head("GET /api/v1/me", &acme.token, "")).await;
    assert_eq!(raw.answer().await.status, 200);
}

#[tokio::test]
async fn a_large_unread_rest_closes_the_connection_as_announced_after_the_client_read_the_response() {
    let acme = Acme::start();
    let chunks = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let cases = [
        ("Content-Length: 720896\r\n", "x".repeat(65_536), 11),
        ("Content-Length: 16777216\r\n", "x".repeat(65_536), 256),
        ("Transfer-Encoding: chunked\r\n", chunks, 64),
    ];
    join_all(cases.iter().map(async |(fields, piece, times)| {
        let mut raw = connect(&acme).await;
        raw.write(head("PUT /api/v1/group", "bad", fields)).await;
        for turn in 0..*times {
            raw.write(piece).await;
            if turn == times / 2 {
                // A slow client: the answer is out by now.
                tokio::time::sleep(3 * DRAIN).await;
            }
        }
        let answer = raw.answer().await;
        assert_eq!((answer.status.as_u16(), is_last(&answer)), (401, true), "{fields}");
        assert!(raw.is_closed().await, "{fields}");
    }))
    .await;
}

#[tokio::test]
async fn a_rest_that_does_not_come_is_not_waited_for() {
    let acme = Acme::start();
    for fields in ["Content-Length: 20\r\n", "Transfer-Encoding: chunked\r\n"] {
        takes_less_than(3 * DRAIN, "the answer", async || {
            let mut raw = connect(&acme).await;
            let since = Instant::now();
            raw.write(head("POST /api/v1/submission", "bad", fields)).await;
            let answer = raw.answer().await;
            let took = since.elapsed();
            assert_eq!((answer.status.as_u16(), is_last(&answer)), (401, true), "{fields}");
            assert!(took >= DRAIN, "{fields} after {took:?}");
            assert!(raw.is_closed().await, "{fields}");
            took
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_answered_at_once() {
    let acme = Acme::start();
    takes_less_than(DRAIN, "the answer", async || {
        let mut raw = connect(&acme).await;
        raw.write(head("POST /api/v1/submission", "bad", "Content-Length: 20\r\nExpect: 100-continue\r\n")).await;
        let since = Instant::now();
        let answer = raw.answer().await;
        let took = since.elapsed();
        assert_eq!((answer.status.as_u16(), is_last(&answer)), (401, true));
        assert!(raw.is_closed().await);
        took
    })
    .await;
}

#[tokio::test]
async fn a_client_of_http_1_0_and_one_without_tls_get_their_answers_too() {
    let entry = |key: &str| {
        let address = ("address".to_owned(), Value::from("127.0.0.1:0"));
        Value::from(Table::from_iter([address, (key.to_owned(), Value::from(key != "tls"))]))
    };
    let listen: Vec<Value> = vec!["127.0.0.1:0".into(), entry("tls"), entry("redirect_to_https")];
    let mut acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite).gateway("listen", listen));
    let [_, plain, redirect] = acme.node.addresses()[..] else { panic!("three listeners") };
    for (address, status) in [(plain, 401), (redirect, 308)] {
        let mut raw = Raw::on(TcpStream::connect(address).await.expect("a connection"));
        for _ in 0..3 {
            raw.write(head("POST /api/v1/submission", "bad", "Content-Length: 2\r\n")).await;
            raw.write("{}").await;
            let answer = raw.answer().await;
            assert_eq!((answer.status.as_u16(), is_last(&answer)), (status, false));
        }
        raw.write(head("POST /api/v1/submission", "bad", "Content-Length: 700000\r\n")).await;
        raw.write("x".repeat(700_000)).await;
        let answer = raw.answer().await;
        assert_eq!((answer.status.as_u16(), is_last(&answer)), (status, true));
    }
    let mut raw = Raw::on(TcpStream::connect(plain).await.expect("a connection"));
    for fields in ["Connection: keep-alive\r\nContent-Length: 2\r\n", "Content-Length: 2\r\n"] {
        raw.write(format!("POST /api/v1/submission HTTP/1.0\r\n{HOST}{fields}\r\n")).await;
        raw.write("{}").await;
    }
    timeout(LIMIT, raw.stream.read_to_end(&mut raw.read)).await.expect("it is closed").expect("no reset");
    assert_eq!(String::from_utf8_lossy(&raw.read).matches("HTTP/1.0 401").count(), 2);
}

#[tokio::test]
async fn clients_that_keep_back_a_rest_take_no_place_among_the_requests_in_flight() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
    let acme = Acme::of(site.gateway("limits", "in_flight = 2".parse::<Table>().expect("TOML")));
    // The first request opens the database, in which time it is in flight.
    let mut raw = connect(&acme).await;
    raw.write(head("GET /api/v1/me", &acme.token, "")).await;
    assert_eq!(raw.answer().await.status, 200);
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut raw = connect(&acme).await;
        raw.write(head("POST /api/v1/submission", "bad", "Content-Length: 20\r\n")).await;
        waiting.push(raw);
    }
    let mut raw = connect(&acme).await;
    for _ in 0..20 {
        raw.write(head("GET /api/v1/me", &acme.token, "")).await;
        assert_eq!(raw.answer().await.status, 200);
    }
    for mut raw in waiting {
        assert_eq!(raw.answer().await.status, 401);
    }
}
