//! A stop loses no request.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::busy::{PeriodTooShort, takes_less_than, with_period_from};
use crate::support::client::{operator_get, wait_for_count};
use crate::support::connection::{Connection, Protocol, handshake};
use crate::support::fixture::{Engine, Site};

/// How long a stop may take once nothing is in flight, if not always on a busy machine.
const AT_REST: Duration = Duration::from_secs(5);

/// How long anything may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A request is in flight once its head has been read.
const IN_FLIGHT: &str = "formgate_requests_in_flight";

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
    wait_for_count(operator, IN_FLIGHT, 1).await;

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
    takes_less_than(AT_REST, "a stop", async || {
        let mut acme = Acme::start();
        for protocol in [Protocol::Http1, Protocol::Http2] {
            assert_eq!(acme.caller().over(protocol).get("/api/v1/me").send().await.status, 200);
        }
        let _unasked = Connection::open(acme.node.address, &acme.host(), Protocol::Http2).await.expect("a connection");
        let _silent = TcpStream::connect(acme.node.address).await.expect("a connection");
        let since = Instant::now();
        assert_eq!(acme.node.stop(SOON).await, 0, "a normal stop");
        since.elapsed()
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_stops_like_a_termination() {
    let mut acme = Acme::start();
    acme.node.signal("INT");
    assert_eq!(acme.node.wait(SOON), 0);
}

#[tokio::test]
async fn requests_that_outlast_the_drain_are_cut() {
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("drain_seconds", 1);
    let mut acme = Acme::of(site);
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "POST /api/v1/submission HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nContent-Length: 2\r\n\r\n",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    wait_for_count(acme.node.operator_address(), IN_FLIGHT, 1).await;
    acme.node.terminate();
    assert_eq!(acme.node.wait(SOON), 0, "an operator's deadline is no failure");
    assert!(acme.node.log().contains("cut at the deadline"), "{}", acme.node.log());
}

/// How many connections that never ask anything there are.
const SILENT: usize = 500;

#[tokio::test]
async fn five_hundred_silent_connections_do_not_hold_up_a_stop() {
    // All of them from one address.
    let limits: toml::Table = format!("connections_per_address = {}", 2 * SILENT).parse().expect("TOML");
    let site = Site::new().gateway("limits", limits).tenant("acme", Engine::Sqlite);
    let mut acme = Acme::of(site.requests_per_minute(100_000));
    let (address, host) = (acme.node.address, acme.host());
    let (mut silent, mut shaken, began) = (Vec::new(), Vec::new(), Instant::now());
    for n in 0..SILENT {
        let protocol = if n % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
        if n % 5 == 0 {
            silent.push(TcpStream::connect(address).await.expect("a connection"));
            continue;
        }
        let mut stream = handshake(address, &host, protocol).await.expect("a handshake");
        let said = match (n % 5, protocol) {
            (1, _) => String::new(),
            (2, Protocol::Http1) => format!("GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nX-Half: "),
            (_, Protocol::Http1) => {
                format!("GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n\r\n", acme.token)
            }
            // The preface, and settings without an entry; what comes back is never read.
            (_, Protocol::Http2) => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
        };
        stream.write_all(said.as_bytes()).await.expect("it is taken");
        shaken.push(stream);
    }
    assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
    // A loaded machine needs longer to close 500 connections, as it did to open them. A stop that waits for them would
    // cut them at the deadline, which is logged.
    let limit = AT_REST.max(began.elapsed() / 2);
    let since = Instant::now();
    assert_eq!(acme.node.stop(limit).await, 0, "a normal stop");
    assert!(since.elapsed() < limit, "after {:?}", since.elapsed());
    let log = acme.node.log();
    assert!(log.contains(r#""message":"stopped""#) && !log.contains("cut"), "{log}");
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    // A drain would be waited for every time.
    takes_less_than(Duration::from_secs(1), "a stop at once", stopped_by_a_second_signal).await;
}

/// How long a node with a request in flight takes to end after its second signal.
async fn stopped_by_a_second_signal() -> Duration {
    let mut acme = Acme::start();
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "POST /api/v1/submission HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nContent-Length: 2\r\n\r\n",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    wait_for_count(acme.node.operator_address(), IN_FLIGHT, 1).await;
    acme.node.terminate();
    let stopping = acme.node.wait_for_log(SOON, |line| line.contains("\"stopping\"").then_some(()));
    assert!(stopping.is_some());
    acme.node.signal("INT");
    let since = Instant::now();
    assert_eq!(acme.node.wait(SOON), 0);
    let took = since.elapsed();
    assert!(acme.node.log().contains("stopping at once"), "{}", acme.node.log());
    took
}

#[tokio::test]
async fn with_a_delay_a_node_that_is_no_longer_ready_keeps_serving() {
    with_period_from(2, async |seconds| {
        let delay = Duration::from_secs(seconds.into());
        let site = Site::new().tenant("acme", Engine::Sqlite).gateway("shutdown_delay_seconds", i64::from(seconds));
        let mut acme = Acme::of(site.requests_per_minute(100_000));
        let operator = acme.node.operator_address();
        let since = Instant::now();
        acme.node.terminate();
        while operator_get(operator, "/readyz").await.status != 503 {
            assert!(since.elapsed() < SOON, "still ready");
        }
        let mut served = 0;
        loop {
            let answer = acme.caller().get("/api/v1/me").fresh().try_send().await;
            // The delay began after `since`: an answer that came before this is not affected by the drain.
            if since.elapsed() >= delay {
                break;
            }
            let answer = answer.expect("new connections are still accepted");
            assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, None));
            served += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if served == 0 {
            return Err(PeriodTooShort);
        }
        assert_eq!(acme.node.wait(SOON), 0);
        assert!(since.elapsed() >= delay, "after {:?}", since.elapsed());
        Ok(())
    })
    .await;
}
