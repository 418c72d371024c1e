//! Tests of uploads: a refusal reaches a client that is still sending, and a body that is read is read completely.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;

use super::client::{Hello, exchange, read_to_end, soon};
use super::fixture::Fixture;
use crate::config::ConnectionLimits;

const MIB: usize = 1024 * 1024;

/// Writes all of the body before it reads any of the response, as simple clients do.
async fn upload(fixture: &Fixture, path: &str, length: usize) -> Result<String, std::io::Error> {
    let mut stream = Hello::to("acme.example.com").shake(fixture).await?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let piece = [b'x'; 64 * 1024];
    for _ in 0..length / piece.len() {
        soon(stream.write_all(&piece)).await?;
    }
    stream.flush().await?;
    Ok(read_to_end(&mut stream).await)
}

#[tokio::test]
async fn a_client_that_reads_only_after_its_last_byte_gets_the_response() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    for length in [2 * MIB, 8 * MIB] {
        let answer = upload(&fixture, "/refuse", length).await.expect("the whole body is taken");
        assert!(answer.starts_with("HTTP/1.1 413"), "{length}: {answer}");
        assert!(answer.ends_with("too large"), "{length}: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_read_is_read_whole() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let body = "x".repeat(2 * MIB);
    let head = format!("POST /read HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    soon(stream.write_all(body.as_bytes())).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {}", StatusCode::OK.as_str())), "{answer}");
    assert!(answer.ends_with(&body.len().to_string()), "{answer}");
}

#[tokio::test]
async fn an_http_2_client_gets_the_response_and_keeps_its_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let stream = Hello::to("acme.example.com").offering(&["h2"]).shake(&fixture).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (path, expected) in [("refuse", StatusCode::PAYLOAD_TOO_LARGE), ("read", StatusCode::OK)].repeat(3) {
        let request = Request::post(format!("https://acme.example.com/{path}"));
        let response = sender.send_request(request.body(Full::new(Bytes::from(vec![b'x'; 2 * MIB]))).unwrap());
        let response = soon(response).await.unwrap();
        assert_eq!(response.status(), expected);
        soon(response.into_body().collect()).await.unwrap();
    }
}

#[tokio::test]
async fn a_head_beyond_every_limit_is_refused_readably() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: ").await.unwrap();
    stream.write_all(&vec![b'x'; MIB]).await.unwrap();
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let heads = ["/slow HTTP/1.1\r\nhost: x", "/ HTTP/1.1\r\nhost: x\r\nconnection: close"];
    let text = exchange(&mut stream, &heads.map(|head| format!("GET {head}\r\n\r\n")).concat()).await;
    let (late, other) = (text.find("late").unwrap(), text.find("acme.example.com").unwrap());
    assert!(late < other, "{text}");
}
