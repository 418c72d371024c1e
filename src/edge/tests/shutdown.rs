//! Tests of the end of an HTTP/2 connection, frame by frame: what each client receives, and what happens to
//! requests that cross the end.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::client::soon;
use super::fixture::{Fixture, SLOW};
use super::frames::{ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, Peer, frame, get, target};
use crate::config::ConnectionLimits;
use crate::edge::Drained;

/// The settings that Python's h2 sends by default.
const H2: [u8; 18] = [0, 1, 0, 0, 16, 0, 0, 4, 0, 0, 255, 255, 0, 5, 0, 0, 64, 0];

/// The stream that a GOAWAY names when it refuses none.
const NONE: u32 = u32::MAX >> 1;

/// What a peer received until the gateway closed: the streams whose responses ended, and the streams that GOAWAYs
/// named.
#[derive(Debug, Default, PartialEq, Eq)]
struct Got {
    answered: Vec<u32>,
    goaways: Vec<u32>,
    /// Frames that came after the last GOAWAY.
    after: usize,
}

/// Reads to the end, and acknowledges PINGs.
async fn read_to_end(peer: &mut Peer) -> Got {
    let mut got = Got::default();
    while let Some(next) = peer.next().await {
        got.after += 1;
        match next.kind {
            DATA | HEADERS if next.flags & END_STREAM != 0 => got.answered.push(next.stream),
            GOAWAY => {
                got.goaways.push(u32::from_be_bytes(next.payload[..4].try_into().unwrap()));
                assert_eq!(next.payload[4..8], [0; 4], "no error");
                got.after = 0;
            }
            PING if next.flags & ACK == 0 => peer.send(&frame(PING, ACK, 0, &next.payload)).await.unwrap(),
            _ => {}
        }
    }
    got
}

fn limits(requests: u64) -> ConnectionLimits {
    ConnectionLimits { requests, drain_grace: Duration::from_millis(300), ..ConnectionLimits::default() }
}

