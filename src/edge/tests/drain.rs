//! The stop: what is in flight is answered, what is idle ends at once, what takes too long is cut.

use std::time::Duration;

use http::Version;
use http::header::CONNECTION;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::{BOTH, Caller, Hello, read_to_end, soon};
use super::fixture::{Fixture, SLOW};
use crate::edge::{Drained, Limits};

const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_request_in_flight_is_finished_and_its_connection_closed() {
    for version in BOTH {
        let fixture = Fixture::start(Limits::default()).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let answer = caller.send("/slow");
        sleep(SLOW / 3).await;
        let began = Instant::now();
        let drained = tokio::spawn(fixture.serving.drain(LONG));
        let (head, body) = answer.await.unwrap();
        assert_eq!(body, "late");
        if version == Version::HTTP_11 {
            assert_eq!(head.headers()[CONNECTION], "close");
        }
        soon(caller.closed()).await;
        assert_eq!(drained.await.unwrap(), Drained::Finished);
        assert!(began.elapsed() < 3 * SLOW, "{version:?} {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn connections_without_a_request_end_at_once() {
    let fixture = Fixture::start(Limits::default()).await;
    let mut callers = Vec::new();
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        caller.send("/").await.unwrap();
        callers.push(caller);
    }
    let mut silent = TcpStream::connect(fixture.address).await.unwrap();
    let mut unasked = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let mut unasked_http_2 = Hello::to("acme.example.com").offering(&["h2"]).shake(&fixture).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    assert_eq!(fixture.serving.drain(LONG).await, Drained::Finished);
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!(soon(silent.read(&mut [0])).await.unwrap_or(0), 0);
    assert_eq!(read_to_end(&mut unasked).await, "");
    assert_eq!(read_to_end(&mut unasked_http_2).await, "");
    for caller in callers {
        soon(caller.closed()).await;
    }
    assert!(TcpStream::connect(fixture.address).await.is_err());
}

#[tokio::test]
async fn what_is_left_at_the_deadline_is_cut() {
    for version in BOTH {
        let fixture = Fixture::start(Limits::default()).await;
        let mut caller = Caller::connect(&fixture, version).await;
        let answer = caller.send("/never");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(fixture.serving.drain(Duration::from_millis(100)).await, Drained::Cut(1), "{version:?}");
        assert!(answer.await.is_err());
        soon(caller.closed()).await;
        assert_eq!(fixture.metrics.edge.connections_open.with_label_values(&["h2"]).get(), 0);
    }
}

#[tokio::test]
async fn dropping_what_serves_cuts_everything() {
    let fixture = Fixture::start(Limits::default()).await;
    let mut caller = Caller::connect(&fixture, Version::HTTP_11).await;
    let answer = caller.send("/never");
    sleep(Duration::from_millis(50)).await;
    drop(fixture.serving);
    assert!(answer.await.is_err());
}
