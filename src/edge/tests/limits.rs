//! Peers that say nothing, say it slowly, or stop.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::{BOTH, Caller, Hello, read_to_end, soon};
use super::fixture::{BIG, Fixture};
use crate::edge::Limits;

/// The one limit that a test shortens, and long enough that an idle machine's jitter does not matter.
const SHORT: Duration = Duration::from_millis(200);

fn short_of(shorten: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    shorten(&mut limits);
    limits
}

#[tokio::test]
async fn a_silent_client_is_closed_when_the_handshake_takes_too_long() {
    let fixture = Fixture::start(short_of(|limits| limits.handshake = SHORT)).await;
    let began = Instant::now();
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(soon(stream.read(&mut [0])).await.unwrap(), 0);
    assert!(began.elapsed() >= SHORT);
    assert_eq!(fixture.handshakes("timeout"), 1);
}

#[tokio::test]
async fn an_http_2_client_that_never_sends_its_preface_is_closed_within_the_same_limit() {
    let fixture = Fixture::start(short_of(|limits| limits.handshake = SHORT)).await;
    let mut stream = Hello::to("acme.example.com").offering(&["h2"]).shake(&fixture).await.unwrap();
    read_to_end(&mut stream).await;
    assert_eq!(fixture.handshakes("timeout"), 1);
}

#[tokio::test]
async fn a_head_that_is_dripped_in_does_not_keep_its_connection() {
    let fixture = Fixture::start(short_of(|limits| limits.head = SHORT)).await;
    for spoken in [false, true] {
        let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
        if spoken {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            sleep(2 * SHORT).await;
        }
        let began = Instant::now();
        while stream.write_all(b"G").await.is_ok() && stream.flush().await.is_ok() && began.elapsed() < 10 * SHORT {
            sleep(SHORT / 10).await;
        }
        let elapsed = began.elapsed();
        assert!(elapsed >= SHORT && elapsed < 5 * SHORT, "after {elapsed:?}, spoken: {spoken}");
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_the_idle_time_and_not_before() {
    let fixture = Fixture::start(short_of(|limits| limits.idle = 2 * SHORT)).await;
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        let mut began = Instant::now();
        for path in ["/", "/slow", "/"] {
            sleep(SHORT).await;
            began = Instant::now();
            caller.send(path).await.unwrap();
        }
        soon(caller.closed()).await;
        let elapsed = began.elapsed();
        assert!(elapsed >= 2 * SHORT && elapsed < 6 * SHORT, "{version:?} after {elapsed:?}");
    }
}

#[tokio::test]
async fn a_request_that_takes_longer_than_the_idle_time_is_answered() {
    let fixture = Fixture::start(short_of(|limits| limits.idle = SHORT / 4)).await;
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        assert_eq!(caller.send("/slow").await.unwrap().1, "late", "{version:?}");
    }
}

#[tokio::test]
async fn at_the_cap_of_connections_the_next_one_waits() {
    let fixture = Fixture::start(short_of(|limits| limits.connections = 1)).await;
    let first = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let mut second = TcpStream::connect(fixture.address).await.unwrap();
    second.write_all(b"no ClientHello\r\n").await.unwrap();
    sleep(SHORT).await;
    assert_eq!(fixture.metrics.edge.connections_accepted.get(), 1);
    drop(first);
    let _ = soon(second.read_to_end(&mut Vec::new())).await;
    assert_eq!(fixture.metrics.edge.connections_accepted.get(), 2);
}

#[tokio::test]
async fn a_response_that_nobody_takes_does_not_keep_its_connection() {
    let fixture = Fixture::start(short_of(|limits| (limits.idle, limits.farewell) = (SHORT, SHORT))).await;
    for (version, label) in BOTH.into_iter().zip(["http/1.1", "h2"]) {
        let mut caller = Caller::connect(&fixture, version).await;
        let untaken = caller.hold("/big").await;
        assert_eq!(fixture.open(label), 1);
        let began = Instant::now();
        soon(async {
            while fixture.open(label) > 0 {
                sleep(SHORT / 10).await;
            }
        })
        .await;
        assert!(began.elapsed() < 8 * SHORT, "{version:?} after {:?}", began.elapsed());
        drop(untaken);
    }
}

#[tokio::test]
async fn a_response_that_is_taken_slowly_arrives_whole() {
    let fixture = Fixture::start(short_of(|limits| (limits.idle, limits.farewell) = (SHORT, SHORT))).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (mut taken, mut piece) = (0, vec![0; BIG / 16]);
    let began = Instant::now();
    while taken < BIG {
        soon(stream.read_exact(&mut piece)).await.unwrap();
        taken += piece.len();
        sleep(SHORT / 4).await;
    }
    assert!(began.elapsed() > 2 * SHORT, "slower than what idleness and goodbye would allow a silent one");
}
