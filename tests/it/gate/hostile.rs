//! Whatever bytes come, the gateway does not fail: no answer is a 500, the log has no error, and the next is served.

use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::acme::Acme;
use crate::support::connection::{Protocol, exchange, handshake};

/// How long a peer stays that may get no answer: many of these requests end before their end.
const STAY: Duration = Duration::from_millis(150);

/// Sends all of them at once, each on its own connection, and returns what was answered.
async fn answers(acme: &Acme, protocol: Protocol, requests: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let host = acme.host();
    join_all(requests.iter().map(async |request| {
        let stream = handshake(acme.node.address, &host, protocol).await.expect("the gateway takes connections");
        exchange(stream, request, STAY).await
    }))
    .await
}

fn failed(answer: &[u8]) -> bool {
    answer.windows(13).any(|window| window == b"HTTP/1.1 500 ")
}

/// Whether the gateway still serves, and nothing of what came before went wrong in it.
async fn is_unharmed(mut acme: Acme) {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(acme.caller().over(protocol).get("/api/v1/me").send().await.status, 200);
    }
    let log = acme.stop().await;
    let errors: Vec<_> =
        log.lines().filter(|line| line.contains(r#""level":"ERROR""#) || line.contains("panicked")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

/// A request of the token's account with these fields and what follows them.
fn post(acme: &Acme, fields: &str, rest: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /api/v1/submission HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\n{fields}\r\n",
        acme.token
    );
    [head.as_bytes(), rest].concat()
}

fn get(acme: &Acme, line: &str) -> Vec<u8> {
    format!("{line}\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\n\r\n", acme.token).into_bytes()
}

#[tokio::test]
async fn malformed_requests_end_only_their_own_connection() {
    let acme = Acme::start();
    let mut requests: Vec<Vec<u8>> = [
        "GET * HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT acme.example.test:443 HTTP/1.1",
        "CONNECT /api/v1/me HTTP/1.1",
        "GET /api/v1/me HTTP/1.0",
        "GET /api/v1/me HTTP/0.9",
        "GET /api/v1/me HTTP/2.0",
        "GET /api/v1/me HTTP/9.9",
        "GET /api/v1/me",
        "GET  /api/v1/me HTTP/1.1",
        "GET /api/v1/me\t HTTP/1.1",
        "GET /api/v1/\u{0} HTTP/1.1",
        "GET /api/v1/ä HTTP/1.1",
        "GET /api/v1/me#fragment HTTP/1.1",
        "GET api/v1/me HTTP/1.1",
        "GET ?page=1 HTTP/1.1",
        "GET //acme.example.test/api/v1/me HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET file:///api/v1/me HTTP/1.1",
        "GET https://[::1/api/v1/me HTTP/1.1",
        "GET https://acme.example.test:99999/api/v1/me HTTP/1.1",
        "G\u{7f}T /api/v1/me HTTP/1.1",
        "PRI * HTTP/2.0",
        "",
        "\u{0}\u{0}\u{0}",
    ]
    .map(|line| get(&acme, line))
    .into();
    requests.extend([
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec(),
        b"\x16\x03\x01\x00\x05hello".to_vec(),
        b"\r\n".repeat(10_000),
        vec![0; 100_000],
        vec![0xff; 100_000],
        post(&acme, "Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"),
        post(&acme, "Content-Length: 2, 2\r\n", b"{}"),
        post(&acme, "Content-Length: -1\r\n", b"{}"),
        post(&acme, "Content-Length: +2\r\n", b"{}"),
        post(&acme, "Content-Length: 99999999999999999999999\r\n", b"{}"),
        post(&acme, "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        post(&acme, "Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
        post(&acme, "Transfer-Encoding: gzip\r\n", b"{}"),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n0\r\n\r\n"),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"-1\r\n"),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n{}"),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"fffffffffffffffff\r\n{}"),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"2\r\n{}X\r\n0\r\n\r\n"),
        post(
            &acme,
            "Transfer-Encoding: chunked\r\n",
            &[b"2;".as_slice(), &[b'x'; 100_000], b"\r\n{}\r\n0\r\n\r\n"].concat(),
        ),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\nX-Trailer: x\r\nHost: other\r\n\r\n"),
        post(
            &acme,
            "Transfer-Encoding: chunked\r\n",
            &[b"0\r\n".as_slice(), &b"X-Trailer: x\r\n".repeat(10_000)].concat(),
        ),
        post(&acme, "Content-Length: 100\r\n", b"{\"forms\""),
        post(&acme, "Content-Length: 0\r\nContent-Encoding: gzip\r\n", b""),
        post(&acme, "X-Folded: one\r\n two\r\n\tthree\r\n", b""),
        post(&acme, " Space: first\r\n", b""),
        post(&acme, "No-Colon\r\n", b""),
        post(&acme, "Space : before\r\n", b""),
        post(&acme, ": nameless\r\n", b""),
        post(&acme, "X-Nul: \u{0}\r\n", b""),
        post(&acme, "X-Return: a\rb\r\n", b""),
        post(
            &acme,
            "Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
            b"",
        ),
        post(&acme, "Connection: upgrade\r\nUpgrade: websocket\r\n", b""),
        post(&acme, "Expect: nonsense\r\nContent-Length: 2\r\n", b"{}"),
        post(&acme, "Accept-Encoding: ;;q=,,gzip;q=NaN,br;q=-1,zstd;q=1e999,*;q=inf\r\nContent-Length: 0\r\n", b""),
        post(&acme, "Authorization: Bearer again\r\nContent-Length: 0\r\n", b""),
        post(&acme, "X-Forwarded-For: ::1\r\nX-Forwarded-Host: globex\r\nContent-Length: 0\r\n", b""),
        post(&acme, "", b"").repeat(50),
    ]);
    requests.push(b"GET /api/v1/me HTTP/1.1\nHost: acme.example.test\n\n".to_vec());
    requests.push(b"GET /api/v1/me HTTP/1.1\r\nHost: \xff\xfe.example.test\r\n\r\n".to_vec());
    let answers = answers(&acme, Protocol::Http1, &requests).await;
    for (request, answer) in requests.iter().zip(&answers) {
        assert!(!failed(answer), "{:?}: {:?}", String::from_utf8_lossy(request), String::from_utf8_lossy(answer));
    }
    is_unharmed(acme).await;
}

