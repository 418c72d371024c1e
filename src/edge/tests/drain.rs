//! Tests of the drain: requests in flight are answered, idle connections end at once, and slow ones are cut.

use std::time::Duration;

use http::Version;
use http::header::CONNECTION;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::{BOTH, Caller, Hello, read_to_end, soon};
use super::fixture::{BIG, Fixture, SLOW};
use crate::config::ConnectionLimits;
use crate::config::{ListenConfig, ListenProtocol};
use crate::edge::Drained;
use crate::systemd::InheritedSockets;

const LONG: Duration = Duration::from_secs(10);
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_request_in_flight_is_finished_and_its_connection_closed() {
    for version in BOTH {
        let fixture = Fixture::start(ConnectionLimits::default()).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let answer = caller.send("/slow");
        sleep(SLOW / 3).await;
        let drained = tokio::spawn(fixture.serving.drain(sleep(LONG)));
        let (head, body) = answer.await.unwrap();
        assert_eq!(body, "late");
        if version == Version::HTTP_11 {
            assert_eq!(head.headers()[CONNECTION], "close");
        }
        soon(caller.closed()).await;
        assert_eq!(drained.await.unwrap(), Drained::Finished);
    }
}

#[tokio::test]
async fn connections_without_a_request_end_at_once() {
    let fixture = Fixture::start(ConnectionLimits { drain_grace: SHORT, ..ConnectionLimits::default() }).await;
    let mut callers = Vec::new();
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        caller.send("/").await.unwrap();
        callers.push(caller);
    }
    let mut silent = TcpStream::connect(fixture.address).await.unwrap();
    let mut unasked = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let mut unasked_http_2 = Hello::to("acme.example.com").offering(&["h2"]).shake(&fixture).await.unwrap();
    sleep(SHORT).await;
    assert_eq!(fixture.serving.drain(sleep(LONG)).await, Drained::Finished);
    assert_eq!(soon(silent.read(&mut [0])).await.unwrap_or(0), 0);
    assert_eq!(read_to_end(&mut unasked).await, "");
    assert_eq!(read_to_end(&mut unasked_http_2).await, "");
    for caller in callers {
        soon(caller.closed()).await;
    }
    assert!(TcpStream::connect(fixture.address).await.is_err());
}

#[tokio::test]
async fn requests_in_transit_when_the_drain_begins_are_answered() {
    let fixture = Fixture::start(ConnectionLimits { drain_grace: LONG, ..ConnectionLimits::default() }).await;
    let unasked = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let mut asked = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    asked.write_all(GET).await.unwrap();
    assert_ne!(soon(asked.read(&mut [0; 1024])).await.unwrap(), 0);
    let mut begun = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    begun.write_all(&GET[..10]).await.unwrap();
    let unshaken = TcpStream::connect(fixture.address).await.unwrap();
    sleep(SHORT).await;

    let (metrics, roots, began) = (fixture.metrics.clone(), fixture.roots.clone(), Instant::now());
    let drained = tokio::spawn(fixture.serving.drain(sleep(2 * LONG)));
    sleep(SHORT).await;
    let shaken = Hello::to("acme.example.com").shake_on(unshaken, roots).await.unwrap();
    for (mut stream, request) in [(unasked, GET), (asked, GET), (begun, &GET[10..]), (shaken, GET)] {
        stream.write_all(request).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close\r\n"), "{answer}");
    }
    assert_eq!(drained.await.unwrap(), Drained::Finished);
    assert!(began.elapsed() < LONG, "nothing was waited for in vain: {:?}", began.elapsed());
    assert_eq!(metrics.edge.handshakes.with_label_values(&["done"]).get(), 4);
}

#[tokio::test]
async fn a_head_sent_byte_by_byte_does_not_hold_up_a_drain() {
    let fixture = Fixture::start(ConnectionLimits { drain_grace: SHORT, ..ConnectionLimits::default() }).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(&GET[..10]).await.unwrap();
    sleep(2 * SHORT).await;
    let drained = tokio::spawn(fixture.serving.drain(sleep(LONG)));
    while !drained.is_finished() {
        let _ = stream.write_all(b"x").await;
        let _ = stream.flush().await;
        sleep(SHORT / 5).await;
    }
    assert_eq!(drained.await.unwrap(), Drained::Finished);
}

