//! Property tests that hyper reads the same through [`Heads`] as without it, as far as it may read at all.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, timeout};

use crate::config::ConnectionLimits;
use crate::edge::activity::Activity;
use crate::edge::framing::Framing;
use crate::edge::head_filter::HeadFilter;

/// What hyper passes on of a request: method, target, and the body if it is complete.
type Seen = (String, String, Option<Bytes>);

/// Everything that hyper reads from a connection.
async fn serve(io: impl AsyncRead + AsyncWrite + Unpin) -> Vec<Seen> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let service = {
        let seen = Arc::clone(&seen);
        service_fn(move |request: Request<Incoming>| {
            let seen = Arc::clone(&seen);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
                seen.lock().unwrap().push((head.method.to_string(), head.uri.to_string(), body));
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
            }
        })
    };
    let mut settings = http1::Builder::new();
    settings.header_read_timeout(None).half_close(true).max_headers(ConnectionLimits::HEAD_FIELDS);
    let connection = settings.serve_connection(TokioIo::new(io), service);
    let _ = timeout(Duration::from_secs(5), connection).await.expect("every connection ends");
    seen.lock().unwrap().clone()
}

/// Writes the pieces one by one, each after the previous one was read.
async fn send(mut to: DuplexStream, pieces: Vec<Vec<u8>>) {
    for piece in pieces {
        if to.write_all(&piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    let _ = to.shutdown().await;
    // Reads the responses, because hyper would wait for that.
    let _ = tokio::io::copy(&mut to, &mut tokio::io::sink()).await;
}

async fn read_unfiltered(pieces: Vec<Vec<u8>>) -> Vec<Seen> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    tokio::join!(serve(ours), send(theirs, pieces)).0
}

async fn read_filtered(pieces: Vec<Vec<u8>>) -> Vec<Seen> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let limits = ConnectionLimits::default();
    let stream = HeadFilter::new(ours, Activity::new(Instant::now(), limits), Framing::new(limits.head_bytes));
    tokio::join!(serve(stream), send(theirs, pieces)).0
}

fn split(bytes: &[u8], sizes: &[usize]) -> Vec<Vec<u8>> {
    let (mut rest, mut pieces) = (bytes, Vec::new());
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, later) = rest.split_at(size.min(rest.len()));
        pieces.push(piece.to_vec());
        rest = later;
    }
    pieces
}

/// A valid request. Its target will be its number.
fn request() -> impl Strategy<Value = (&'static str, &'static str, Vec<u8>)> {
    let length = prop_oneof![Just(0), 1_usize..20, Just(3000)];
    let methods = prop::sample::select(vec!["GET", "POST", "HEAD", "DELETE"]);
    let fields = prop::sample::select(vec![
        "",
        "X-One: 1\r\nX-Two:2\r\n",
        "Connection: keep-alive\r\n",
        "X-Long: abcdefghijkl\r\n",
    ]);
    // The content of a body looks like its surroundings.
    let text = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n0\r\n\r\n".repeat(80);
    (methods, fields, length).prop_map(move |(method, fields, length)| (method, fields, text[..length].to_vec()))
}

#[derive(Clone, Copy, Debug)]
enum BodyFraming {
    Length,
    Chunks(usize),
    Trailers,
}

fn written(at: usize, method: &str, fields: &str, body: &[u8], frame: BodyFraming, blank: &str) -> Vec<u8> {
    let head =
        |framing: &str| format!("{blank}{method} /{at} HTTP/1.1\r\nHost: x\r\n{fields}{framing}\r\n").into_bytes();
    let chunks = |size: usize, end: &str| {
        let chunk = |piece: &[u8]| [format!("{:X};x=y\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        let chunks: Vec<u8> = body.chunks(size).flat_map(chunk).collect();
        [head("Transfer-Encoding: chunked\r\n"), chunks, end.as_bytes().to_vec()].concat()
    };
    match frame {
        BodyFraming::Length if body.is_empty() => head(""),
        BodyFraming::Length => [head(&format!("Content-Length: {}\r\n", body.len())), body.to_vec()].concat(),
        BodyFraming::Chunks(size) => chunks(size, "0\r\n\r\n"),
        BodyFraming::Trailers => chunks(7, "000\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"),
    }
}

type Drawn = ((&'static str, &'static str, Vec<u8>), BodyFraming, &'static str);

/// Requests to be written one after the other.
fn pipeline() -> impl Strategy<Value = Vec<Drawn>> {
    let frame = prop_oneof![
        Just(BodyFraming::Length),
        (1_usize..2000).prop_map(BodyFraming::Chunks),
        Just(BodyFraming::Trailers)
    ];
    let blank = prop::sample::select(vec!["", "", "\r\n", "\r\n\r\n\r\n"]);
    prop::collection::vec((request(), frame, blank), 1..6)
}

fn bytes_of(drawn: &[Drawn]) -> Vec<u8> {
    let write = |(at, ((method, fields, body), frame, blank)): (usize, &Drawn)| {
        written(at, method, fields, body, *frame, blank)
    };
    drawn.iter().enumerate().flat_map(write).collect()
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![1 => Just(vec![1]), 3 => Just(vec![usize::MAX]), 6 => prop::collection::vec(1_usize..400, 1..5)]
}

fn check<S: Strategy>(cases: u32, strategy: &S, test: impl AsyncFn(S::Value) -> Result<(), TestCaseError>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
        .run(strategy, |value| runtime.block_on(test(value)))
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn valid_requests_are_read_as_written_however_they_are_split() {
    check(100, &(pipeline(), sizes()), async |(drawn, sizes)| {
        let seen = read_filtered(split(&bytes_of(&drawn), &sizes)).await;
        let expected: Vec<Seen> = drawn
            .iter()
            .enumerate()
            .map(|(at, ((method, _, body), _, _))| ((*method).to_owned(), format!("/{at}"), Some(body.clone().into())))
            .collect();
        prop_assert_eq!(seen, expected);
        Ok(())
    });
}

#[test]
fn invalid_requests_are_read_as_without_the_filter_or_not_at_all() {
    let bytes = prop_oneof![
        3 => any::<u8>().prop_map(|byte| vec![byte]),
        2 => prop::sample::select(vec!["\r", "\n", "\r\n", "\r\n\r\n", "0\r\n\r\n", ";", " ", ":", "\t", "+", "*", ","]).prop_map(Vec::from),
        2 => prop::sample::select(vec![
            "Content-Length: 3\r\n", "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n", "Upgrade: x\r\n", "HTTP/1.0",
        ]).prop_map(Vec::from),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0_usize..4, bytes), 1..4);
    check(300, &(pipeline(), changes, sizes()), async |(drawn, changes, sizes)| {
        let mut bytes = bytes_of(&drawn);
        for (at, removed, put) in changes {
            let at = at.index(bytes.len());
            bytes.splice(at..(at + removed).min(bytes.len()), put);
        }
        let alone = read_unfiltered(split(&bytes, &sizes)).await;
        let mut behind = read_filtered(split(&bytes, &sizes)).await;
        // The last one may replace a refused request, or have a refused body.
        let last = behind.pop_if(|(_, target, body)| target == "*" || body.is_none());
        prop_assert!(
            alone.starts_with(&behind),
            "{:?}: {:?} and {:?}, {:?}",
            String::from_utf8_lossy(&bytes),
            alone,
            behind,
            last
        );
        prop_assert!(behind.iter().all(|(_, target, _)| target != "*"));
        if last.is_none() {
            prop_assert_eq!(alone, behind, "{:?}", String::from_utf8_lossy(&bytes));
        }
        Ok(())
    });
}