/// One HTTP/2 frame.
fn frame(length: usize, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).expect("24 bits").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn malformed_http_2_ends_only_its_own_connection() {
    let acme = Acme::start();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = frame(0, 4, 0, 0, &[]);
    let begun = |frames: &[u8]| [preface.as_slice(), &settings, frames].concat();
    let reset = |stream| [frame(1, 1, 4, stream, &[0x82]), frame(4, 3, 0, stream, &[0, 0, 0, 8])].concat();
    let requests = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 10_000],
        preface.to_vec(),
        begun(&vec![0xff; 10_000]),
        begun(&frame(0x00ff_ffff, 0, 0, 1, &[0; 1000])),
        begun(&frame(4, 0, 0, 1, b"data")),
        begun(&frame(4, 1, 4, 0, &[0x82; 4])),
        begun(&frame(4, 1, 4, 2, &[0x82; 4])),
        begun(&frame(6, 1, 4, 1, &[0xff; 6])),
        begun(&frame(3, 4, 0, 0, &[0; 3])),
        begun(&frame(6, 4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        begun(&frame(4, 8, 0, 0, &[0; 4])),
        begun(&frame(7, 6, 0, 0, &[0; 7])),
        begun(&frame(4, 9, 0, 1, &[0; 4])),
        begun(&frame(4, 5, 4, 1, &[0, 0, 0, 2])),
        begun(&frame(0, 250, 255, u32::MAX, &[])),
        begun(&frame(8, 6, 0, 0, &[0; 8]).repeat(5000)),
        begun(&settings.repeat(5000)),
        // Streams that are opened and reset at once (CVE-2023-44487), and a head that is continued without end
        // (CVE-2024-27316).
        begun(&(0..2000).flat_map(|turn| reset(2 * turn + 1)).collect::<Vec<_>>()),
        begun(&[frame(1, 1, 0, 1, &[0x82]), frame(1000, 9, 0, 1, &[0; 1000]).repeat(500)].concat()),
    ];
    answers(&acme, Protocol::Http2, &requests).await;
    is_unharmed(acme).await;
}

/// A well-formed request of which some pieces were changed, taken out or put in twice.
fn mutated(request: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = request.len();
    let bytes = prop_oneof![
        4 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r\n\r\n".to_vec()),
        1 => Just(b": ".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::sample::select(vec!["\u{0}", "%00", "%", "é", "\u{202e}", "99999999999999999999", "{", "[", "\""]).prop_map(Vec::from),
    ];
    prop::collection::vec((0..length, 0..6_usize, bytes), 1..4).prop_map(move |changes| {
        let mut request = request.clone();
        for (at, removed, put) in changes {
            let at = at.min(request.len());
            let end = (at + removed).min(request.len());
            request.splice(at..end, put);
        }
        request
    })
}

#[test]
fn no_mutation_of_a_request_makes_a_failure() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let acme = Acme::start();
    let body = br#"{"forms": ["for_1", 2], "search": "word", "terms": {"3": ["x"]}, "start": "2024-01-01", "sortBy": "created_at"}"#;
    let fields = format!("Content-Length: {}\r\nAccept-Encoding: gzip, br;q=0.5\r\nX-Request-Id: 7\r\n", body.len());
    let seeds = [
        post(&acme, &fields, body),
        post(&acme, "Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
        get(&acme, "GET /api/v1/form/for_1?page=2 HTTP/1.1"),
    ];
    let strategy = seeds.map(|seed| mutated(seed).boxed());
    // Many at once, so that those who wait for the rest of a request wait together.
    let strategy = prop::collection::vec(prop::strategy::Union::new(strategy), 50);
    let config = Config { cases: 6, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&strategy, |requests| {
            let answers = runtime.block_on(answers(&acme, Protocol::Http1, &requests));
            for (request, answer) in requests.iter().zip(answers) {
                prop_assert!(
                    !failed(&answer),
                    "{:?}: {:?}",
                    String::from_utf8_lossy(request),
                    String::from_utf8_lossy(&answer)
                );
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    runtime.block_on(is_unharmed(acme));
}