#[tokio::test]
async fn a_response_that_is_read_slowly_arrives_whole_in_a_drain() {
    for version in BOTH {
        let fixture = Fixture::start(ConnectionLimits { drain_grace: SHORT, ..ConnectionLimits::default() }).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let answer = caller.hold("/big").await;
        sleep(2 * SHORT).await;
        let drained = tokio::spawn(fixture.serving.drain(sleep(LONG)));
        sleep(4 * SHORT).await;
        let body = soon(answer.into_body().collect()).await.expect("it is not cut off").to_bytes();
        assert_eq!(body.len(), BIG, "{version:?}");
        drop(caller);
        assert_eq!(drained.await.unwrap(), Drained::Finished);
    }
}

#[tokio::test]
async fn an_unread_response_holds_up_a_drain_only_for_the_closing_limit() {
    for version in BOTH {
        let limits = ConnectionLimits { drain_grace: SHORT, closing: 4 * SHORT, ..ConnectionLimits::default() };
        let fixture = Fixture::start(limits).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let untaken = caller.hold("/big").await;
        sleep(2 * SHORT).await;
        let began = Instant::now();
        assert_eq!(fixture.serving.drain(sleep(LONG)).await, Drained::Finished, "{version:?}");
        let took = began.elapsed();
        assert!(took >= limits.closing && took < 3 * limits.closing, "{version:?} {took:?}");
        drop(untaken);
    }
}

/// A plain listener with room for one connection, on an inherited socket or one of its own.
async fn narrow(systemd_socket: Option<&std::net::TcpListener>) -> Fixture {
    let address = systemd_socket.map_or_else(|| "127.0.0.1:0".parse().unwrap(), |socket| socket.local_addr().unwrap());
    let mut inherited = InheritedSockets::of(systemd_socket.map(|socket| socket.try_clone().unwrap()));
    let limits = ConnectionLimits { connections: 1, ..ConnectionLimits::default() };
    let entry = ListenConfig { protocol: ListenProtocol::Http1, ..address.into() };
    Fixture::listening(entry, limits, &mut inherited).await
}

/// A request that holds the only permit, and one that waits in the queue behind it.
async fn one_served_and_one_queued(fixture: &Fixture) -> (TcpStream, TcpStream) {
    let mut streams = Vec::new();
    for path in ["/slow", "/"] {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        sleep(SLOW / 6).await;
        streams.push(stream);
    }
    assert_eq!(fixture.metrics.edge.connections_accepted.get(), 1);
    let queued = streams.pop().unwrap();
    (streams.pop().unwrap(), queued)
}

async fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    soon(stream.read_to_string(&mut text)).await.expect("an answer and no reset");
    text
}

#[tokio::test]
async fn connections_queued_on_an_own_socket_are_answered() {
    let fixture = narrow(None).await;
    let (served, queued) = one_served_and_one_queued(&fixture).await;
    assert_eq!(fixture.serving.drain(sleep(LONG)).await, Drained::Finished);
    assert!(answer(served).await.ends_with("late"));
    assert!(answer(queued).await.starts_with("HTTP/1.1 200"));
    assert!(TcpStream::connect(fixture.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn connections_queued_on_a_systemd_socket_are_answered_by_the_next_process() {
    let systemd_socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fixture = narrow(Some(&systemd_socket)).await;
    assert_eq!(fixture.address, systemd_socket.local_addr().unwrap());
    let (served, queued) = one_served_and_one_queued(&fixture).await;
    assert_eq!(fixture.serving.drain(sleep(LONG)).await, Drained::Finished);
    assert!(answer(served).await.ends_with("late"));
    assert_eq!(fixture.metrics.edge.connections_accepted.get(), 1);

    let next = narrow(Some(&systemd_socket)).await;
    assert!(answer(queued).await.starts_with("HTTP/1.1 200"));
    assert_eq!(next.metrics.edge.connections_accepted.get(), 1);
}

#[tokio::test]
async fn connections_open_at_the_deadline_are_cut() {
    for version in BOTH {
        let fixture = Fixture::start(ConnectionLimits::default()).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let answer = caller.send("/never");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(fixture.serving.drain(sleep(Duration::from_millis(100))).await, Drained::Cut(1), "{version:?}");
        assert!(answer.await.is_err());
        soon(caller.closed()).await;
        assert_eq!(fixture.metrics.edge.connections_open.with_label_values(&["h2"]).get(), 0);
    }
}

#[tokio::test]
async fn dropping_serving_cuts_every_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut caller = Caller::connect(&fixture, Version::HTTP_11).await;
    let answer = caller.send("/never");
    sleep(Duration::from_millis(50)).await;
    drop(fixture.serving);
    assert!(answer.await.is_err());
}
