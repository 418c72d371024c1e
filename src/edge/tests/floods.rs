//! Tests of peers that send much and request little, over HTTP/2 and HTTP/1.1: their connections end, and others
//! continue.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{BOTH, Caller, Hello, read_to_end, soon};
use super::fixture::Fixture;
use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, Peer, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, field, frame, get, target,
};
use crate::config::ConnectionLimits;

const MIB: usize = 1024 * 1024;

/// More than the exempt bytes, and little enough for a test.
const MUCH: usize = 16 * MIB;

/// Waits until a reason to end a connection has been counted this often.
async fn counted(fixture: &Fixture, reason: &str, times: u64) {
    soon(async {
        while fixture.ended(reason) < times {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(fixture.ended(reason), times);
}

/// `:status: 431` in HPACK: the name by its index, the digits in Huffman code.
const STATUS_431: [u8; 5] = [0x48, 0x83, 0x69, 0x90, 0xff];

/// The same by its index in the dynamic table, from the second time on.
const STATUS_AGAIN: [u8; 1] = [0xbe];

async fn others_are_served(fixture: &Fixture) {
    for version in BOTH {
        assert_eq!(Caller::connect(fixture, version).await.send("/").await.unwrap().1, "acme.example.com");
    }
}

#[tokio::test]
async fn frames_that_belong_to_no_request_end_their_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let floods = [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("answers to no PING", frame(PING, ACK, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("WINDOW_UPDATE", [frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])].concat()),
        ("frames of no known kind", frame(0xbe, 0, 0, &[0; 100])),
    ];
    for (turn, (name, flood)) in floods.iter().enumerate() {
        let peer = Peer::connect(&fixture).await;
        let sent = peer.flood(&flood.repeat(1000), MUCH).await;
        assert!(sent > MIB / 2 && sent < MUCH, "{name}: {sent}");
        counted(&fixture, "flood", turn as u64 + 1).await;
    }
    others_are_served(&fixture).await;
}

#[tokio::test]
async fn data_without_data_ends_its_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    // Padding is not data either.
    for empty in [frame(DATA, 0, 1, &[]), frame(DATA, 8, 1, &[&[250], [0; 250].as_slice()].concat())] {
        let mut peer = Peer::connect(&fixture).await;
        let post = [field(":method", "POST"), target("/read")].concat();
        peer.send(&frame(HEADERS, END_HEADERS, 1, &post)).await.unwrap();
        assert!(peer.flood(&empty.repeat(100), MUCH).await < MUCH);
    }
    others_are_served(&fixture).await;
}

#[tokio::test]
async fn bytes_of_requests_are_not_a_flood() {
    let limits = ConnectionLimits { overhead_bytes: 64 * 1024, ..ConnectionLimits::default() };
    let fixture = Fixture::start(limits).await;
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        for _ in 0..3 {
            // Each piece of the response causes window updates.
            caller.send("/big").await.unwrap();
        }
        for _ in 0..2000 {
            caller.send("/").await.unwrap();
        }
    }
    assert_eq!(fixture.ended("flood"), 0);
}

#[tokio::test]
async fn requests_that_are_reset_at_once_end_their_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut peer = Peer::connect(&fixture).await;
    let reset = |stream| {
        [frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/never")), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])]
            .concat()
    };
    for turn in 0..30 {
        // After the end, the gateway still reads and discards, so that its last frames arrive.
        let _ =
            peer.send(&(100 * turn..100 * (turn + 1)).flat_map(|turn| reset(2 * turn + 1)).collect::<Vec<_>>()).await;
    }
    assert!(peer.until(|_| false).await.is_none(), "the connection is closed");
    others_are_served(&fixture).await;
}

/// Opens requests one after the other and resets each, the early ones before they are answered. Returns whether
/// all could be sent. Slower than what hyper takes for an attack.
async fn reset_slowly(fixture: &Fixture, requests: u32, early: impl Fn(u32) -> bool) -> bool {
    let mut peer = Peer::connect(fixture).await;
    for turn in 0..requests {
        let stream = 2 * turn + 1;
        let is_early = early(turn);
        if peer.request(stream, &get(if is_early { "/never" } else { "/" })).await.is_err() {
            return false;
        }
        let answered = if is_early {
            // Its acknowledgement shows that everything before it was read.
            let ping = [u8::try_from(turn % 200).unwrap(); 8];
            peer.send(&frame(PING, 0, 0, &ping)).await.is_ok()
                && peer.until(|frame| frame.kind == PING && frame.flags == ACK && frame.payload == ping).await.is_some()
        } else {
            peer.answer(stream).await.is_some()
        };
        if !answered || peer.send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])).await.is_err() {
            return false;
        }
    }
    peer.request(2 * requests + 1, &get("/")).await.is_ok() && peer.answer(2 * requests + 1).await.is_some()
}

#[tokio::test]
async fn too_many_resets_of_unanswered_requests_end_a_connection() {
    let fixture = Fixture::start(ConnectionLimits { resets: 60, ..ConnectionLimits::default() }).await;
    assert!(reset_slowly(&fixture, 60, |_| true).await, "as many as are allowed");
    assert!(reset_slowly(&fixture, 130, |turn| turn % 2 == 1).await, "half of them were answered");
    assert_eq!(fixture.ended("resets"), 0);
    assert!(!reset_slowly(&fixture, 61, |_| true).await);
    counted(&fixture, "resets", 1).await;
    assert!(!reset_slowly(&fixture, 130, |turn| turn % 3 != 0).await);
    others_are_served(&fixture).await;
}

