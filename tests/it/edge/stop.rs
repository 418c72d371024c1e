//! A stop loses no request.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::operator_get;
use crate::support::connection::{Connection, Protocol, handshake};
use crate::support::fixture::{Engine, Site};

/// How long a stop may take once nothing is in flight.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_node_ends() {
    let mut acme = Acme::start();
    let operator = acme.node.operator_address();
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "POST /api/v1/submission HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nContent-Length: 2\r\n\r\n{{",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    stream.flush().await.expect("the head is taken");
    assert_eq!(operator_get(operator, "/readyz").await.status, 200);
    tokio::time::sleep(Duration::from_millis(100)).await; // until the handler waits for the body

    acme.node.terminate();
    let since = Instant::now();
    let readiness = loop {
        let readiness = operator_get(operator, "/readyz").await;
        if readiness.status == 503 {
            break readiness;
        }
        assert!(since.elapsed() < SOON, "still ready");
    };
    assert_eq!(readiness.json()["ready"], false);
    assert_eq!(operator_get(operator, "/healthz").await.status, 200, "it is alive as long as it drains");
    while TcpStream::connect(acme.node.address).await.is_ok() {
        assert!(since.elapsed() < SOON, "still accepting");
    }

    stream.write_all(b"}").await.expect("the body is taken");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    drop(stream); // the node waits a while for those who may still be reading
    let answer = Answer::read(&bytes).expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, Some("close")));
    assert_eq!(acme.node.wait(SOON), 0);
    assert!(acme.node.log().contains(r#""message":"stopped""#));
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_stop() {
    let mut acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(acme.caller().over(protocol).get("/api/v1/me").send().await.status, 200);
    }
    let _unasked = Connection::open(acme.node.address, &acme.host(), Protocol::Http2).await.expect("a connection");
    let _silent = TcpStream::connect(acme.node.address).await.expect("a connection");
    let since = Instant::now();
    acme.stop().await;
    assert!(since.elapsed() < SOON, "after {:?}", since.elapsed());
}

#[tokio::test]
async fn an_interrupt_stops_like_a_termination() {
    let mut acme = Acme::start();
    acme.node.signal("INT");
    assert_eq!(acme.node.wait(SOON), 0);
}

#[tokio::test]
async fn what_takes_longer_than_the_drain_is_cut() {
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("drain_seconds", 1);
    let mut acme = Acme::of(site);
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "POST /api/v1/submission HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nContent-Length: 2\r\n\r\n",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    tokio::time::sleep(Duration::from_millis(100)).await;
    acme.node.terminate();
    assert_eq!(acme.node.wait(SOON), 0, "an operator's deadline is no failure");
    assert!(acme.node.log().contains("cut at the deadline"), "{}", acme.node.log());
}
