//! Whatever a receiver does, a request ends within its time limit and in bounded memory, with a typed outcome.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scene::{PATIENT, Scene};
use crate::support::receiver::{Act, Receiver};

/// The time limit of receivers that never end.
const LIMIT: Duration = Duration::from_secs(5);

/// How much of a flood a client may take: what it reads, and what the buffers of both kernels hold.
const TAKEN: usize = 32 * 1024 * 1024;

fn timeout(phase: &str) -> (&'static str, String) {
    ("timeout", format!("the time limit ended {phase}"))
}

fn protocol(fault: &str) -> (&'static str, String) {
    ("protocol", format!("no valid answer: {fault}"))
}

#[tokio::test]
async fn an_answer_that_never_ends_is_given_up() {
    let scene = Scene::impatient(LIMIT).await;
    let cases = [
        (vec![Act::Hang], "before the receiver answered"),
        (vec![Act::Drip(b"HTTP/1.1 200 OK\r\n".to_vec())], "before the receiver answered"),
        (vec![Act::send("HTTP/1.1 103 Early Hints\r\n\r\n"), Act::Hang], "before the receiver answered"),
    ];
    let sending = cases.into_iter().map(|(acts, phase)| {
        let scene = &scene;
        async move {
            // The connection is open before the time counts: the first request is answered.
            let receiver = Receiver::start(move |nth| if nth == 0 { Act::status(204) } else { acts.clone() }).await;
            assert_eq!(scene.status(&receiver.url("/")).await, 204);
            let began = Instant::now();
            assert_eq!(scene.failure(&receiver.url("/")).await, timeout(phase));
            assert!(began.elapsed() >= LIMIT && began.elapsed() < PATIENT, "{:?}", began.elapsed());
            closed(&receiver).await;
        }
    });
    join_all(sending).await;
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up_and_the_status_stays() {
    let scene = Scene::impatient(LIMIT).await;
    let cases = [
        (200, vec![Act::send("abc"), Act::Hang], "abc"),
        (200, vec![Act::Hang], ""),
        (200, vec![Act::Drip(b"x".to_vec())], "x"),
        (500, vec![Act::send("abc"), Act::Hang], "abc"),
    ];
    let sending = cases.into_iter().map(|(status, rest, excerpt)| {
        let scene = &scene;
        async move {
            let head = Act::send(&format!("HTTP/1.1 {status} Some\r\nContent-Length: 1000000\r\n\r\n"));
            let receiver = Receiver::always([vec![head], rest].concat()).await;
            let began = Instant::now();
            let answer = scene.send(&receiver.url("/")).await.outcome.unwrap();
            assert!(began.elapsed() < PATIENT, "{:?}", began.elapsed());
            assert_eq!(answer.status.as_u16(), status);
            assert!(answer.excerpt.starts_with(excerpt), "{answer:?}");
            closed(&receiver).await;
        }
    });
    join_all(sending).await;
}

/// Waits until the receiver has seen the end of every connection.
async fn closed(receiver: &Receiver) {
    let began = Instant::now();
    while receiver.open() > 0 {
        assert!(began.elapsed() < PATIENT, "{} connections stay open", receiver.open());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_endless_head_is_refused() {
    let scene = Scene::new().await;
    for acts in [
        vec![Act::send("HTTP/1.1 200 OK\r\nX: "), Act::Flood(vec![b'x'; 4096])],
        vec![Act::send("HTTP/1.1 200 OK\r\n"), Act::Flood(b"X: y\r\n".repeat(512))],
        vec![Act::send(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(200)))],
    ] {
        let receiver = Receiver::always(acts).await;
        assert_eq!(scene.failure(&receiver.url("/")).await, protocol("the head of the answer is too large"));
        closed(&receiver).await;
        assert!(receiver.written() < TAKEN, "{} bytes taken", receiver.written());
    }
}

#[tokio::test]
async fn an_endless_body_is_an_answer_that_is_cut_off() {
    let scene = Scene::new().await;
    for head in ["Content-Length: 10000000000", "Content-Encoding: gzip", "Transfer-Encoding: chunked"] {
        let piece = if head.starts_with("Transfer") { b"1000\r\n".to_vec() } else { Vec::new() };
        let end = if piece.is_empty() { "" } else { "\r\n" };
        let piece = [piece, vec![b'x'; 4096], end.into()].concat();
        let receiver =
            Receiver::always(vec![Act::send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")), Act::Flood(piece)]).await;
        let attempt = scene.send(&receiver.url("/")).await;
        assert!(attempt.is_accepted(), "{:?}", attempt.outcome);
        assert_eq!(attempt.outcome.unwrap().excerpt, "x".repeat(1024));
        closed(&receiver).await;
        assert!(receiver.written() < TAKEN, "{} bytes taken", receiver.written());
    }
}

#[tokio::test]
async fn endless_interim_answers_end_the_connection() {
    let scene = Scene::new().await;
    let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n".repeat(64);
    let receiver = Receiver::always(vec![Act::Flood(hints)]).await;
    assert_eq!(scene.failure(&receiver.url("/")).await, protocol("the receiver sent too much"));
    closed(&receiver).await;
    assert!(receiver.written() < TAKEN, "{} bytes taken", receiver.written());
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

#[tokio::test]
async fn floods_over_http_2_end_the_connection() {
    let scene = Scene::new().await;
    let settings = frame(4, 0, 0, &[]);
    for (name, flood) in [
        ("PING", frame(6, 0, 0, &[7; 8])),
        ("SETTINGS", frame(4, 0, 0, &[])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 7])),
        ("unknown frames", frame(0x42, 0, 0, &[7; 200])),
    ] {
        let receiver = Receiver::raw_http2(vec![Act::Send(settings.clone()), Act::Flood(flood.repeat(64))]).await;
        assert_eq!(scene.failure(&receiver.url("/")).await, protocol("the receiver sent too much"), "{name}");
        closed(&receiver).await;
        assert!(receiver.written() < TAKEN, "{name}: {} bytes taken", receiver.written());
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_answers_and_reads_none_is_disconnected() {
    let scene = Scene::impatient(LIMIT).await;
    let ping = frame(6, 0, 0, &[7; 8]).repeat(64);
    let receiver = Receiver::raw_http2(vec![Act::Send(frame(4, 0, 0, &[])), Act::DeafFlood(ping)]).await;
    assert_eq!(scene.failure(&receiver.url("/")).await, timeout("before the receiver answered"));
    closed(&receiver).await;
    assert!(receiver.written() < TAKEN, "{} bytes taken", receiver.written());
}

#[tokio::test]
async fn an_answer_whose_head_breaks_off_is_a_failure() {
    let scene = Scene::new().await;
    for acts in [
        vec![Act::Close],
        vec![Act::Reset],
        vec![Act::send("HTTP/1.1 200 O"), Act::Close],
        vec![Act::send("HTTP/1.1 200 OK\r\nContent-"), Act::Reset],
    ] {
        let receiver = Receiver::always(acts.clone()).await;
        let failure = scene.failure(&receiver.url("/")).await;
        assert_eq!(failure, protocol("the receiver closed the connection without an answer"), "{acts:?}");
    }
}

#[tokio::test]
async fn an_answer_whose_body_breaks_off_is_its_status() {
    let scene = Scene::new().await;
    for (status, rest, end) in [
        (200, "\r\nabc", Act::Close),
        (200, "\r\nabc", Act::CutTls),
        (201, "Connection: close\r\n\r\nabc", Act::CutTls),
        (200, "Content-Length: 10\r\n\r\nabc", Act::Close),
        (200, "Content-Length: 10\r\n\r\nabc", Act::CutTls),
        (200, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Act::Close),
        (200, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", Act::Hang),
        (410, "Content-Length: 10\r\n\r\nabc", Act::Close),
        (503, "Content-Length: 10\r\n\r\nabc", Act::CutTls),
    ] {
        let receiver =
            Receiver::always(vec![Act::send(&format!("HTTP/1.1 {status} Some\r\n{rest}")), end.clone()]).await;
        let answer = scene.send(&receiver.url("/")).await.outcome.unwrap_or_else(|error| panic!("{error}: {rest:?}"));
        assert_eq!((answer.status.as_u16(), answer.excerpt.as_str()), (status, "abc"), "{rest:?} {end:?}");
    }
}

#[tokio::test]
async fn a_head_with_oddities_is_an_answer() {
    let scene = Scene::new().await;
    for fields in [
        "X-Powered-By : PHP",
        "X-Folded: one\r\n two",
        "no colon at all",
        ": no name",
        "Bad name: value",
        "X-Umlaut: gr\u{fc}n",
        "X-Bell: \u{7}",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: 2\r\n\r\nok");
        let receiver = Receiver::always(vec![Act::send(&head)]).await;
        let answer = scene.send(&receiver.url("/")).await.outcome.unwrap_or_else(|error| panic!("{error}: {fields}"));
        assert_eq!((answer.status.as_u16(), answer.excerpt.as_str()), (200, "ok"), "{fields}");
    }
}

#[tokio::test]
async fn anything_but_http_is_a_failure() {
    let scene = Scene::new().await;
    for text in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "220 mail ready\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "\0\0\0\0",
    ] {
        let receiver = Receiver::always(vec![Act::send(text), Act::Hang]).await;
        assert_eq!(scene.failure(&receiver.url("/")).await, protocol("the answer is not HTTP"), "{text}");
    }
}

#[tokio::test]
async fn a_receiver_that_hangs_delays_no_other() {
    let scene = Scene::new().await;
    let hanging = Receiver::always(vec![Act::Hang]).await;
    let healthy = Receiver::always(Act::status(204)).await;
    let url = hanging.url("/");
    let mut waiting = Box::pin(join_all((0..50).map(|_| scene.send(&url))));
    for _ in 0..20 {
        let url = healthy.url("/");
        tokio::select! {
            _ = &mut waiting => panic!("the hanging receiver answered"),
            status = scene.status(&url) => assert_eq!(status, 204),
        }
    }
    // Dropping a request closes its connection.
    drop(waiting);
    closed(&hanging).await;
}