#[tokio::test]
async fn an_endless_header_block_ends_its_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut peer = Peer::connect(&fixture).await;
    peer.send(&frame(HEADERS, 0, 1, &get("/"))).await.unwrap();
    let more = frame(CONTINUATION, 0, 1, &field("x", &"y".repeat(1000)));
    assert!(peer.flood(&more, MUCH).await < MIB);
    let mut peer = Peer::connect(&fixture).await;
    peer.send(&frame(HEADERS, 0, 1, &get("/"))).await.unwrap();
    assert!(peer.flood(&frame(CONTINUATION, 0, 1, &[]).repeat(100), MUCH).await < 2 * MIB, "empty ones too");
    others_are_served(&fixture).await;
}

#[tokio::test]
async fn a_header_bomb_is_refused_and_holds_no_memory() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut peer = Peer::connect(&fixture).await;
    // One field of 4,000 bytes is put into the table, then referenced with one byte each.
    let bomb = |times| [&*get("/"), &[0x40], &field("x-bomb", &"y".repeat(3900))[1..], &vec![0xbe; times]].concat();
    for turn in 0..20_u32 {
        peer.request(2 * turn + 1, &bomb(30)).await.unwrap();
        let head = peer.answer(2 * turn + 1).await.expect("the connection goes on");
        let expected = if turn == 0 { STATUS_431.as_slice() } else { &STATUS_AGAIN };
        assert!(head.starts_with(expected), "{head:?}");
    }
    peer.request(41, &bomb(8000)).await.unwrap();
    let goodbye = peer.until(|frame| frame.kind == GOAWAY).await.expect("the peer is told");
    assert_eq!(goodbye.payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    assert!(peer.until(|_| false).await.is_none(), "the connection is closed");
    others_are_served(&fixture).await;
}

#[tokio::test]
async fn chunk_overhead_is_limited_in_proportion_to_the_data() {
    let fixture = Fixture::start(ConnectionLimits { overhead_bytes: 64 * 1024, ..ConnectionLimits::default() }).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let mut sent = 0;
    // One TLS record per byte.
    while sent < MIB && stream.write_all(b"1").await.is_ok() && stream.flush().await.is_ok() {
        for byte in [b"\r", b"\n", b"x", b"\r", b"\n"] {
            let _ = stream.write_all(byte).await;
            let _ = stream.flush().await;
        }
        sent += 6;
    }
    assert!(sent < MIB);
    counted(&fixture, "flood", 1).await;
}

#[tokio::test]
async fn blank_lines_between_requests_count_as_overhead() {
    let fixture = Fixture::start(ConnectionLimits { overhead_bytes: 256 * 1024, ..ConnectionLimits::default() }).await;
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(b"\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1000];
    assert!(soon(stream.read(&mut answer)).await.unwrap() > 0, "a few are allowed");
    let blank = b"\r\n".repeat(5000);
    while stream.write_all(&blank).await.is_ok() {}
    counted(&fixture, "flood", 1).await;
}

#[tokio::test]
async fn trailers_are_ignored_and_a_flood_of_them_ends_its_connection() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let head =
        b"POST /read HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n";
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(head).await.unwrap();
    stream.write_all(b"host: other\r\nx-sum: 1\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut stream).await.ends_with("\r\n\r\n2"));
    let mut stream = Hello::to("acme.example.com").shake(&fixture).await.unwrap();
    stream.write_all(head).await.unwrap();
    let trailers = b"x-trailer: x\r\n".repeat(1000);
    let _ = stream.write_all(&trailers).await;
    let _ = stream.write_all(&trailers).await;
    assert!(read_to_end(&mut stream).await.contains("error"), "the handler learns that the body is none");

    let mut peer = Peer::connect(&fixture).await;
    let post = [field(":method", "POST"), target("/read")].concat();
    peer.send(&frame(HEADERS, END_HEADERS, 1, &post)).await.unwrap();
    peer.send(&frame(DATA, 0, 1, b"{}")).await.unwrap();
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &field("x-sum", "1"))).await.unwrap();
    let answer = peer.until(|frame| frame.stream == 1 && frame.kind == DATA).await.unwrap();
    assert_eq!(answer.payload, b"2");
}

#[tokio::test]
async fn streams_over_the_limit_are_refused_and_harm_no_other() {
    assert_eq!(ConnectionLimits::default().streams, 100);
    let fixture = Fixture::start(ConnectionLimits { streams: 3, ..ConnectionLimits::default() }).await;
    let mut peer = Peer::connect(&fixture).await;
    let settings = peer.until(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0).await.expect("settings");
    // SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, section 6.5.2).
    assert!(settings.payload.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 3]), "{settings:?}");
    for stream in [1, 3, 5, 7] {
        peer.request(stream, &get("/never")).await.unwrap();
    }
    let reset = peer.until(|frame| frame.kind == RST_STREAM).await.expect("a reset");
    // REFUSED_STREAM: the request can be retried (RFC 9113, section 8.7).
    assert_eq!((reset.stream, reset.payload), (7, vec![0, 0, 0, 7]));
    others_are_served(&fixture).await;
}
