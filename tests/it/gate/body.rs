//! Bodies that are too large, never end, or are not what they should be.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::connection::{Protocol, handshake};

const LIMIT: usize = 1024 * 1024;
const SEARCH: &str = "/api/v1/submission";

/// The head of a POST that closes its connection.
fn head(acme: &Acme, fields: &str) -> String {
    format!(
        "POST {SEARCH} HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nConnection: close\r\n{fields}\r\n",
        acme.token
    )
}

/// A body in chunks of 16 KiB.
fn chunked(body: &[u8]) -> Vec<u8> {
    let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    let mut bytes: Vec<u8> = body.chunks(16 * 1024).flat_map(chunk).collect();
    bytes.extend(b"0\r\n\r\n");
    bytes
}

fn is_too_large(answer: &Answer) {
    assert_eq!(answer.status, 413, "{answer:?}");
    assert_eq!(answer.json(), json!({"message": "The request body is too large"}));
    assert!(answer.header("x-ratelimit-remaining").is_some() && answer.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_body_of_up_to_one_mebibyte_is_accepted() {
    let acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let call = |length| acme.caller().over(protocol).post(SEARCH).body(vec![b' '; length]);
        assert_eq!(call(LIMIT).send().await.status, 200);
        is_too_large(&call(LIMIT + 1).fresh().send().await);
        is_too_large(&call(4 * LIMIT).fresh().send().await);
    }
}

#[tokio::test]
async fn a_body_whose_length_is_not_declared_is_counted() {
    let acme = Acme::start();
    for (length, taken) in [(LIMIT, true), (LIMIT + 1, false), (3 * LIMIT, false)] {
        let mut request = head(&acme, "Transfer-Encoding: chunked\r\n").into_bytes();
        request.extend(chunked(&vec![b' '; length]));
        let answer = acme.raw(&request).await;
        if taken { assert_eq!(answer.status, 200, "{answer:?}") } else { is_too_large(&answer) }
    }
}

#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_a_byte_of_the_body_is_sent() {
    let acme = Acme::start();
    for length in ["1048577", "99999999999", "9223372036854775807"] {
        let fields = format!("Content-Length: {length}\r\nExpect: 100-continue\r\n");
        let answer = acme.raw(head(&acme, &fields)).await;
        is_too_large(&answer);
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_answered_and_cut() {
    let acme = Acme::start();
    let stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let (mut reading, mut writing) = tokio::io::split(stream);
    let began = Instant::now();
    let chunk = chunked(&[b' '; 64 * 1024]);
    let chunk = &chunk[..chunk.len() - b"0\r\n\r\n".len()];
    let write = async {
        writing.write_all(head(&acme, "Transfer-Encoding: chunked\r\n").as_bytes()).await.expect("a fresh connection");
        let mut written = 0;
        while written < 128 * LIMIT && writing.write_all(chunk).await.is_ok() {
            written += chunk.len();
        }
        written
    };
    let mut answer = Vec::new();
    let (written, _) = tokio::join!(write, reading.read_to_end(&mut answer));
    is_too_large(&Answer::read(&answer).expect("an answer"));
    assert!(written < 64 * LIMIT, "{written} bytes were taken");
    assert!(began.elapsed() < Duration::from_secs(20), "cut after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_body_that_trickles_in_is_read_to_its_end() {
    let acme = Acme::start();
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let body = b"{\"statuses\": [\"pending\"]}";
    stream.write_all(head(&acme, &format!("Content-Length: {}\r\n", body.len())).as_bytes()).await.expect("written");
    for piece in body.chunks(5) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all(piece).await.expect("written");
        stream.flush().await.expect("written");
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(Answer::read(&answer).expect("an answer").status, 200);
}

/// The paths of the faults, in their order.
fn faults(answer: &Answer) -> Vec<String> {
    let errors = answer.json()["errors"].clone();
    errors.as_object().into_iter().flat_map(serde_json::Map::keys).cloned().collect()
}

#[tokio::test]
async fn a_body_that_is_not_a_json_object_is_a_fault() {
    let acme = Acme::start();
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000)).into_bytes();
    for body in [
        b"{".to_vec(),
        b"{}x".to_vec(),
        b"{\"search\": \"\xff\xfe\"}".to_vec(),
        b"{\"search\": \"\xed\xa0\x80\"}".to_vec(),
        b"{\"search\": \"\\ud800\"}".to_vec(),
        b"{\"search\": \"a\x00b\"}".to_vec(),
        b"{\"search\": nul}".to_vec(),
        b"{\"forms\": [1e999]}".to_vec(),
        b"{'forms': []}".to_vec(),
        b"[{}]".to_vec(),
        b"\"forms\"".to_vec(),
        b"1".to_vec(),
        b"\x1f\x8b\x08\x00".to_vec(),
        b"\x00".to_vec(),
        deep("[", "]"),
        deep("{\"terms\":", "}"),
        [b"{\"unknown\": ".to_vec(), deep("[", "]"), b"}".to_vec()].concat(),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let answer = acme.caller().post(SEARCH).body(body).send().await;
        assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec!["body".to_owned()]), "{shown:?}");
    }
    for body in [&b""[..], b"  \r\n\t", b"{}", b" {} \n", b"null", b" []", b"\xef\xbb\xbf{}"] {
        let answer = acme.caller().post(SEARCH).body(body).send().await;
        assert_eq!(answer.status, 200, "{:?}", String::from_utf8_lossy(body));
    }
}