#[tokio::test]
async fn a_client_that_stops_reading_at_a_goaway_gets_it_with_its_last_response() {
    let fixture = Fixture::start(limits(2)).await;
    let mut peer = Peer::connect_with(&fixture, &H2).await;
    peer.request(1, &get("/")).await.unwrap();
    assert!(peer.answer(1).await.is_some());
    peer.request(3, &get("/slow")).await.unwrap();
    let got = read_to_end(&mut peer).await;
    assert_eq!(got, Got { answered: vec![3], goaways: vec![3], after: 0 });
    drop(peer);
    soon(async {
        while fixture.ended("age") == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn such_a_client_with_concurrent_requests_gets_it_after_the_responses() {
    let fixture = Fixture::start(limits(2)).await;
    let mut peer = Peer::connect_with(&fixture, &H2).await;
    let requests: Vec<u8> =
        [1, 3, 5].iter().flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, *stream, &get("/slow"))).collect();
    peer.send(&requests).await.unwrap();
    let mut answered = 0;
    while answered < 3 {
        let next = peer.next().await.unwrap();
        answered += usize::from(matches!(next.kind, DATA | HEADERS) && next.flags & END_STREAM != 0);
    }
    let since = Instant::now();
    // This one is no longer read.
    peer.request(7, &get("/")).await.unwrap();
    assert_eq!(read_to_end(&mut peer).await, Got { answered: vec![], goaways: vec![5], after: 0 });
    // The gateway waits, because two more requests might follow.
    assert!(since.elapsed() >= ConnectionLimits::LATE_REQUEST_WAIT / 2, "after {:?}", since.elapsed());
}

#[tokio::test]
async fn a_late_request_of_such_a_client_is_reported_as_not_processed() {
    let fixture =
        Fixture::start(ConnectionLimits { idle: Duration::from_millis(200), ..ConnectionLimits::default() }).await;
    let mut peer = Peer::connect_with(&fixture, &H2).await;
    peer.request(1, &get("/")).await.unwrap();
    assert!(peer.answer(1).await.is_some());
    soon(async {
        while fixture.ended("idle") == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // The client has not noticed the end, and its next request must not meet a closed socket.
    for stream in [3, 5] {
        peer.request(stream, &get("/")).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read_to_end(&mut peer).await, Got { answered: vec![], goaways: vec![1], after: 0 });
}

#[tokio::test]
async fn an_upload_of_such_a_client_is_read_to_its_end_before_the_goaway() {
    let fixture = Fixture::start(limits(1)).await;
    let mut peer = Peer::connect_with(&fixture, &H2).await;
    let fields = [super::frames::field(":method", "POST"), target("/read")].concat();
    peer.send(&frame(HEADERS, END_HEADERS, 1, &fields)).await.unwrap();
    for _ in 0..4 {
        sleep(Duration::from_millis(20)).await;
        peer.send(&frame(DATA, 0, 1, &[b'x'; 1000])).await.unwrap();
    }
    peer.send(&frame(DATA, END_STREAM, 1, b"")).await.unwrap();
    assert_eq!(read_to_end(&mut peer).await, Got { answered: vec![1], goaways: vec![1], after: 0 });
}

#[tokio::test]
async fn any_other_client_is_warned_and_requests_that_cross_the_warning_are_answered() {
    let fixture = Fixture::start(limits(1)).await;
    let mut peer = Peer::connect(&fixture).await;
    peer.request(1, &get("/slow")).await.unwrap();
    sleep(2 * ConnectionLimits::PAUSE).await;
    // Long after the warning: a slow link, or a client that had queued the request.
    peer.request(3, &get("/slow")).await.unwrap();
    let got = read_to_end(&mut peer).await;
    assert_eq!(got, Got { answered: vec![1, 3], goaways: vec![NONE, 3], after: 0 });
}

#[tokio::test]
async fn a_client_that_always_has_a_request_open_is_closed_too() {
    let closing = Duration::from_millis(500);
    let fixture = Fixture::start(ConnectionLimits { closing, ..limits(1) }).await;
    for (settings, goodbyes) in [(&[][..], 2), (&H2, 1)] {
        let mut peer = Peer::connect_with(&fixture, settings).await;
        let (began, mut stream) = (Instant::now(), 1);
        peer.request(stream, &get("/slow")).await.unwrap();
        while began.elapsed() < closing * 2 {
            stream += 2;
            peer.request(stream, &get("/slow")).await.unwrap();
            sleep(SLOW / 3).await;
        }
        let got = read_to_end(&mut peer).await;
        let last = *got.goaways.last().unwrap();
        assert_eq!((got.goaways.len(), got.after), (goodbyes, 0), "{got:?}");
        let expected: Vec<u32> = (1..=last).step_by(2).collect();
        assert_eq!(got.answered, expected, "all up to the one that it names");
        assert!(last < stream, "those after it are not processed");
    }
}

#[tokio::test]
async fn a_drain_answers_one_more_request_of_each_client() {
    for (settings, goodbyes) in [(&[][..], vec![NONE, 5]), (&H2, vec![5])] {
        let fixture = Fixture::start(limits(1000)).await;
        let mut peer = Peer::connect_with(&fixture, settings).await;
        peer.request(1, &get("/")).await.unwrap();
        assert!(peer.answer(1).await.is_some());
        sleep(2 * ConnectionLimits::PAUSE).await;
        let drained = tokio::spawn(fixture.serving.drain(sleep(Duration::from_secs(20))));
        sleep(ConnectionLimits::PAUSE / 2).await;
        let both = [
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &get("/")),
            frame(HEADERS, END_HEADERS | END_STREAM, 5, &get("/")),
        ];
        peer.send(&both.concat()).await.unwrap();
        assert_eq!(read_to_end(&mut peer).await, Got { answered: vec![3, 5], goaways: goodbyes, after: 0 });
        drop(peer);
        assert_eq!(drained.await.unwrap(), Drained::Finished);
    }
}
