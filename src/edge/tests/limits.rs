//! Tests of peers that send nothing, send slowly, or stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use super::client::{BOTH, Caller, Hello, PATIENCE, read_to_end, soon};
use super::fixture::{BIG, Fixture};
use super::frames::{ACK, DATA, END_STREAM, GOAWAY, INITIAL_WINDOW, PING, Peer, WINDOW_UPDATE, frame, get};
use crate::config::ConnectionLimits;

/// For the one limit that a test shortens. Longer than the jitter of an idle machine.
const SHORT: Duration = Duration::from_millis(200);

fn short_of(shorten: impl FnOnce(&mut ConnectionLimits)) -> ConnectionLimits {
    let mut limits = ConnectionLimits::default();
    shorten(&mut limits);
    limits
}

/// The first result of up to ten attempts. On a busy machine a client may sleep through a short limit, but not always.
async fn one_of_ten<T>(attempt: impl AsyncFn() -> Option<T>) -> Option<T> {
    for _ in 0..10 {
        if let Some(result) = attempt().await {
            return Some(result);
        }
    }
    None
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
async fn a_head_sent_byte_by_byte_does_not_keep_its_connection_open() {
    let fixture = Fixture::start(short_of(|limits| limits.head = SHORT)).await;
    for spoken in [false, true] {
        let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
        if spoken {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            sleep(2 * SHORT).await;
        }
        let began = Instant::now();
        soon(async {
            while stream.write_all(b"G").await.is_ok() && stream.flush().await.is_ok() {
                sleep(SHORT / 10).await;
            }
        })
        .await;
        assert!(began.elapsed() >= SHORT, "after {:?}, spoken: {spoken}", began.elapsed());
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_the_idle_time_and_not_before() {
    let fixture = Fixture::start(short_of(|limits| limits.idle = 5 * SHORT)).await;
    for version in BOTH {
        let keeps_calling = async || {
            let mut caller = Caller::connect(&fixture, version).await;
            let mut began = Instant::now();
            for path in ["/", "/slow", "/"] {
                sleep(SHORT).await;
                began = Instant::now();
                caller.send(path).await.ok()?;
            }
            soon(caller.closed()).await;
            Some(began.elapsed())
        };
        let elapsed = one_of_ten(keeps_calling).await.expect("a connection in use stays open");
        assert!(elapsed >= 5 * SHORT, "{version:?} after {elapsed:?}");
    }
}

#[tokio::test]
async fn a_request_that_takes_longer_than_the_idle_time_is_answered() {
    let fixture = Fixture::start(short_of(|limits| limits.idle = SHORT / 4)).await;
    for version in BOTH {
        let calls = async || Some(Caller::connect(&fixture, version).await.send("/slow").await.ok()?.1);
        assert_eq!(one_of_ten(calls).await.as_deref(), Some("late"), "{version:?}");
    }
}

#[tokio::test]
async fn at_the_connection_limit_the_next_connection_waits() {
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
async fn an_unread_response_does_not_keep_its_connection_open() {
    let fixture = Fixture::start(short_of(|limits| limits.write = SHORT)).await;
    for (version, label) in BOTH.into_iter().zip(["http/1.1", "h2"]) {
        let mut caller = Caller::connect(&fixture, version).await;
        let untaken = caller.hold("/big").await;
        assert_eq!(fixture.open(label), 1);
        soon(async {
            while fixture.open(label) > 0 {
                sleep(SHORT / 10).await;
            }
        })
        .await;
        drop(untaken);
    }
}

#[tokio::test]
async fn a_response_that_is_read_slowly_arrives_whole() {
    let fixture = Fixture::start(short_of(|limits| (limits.idle, limits.write) = (SHORT, SHORT))).await;
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

#[tokio::test]
async fn an_http_2_response_without_a_window_does_not_keep_its_connection_open_although_others_are_read() {
    let fixture = Fixture::start(short_of(|limits| limits.write = 2 * SHORT)).await;
    let no_window = [0, INITIAL_WINDOW, 0, 0, 0, 0];
    for path in ["/", "/big"] {
        let mut peer = Peer::connect_with(&fixture, &no_window).await;
        peer.request(1, &get(path)).await.unwrap();
        let began = Instant::now();
        let mut turn = 1;
        // Empty responses are complete without a window, and PINGs are acknowledged.
        while peer.request(2 * turn + 1, &get("/empty")).await.is_ok()
            && peer.send(&frame(PING, 0, 0, &[0; 8])).await.is_ok()
            && peer.answer(2 * turn + 1).await.is_some()
        {
            turn += 1;
            sleep(SHORT / 10).await;
            assert!(began.elapsed() < PATIENCE, "{path}");
        }
        assert!(turn > 5 && began.elapsed() >= 2 * SHORT, "{path} after {:?}", began.elapsed());
    }
    assert_eq!(fixture.ended("stalled"), 2);
}

#[tokio::test]
async fn a_window_opened_byte_by_byte_is_progress() {
    let fixture = Fixture::start(short_of(|limits| limits.write = 2 * SHORT)).await;
    let mut peer = Peer::connect_with(&fixture, &[0, INITIAL_WINDOW, 0, 0, 0, 0]).await;
    peer.request(1, &get("/")).await.unwrap();
    for _ in 0.."acme.example.com".len() {
        sleep(SHORT / 2).await;
        peer.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await.unwrap();
    }
    assert!(peer.answer(1).await.is_some(), "the whole answer");
}

#[tokio::test]
async fn pings_do_not_keep_an_idle_connection_open() {
    let fixture = Fixture::start(short_of(|limits| (limits.idle, limits.closing) = (2 * SHORT, SHORT))).await;
    let mut peer = Peer::connect(&fixture).await;
    peer.request(1, &get("/")).await.unwrap();
    peer.answer(1).await.unwrap();
    let began = Instant::now();
    while peer.send(&frame(PING, 0, 0, &[0; 8])).await.is_ok() {
        let Some(next) = peer.next().await else { break };
        assert!(began.elapsed() < PATIENCE, "{next:?}");
        sleep(SHORT / 20).await;
    }
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    assert_eq!(fixture.ended("idle"), 1);
}

#[tokio::test]
async fn the_last_request_of_a_connection_is_answered_and_its_end_announced() {
    for worn in [short_of(|limits| limits.requests = 3), short_of(|limits| limits.age = SHORT)] {
        let fixture = Fixture::start(worn).await;
        let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
        let by_age = worn.age == SHORT;
        if by_age {
            sleep(SHORT).await;
        }
        stream.write_all("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n".repeat(5).as_bytes()).await.unwrap();
        let text = read_to_end(&mut stream).await;
        let (answers, told) = (text.matches("late").count(), text.matches("connection: close").count());
        assert_eq!((answers, told), (if by_age { 1 } else { 3 }, 1), "{text}");

        let mut peer = Peer::connect(&fixture).await;
        if by_age {
            sleep(SHORT).await;
        }
        for turn in 0..3 {
            // A request that crosses the GOAWAY is served, too.
            peer.request(2 * turn + 1, &get("/slow")).await.unwrap();
        }
        let (mut answers, mut goodbyes) = (0, 0);
        while let Some(next) = peer.next().await {
            match next.kind {
                DATA if next.flags & END_STREAM != 0 => answers += 1,
                GOAWAY => goodbyes += 1,
                PING if next.flags & ACK == 0 => peer.send(&frame(PING, ACK, 0, &next.payload)).await.unwrap(),
                _ => {}
            }
        }
        assert_eq!(answers, 3);
        assert!(goodbyes > 0);
        // The HTTP/1.1 connection and the HTTP/2 connection.
        assert_eq!(fixture.ended("age"), 2);
    }
}

#[tokio::test]
async fn connections_per_address_are_limited_for_each_address_separately() {
    let fixture = Fixture::start(short_of(|limits| limits.connections_per_address = 2)).await;
    let first = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    let _second = TcpStream::connect(fixture.address).await.unwrap();
    let refused = |fixture: &Fixture| fixture.metrics.edge.connections_refused.with_label_values(&["address"]).get();
    let mut third = TcpStream::connect(fixture.address).await.unwrap();
    assert!(!matches!(soon(third.read(&mut [0])).await, Ok(1..)));
    assert_eq!(refused(&fixture), 1);

    let elsewhere = TcpSocket::new_v4().unwrap();
    elsewhere.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut elsewhere = elsewhere.connect(fixture.address).await.unwrap();
    elsewhere.write_all(b"no ClientHello\r\n").await.unwrap();
    assert!(matches!(soon(elsewhere.read(&mut [0])).await, Ok(1)), "an alert");

    drop(first);
    soon(async {
        while Hello::to("acme.example.com").shake(&fixture).await.is_err() {
            sleep(SHORT / 20).await;
        }
    })
    .await;
}

/// The kernel accepts such a response at once, and the connection looks idle to the gateway.
#[tokio::test]
async fn clients_that_read_nothing_of_responses_in_the_kernels_buffers_are_cut() {
    const READERS: usize = 150;
    let fixture = Fixture::start(short_of(|limits| limits.write = 5 * SHORT)).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let socket = socket.connect(fixture.address).await.unwrap();
        let roots = Arc::clone(&fixture.roots);
        let mut stream = Hello::to("acme.example.com").shake_on(socket, roots).await.unwrap();
        stream.write_all(b"GET /buffered HTTP/1.1\r\nhost: acme.example.com\r\n\r\n").await.unwrap();
        readers.push(stream);
    }
    let began = Instant::now();
    while fixture.ended("stalled") < READERS as u64 {
        let counts = ["stalled", "idle", "flood", "age"].map(|reason| fixture.ended(reason));
        let open = fixture.open("http/1.1");
        assert!(began.elapsed() < 20 * SHORT + Duration::from_secs(20), "{counts:?} ended, {open} open");
        sleep(SHORT / 10).await;
    }
    assert_eq!((fixture.open("http/1.1"), fixture.ended("idle")), (0, 0));
}