#[tokio::test]
async fn hostile_values_are_faults_of_their_fields() {
    let acme = Acme::start();
    let answered = |body: &'static str| acme.caller().post(SEARCH).body(body).send();
    for (body, fault) in [
        (r#"{"search": "a\u0000b"}"#, "search"),
        (r#"{"terms": {"1": ["a\u0000b"]}}"#, "terms.1.0"),
        (r#"{"forms": [9223372036854775808]}"#, "forms.0"),
        (r#"{"forms": ["for_1", "for_9223372036854775808"]}"#, "forms.1"),
        (r#"{"forms": [123456789012345678901234567890]}"#, "forms.0"),
        (r#"{"forms": [-1]}"#, "forms.0"),
        (r#"{"forms": [1.5]}"#, "forms.0"),
        (r#"{"forms": ["1\u0000"]}"#, "forms.0"),
        (r#"{"submitters": [18446744073709551616]}"#, "submitters.0"),
        (r#"{"labels": ["99999999999999999999"]}"#, "labels.0"),
        (r#"{"start": "9999999-01-01"}"#, "start"),
        (r#"{"end": "2024-02-30"}"#, "end"),
        (r#"{"start": "2024-01-01\u0000"}"#, "start"),
        (r#"{"sortBy": "id; DROP TABLE submissions"}"#, "sortBy"),
    ] {
        let answer = answered(body).await;
        assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec![fault.to_owned()]), "{body}: {answer:?}");
    }
    for body in [
        r#"{"search": "%_\\'\"$1?"}"#,
        r#"{"search": "\ud83d\udca9\ufffd\uffff"}"#,
        r#"{"terms": {"99999999999999999999": ["x"], "-1": ["x"], "x\u0000": ["x"]}}"#,
        r#"{"forms": [9223372036854775807]}"#,
        r#"{"start": "-009999-01-02", "end": "9999-12-30"}"#,
        r#"{"constructor": 1, "__proto__": {}, "": []}"#,
    ] {
        let answer = answered(body).await;
        assert!([200, 422].contains(&answer.status.as_u16()), "{body}: {answer:?}");
        if answer.status == 200 {
            assert_eq!(answer.json()["data"], Value::Array(Vec::new()), "{body}");
        }
    }
    for page in ["0", "-1", "1.5", "%00", "%ff", "x", "+1"] {
        let answer = acme.caller().post(&format!("{SEARCH}?page={page}")).send().await;
        assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec!["page".to_owned()]), "{page}: {answer:?}");
    }
    for page in ["9223372036854775807", "9223372036854775808", "99999999999999999999999"] {
        let answer = acme.caller().post(&format!("{SEARCH}?page={page}")).send().await;
        assert!([200, 422].contains(&answer.status.as_u16()), "{page}: {answer:?}");
    }
}

#[tokio::test]
async fn an_answer_repeats_little_of_a_body_however_many_faults_that_has() {
    let acme = Acme::start();
    let key = |length: usize| "k".repeat(length);
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let keys: String = (0..30_000).map(|at| format!(r#""{at}":[1],"#)).collect();
    for (body, field) in [
        (format!(r#"{{"terms": {{"{}": [1]}}}}"#, key(900_000)), format!("terms.{}….0", key(63))),
        (format!(r#"{{"terms": {{"{}": {}}}}}"#, key(500_000), list("1", 900)), format!("terms.{}….0", key(63))),
        (format!(r#"{{"terms": {{"{}": {}}}}}"#, key(500_000), list("1", 200_000)), "terms".to_owned()),
        (format!(r#"{{"terms": {{{keys}"x": [1]}}}}"#), "terms".to_owned()),
        (format!(r#"{{"forms": {}}}"#, list(r#""xxxxxxxxxxxxxxxxxxxxxxxxxxxx""#, 1_000)), "forms.0".to_owned()),
        (format!(r#"{{"flows": {}}}"#, list("[[0]]", 100_000)), "flows".to_owned()),
        (format!(r#"{{"search": "{}"}}"#, key(900_000)), "search".to_owned()),
    ] {
        let answer = acme.caller().post(SEARCH).body(body).send().await;
        assert_eq!((answer.status.as_u16(), faults(&answer).first()), (422, Some(&field)));
        assert!(answer.body.len() <= 64 * 1024, "{field}: {} bytes", answer.body.len());
    }
    let ignored = format!(r#"{{"{}": 1}}"#, key(900_000));
    let answer = acme.caller().post(SEARCH).body(ignored).send().await;
    assert_eq!(answer.header("x-ignored-parameters"), Some(&*key(64)));
}
