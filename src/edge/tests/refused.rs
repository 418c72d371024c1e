//! Tests of heads that no handler may see: each is answered in its order, and its connection is closed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{Hello, exchange, soon};
use super::fixture::Fixture;
use super::frames::{Peer, RST_STREAM, field, get, target};
use crate::config::ConnectionLimits;

/// Writes to a connection and reads it to the end. Returns the statuses of the responses, and the whole text.
async fn statuses(fixture: &Fixture, bytes: &[u8]) -> (Vec<u16>, String) {
    let mut stream = Hello::to("acme.example.com").shake(fixture).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut text = Vec::new();
    soon(stream.read_to_end(&mut text)).await.expect("the connection is closed in good order");
    let text = String::from_utf8(text).unwrap();
    let statuses = text.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].parse().unwrap()).collect();
    (statuses, text)
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /read HTTP/1.1\r\nhost: x\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn a_head_with_two_meanings_or_none_is_refused_and_its_connection_closed() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let chunked = "transfer-encoding: chunked\r\n";
    for (request, status) in [
        (post(&format!("content-length: 2\r\n{chunked}"), "2\r\n{}\r\n0\r\n\r\n"), 400),
        (post(&format!("{chunked}content-length: 2\r\n"), "2\r\n{}\r\n0\r\n\r\n"), 400),
        (post("content-length: 2\r\ncontent-length: 3\r\n", "{}"), 400),
        (post("content-length: 2\r\ncontent-length: 2\r\n", "{}"), 400),
        (post("content-length: 2, 2\r\n", "{}"), 400),
        (post("content-length: +2\r\n", "{}"), 400),
        (post("content-length: -1\r\n", ""), 400),
        (post("content-length: 0x2\r\n", "{}"), 400),
        (post("content-length: 99999999999999999999\r\n", ""), 400),
        (post("content-length: 18446744073709551615\r\n", ""), 400),
        (post("transfer-encoding: gzip\r\n", ""), 400),
        (post("transfer-encoding: gzip, chunked\r\n", "0\r\n\r\n"), 400),
        (post("transfer-encoding: chunked, identity\r\n", "0\r\n\r\n"), 400),
        (post(&format!("{chunked}{chunked}"), "0\r\n\r\n"), 400),
        (format!("POST /read HTTP/1.0\r\nhost: x\r\n{chunked}\r\n0\r\n\r\n"), 400),
        ("GET * HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET /a b HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET  / HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/2.0\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET /\r\n\r\n".to_owned(), 400),
        ("GET http:// HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nhost : x\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nx-folded: a\r\n b\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nx-return: a\rb\r\n\r\n".to_owned(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400),
        ("\u{16}\u{3}\u{1}no TLS inside TLS".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-many: x\r\n".repeat(300)), 431),
        (format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(100_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(100_000)), 414),
    ] {
        let behind = format!("{request}GET /behind HTTP/1.1\r\nhost: x\r\n\r\n");
        let (answered, text) = statuses(&fixture, behind.as_bytes()).await;
        let shown = &request[..request.len().min(200)];
        assert_eq!(answered, [status], "{shown}: {text}");
        assert!(text.contains("connection: close\r\n") && text.contains("content-length: "), "{shown}: {text}");
        assert!(text.contains("{\"message\":"), "{shown}: {text}");
    }
}

#[tokio::test]
async fn requests_before_a_refused_one_are_answered_first() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let bytes = [
        "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n",
        &post("content-length: 5\r\n", "GET *"),
        &post("transfer-encoding: chunked\r\n", "3\r\nGET\r\n0\r\n\r\n"),
        &post("content-length: 1\r\ncontent-length: 1\r\n", "x"),
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    ];
    let (answered, text) = statuses(&fixture, bytes.concat().as_bytes()).await;
    assert_eq!(answered, [200, 200, 200, 400], "{text}");
    let at = |what: &str| text.find(what).unwrap();
    assert!(at("late") < at("\r\n\r\n5") && at("\r\n\r\n5") < at("\r\n\r\n3"), "{text}");
}

#[tokio::test]
async fn a_refused_head_request_gets_no_body() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let (answered, text) = statuses(&fixture, b"HEAD /%zz HTTP/1.1\r\nhost x\r\n\r\n").await;
    assert_eq!(answered, [400]);
    assert!(text.ends_with("\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn a_bad_chunk_breaks_its_body_and_nothing_after_it_is_read() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    for chunks in [
        "zz\r\n{}\r\n0\r\n\r\n",
        "-1\r\n",
        "+2\r\n{}\r\n0\r\n\r\n",
        "\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}X\r\n0\r\n\r\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\nx: y\rz\r\n\r\n",
        "2 2\r\n{}\r\n0\r\n\r\n",
        "2;a\nb\r\n{}\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n{}",
    ] {
        let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
        let request = post("transfer-encoding: chunked\r\n", chunks) + "GET /behind HTTP/1.1\r\nhost: x\r\n\r\n";
        let text = exchange(&mut stream, &request).await;
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{chunks:?}: {text}");
        assert!(text.contains("error"), "{chunks:?}: {text}");
    }
}

#[tokio::test]
async fn over_http_2_a_tunnel_or_an_invalid_target_ends_only_its_stream() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut peer = Peer::connect(&fixture).await;
    let connect = [field(":method", "CONNECT"), field(":protocol", "websocket"), target("/")].concat();
    let no_path =
        [field(":method", "GET"), field(":scheme", "https"), field(":authority", "acme.example.com")].concat();
    let two_paths = [get("/"), field(":path", "/")].concat();
    let connection = [get("/"), field("connection", "close")].concat();
    for (turn, malformed) in [connect, no_path, two_paths, connection].iter().enumerate() {
        let stream = 4 * u32::try_from(turn).unwrap() + 1;
        peer.request(stream, malformed).await.unwrap();
        let ended = peer.until(|frame| frame.stream == stream).await.expect("the connection goes on");
        assert_eq!((ended.kind, &*ended.payload), (RST_STREAM, [0, 0, 0, 1].as_slice()), "a PROTOCOL_ERROR: {turn}");
        peer.request(stream + 2, &get("/")).await.unwrap();
        assert!(peer.answer(stream + 2).await.is_some());
    }
}
