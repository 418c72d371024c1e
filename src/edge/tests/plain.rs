//! Tests of listeners without TLS, behind a balancer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::soon;
use super::fixture::{Fixture, SLOW};
use crate::config::ConnectionLimits;
use crate::config::{ListenConfig, ListenProtocol};
use crate::edge::Drained;
use crate::systemd::InheritedSockets;

const SHORT: Duration = Duration::from_millis(200);

async fn plain(protocol: ListenProtocol, limits: ConnectionLimits) -> Fixture {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    Fixture::listening(ListenConfig { protocol, ..anywhere.into() }, limits, &mut InheritedSockets::default()).await
}

/// Sends a text and returns what arrives until the edge closes the connection.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn http_1_is_spoken_from_the_first_byte_on() {
    let fixture = plain(ListenProtocol::Http1, ConnectionLimits::default()).await;
    let answer = exchange(fixture.address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1 Balancer"), "{answer}");
    assert_eq!(fixture.handshakes("done") + fixture.handshakes("failed"), 0, "there is no handshake to count");
}

#[tokio::test]
async fn http_2_without_tls_needs_prior_knowledge() {
    let fixture = plain(ListenProtocol::Http2, ConnectionLimits::default()).await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (mut sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(driver);
    let request = Request::get("http://acme.example.com/").body(Empty::<Bytes>::new()).unwrap();
    let answer = soon(sender.send_request(request)).await.unwrap();
    assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "127.0.0.1 Balancer");
    assert_eq!(fixture.open("h2"), 1);
    drop(sender);
    let _ = soon(driver).await;

    let fixture = plain(ListenProtocol::Http1, ConnectionLimits::default()).await;
    let answer = exchange(fixture.address, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_silent_peer_is_closed_without_tls_too() {
    let short = ConnectionLimits { handshake: SHORT, head: SHORT, ..ConnectionLimits::default() };
    for speaks in [ListenProtocol::Http1, ListenProtocol::Http2, ListenProtocol::Redirect { https_port: 443 }] {
        let fixture = plain(speaks, short).await;
        let began = Instant::now();
        assert_eq!(exchange(fixture.address, "").await, "", "{speaks:?}");
        assert!(began.elapsed() >= SHORT, "{speaks:?} after {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_drain_finishes_requests_in_flight() {
    let fixture = plain(ListenProtocol::Http1, ConnectionLimits::default()).await;
    let answer = tokio::spawn(exchange(fixture.address, "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"));
    sleep(SLOW / 3).await;
    assert_eq!(fixture.serving.drain(sleep(20 * SLOW)).await, Drained::Finished);
    let answer = answer.await.unwrap();
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("late"), "{answer}");
}

#[tokio::test]
async fn the_limit_per_address_applies_to_clients_and_not_to_balancers() {
    let limits = ConnectionLimits { connections_per_address: 1, ..ConnectionLimits::default() };
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let entry = ListenConfig {
        protocol: ListenProtocol::Http1,
        proxies: vec!["127.0.0.1/32".parse().unwrap()],
        ..ListenConfig::from(anywhere)
    };
    let named = Fixture::listening(entry, limits, &mut InheritedSockets::default()).await;
    let unnamed = plain(ListenProtocol::Http1, limits).await;
    let request = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for (fixture, header, served) in [
        (&named, "PROXY TCP4 192.0.2.7 127.0.0.1 1000 443\r\n", [true, false]),
        (&named, "PROXY TCP6 2001:db8::7 ::1 1000 443\r\n", [true, false]),
        (&named, "PROXY UNKNOWN\r\n", [true, true]),
        (&unnamed, "", [true, true]),
    ] {
        let mut held = Vec::new();
        for expected in served {
            let mut stream = TcpStream::connect(fixture.address).await.unwrap();
            let _ = stream.write_all(format!("{header}{request}").as_bytes()).await;
            let answered = matches!(soon(stream.read(&mut [0])).await, Ok(1));
            assert_eq!(answered, expected, "{header:?}");
            held.push(stream);
        }
    }
    assert_eq!(named.metrics.edge.connections_refused.with_label_values(&["address"]).get(), 2);
}
