//! What is sent, and what is read of an answer.

use std::time::Duration;

use formgate::outbound::Answer;
use http::StatusCode;

use super::scene::{BODY, ID, Scene};
use crate::support::receiver::{Act, HOST, Receiver};

#[tokio::test]
async fn a_request_is_the_event_and_its_signature_and_nothing_else() {
    let receiver = Receiver::always(Act::status(204)).await;
    let scene = Scene::new().await;
    assert!(scene.send(&receiver.url("/catch/1?a=b#c")).await.is_accepted());
    let request = receiver.requests().remove(0);
    assert_eq!((request.line.as_str(), &*request.body), ("POST /catch/1?a=b", BODY.as_bytes()));
    let mut names: Vec<_> = request.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let expected = [
        "content-length",
        "content-type",
        "formgate-attempt",
        "host",
        "user-agent",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    ];
    assert_eq!(names, expected);
    let header = |name| request.headers[name].to_str().unwrap();
    assert_eq!(
        (header("content-type"), header("formgate-attempt"), header("webhook-id")),
        ("application/json", "3", ID)
    );
    assert_eq!(header("host"), format!("{HOST}:{}", receiver.address.port()));
    assert_eq!(header("user-agent"), concat!("formgate/", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn every_status_is_an_answer_and_only_2xx_accepts() {
    let scene = Scene::new().await;
    for status in [200, 201, 202, 204, 299, 301, 304, 400, 401, 404, 410, 413, 429, 500, 503, 599, 999] {
        let receiver = Receiver::always(Act::status(status)).await;
        let attempt = scene.send(&receiver.url("/")).await;
        assert_eq!(attempt.is_accepted(), status < 300, "{status}");
        let expected =
            Answer { status: StatusCode::from_u16(status).unwrap(), retry_after: None, excerpt: String::new() };
        assert_eq!(attempt.outcome, Ok(expected));
        assert!(attempt.took > Duration::ZERO);
    }
}

#[tokio::test]
async fn an_answer_has_its_retry_after_and_the_beginning_of_its_body() {
    let scene = Scene::new().await;
    let long = format!("{}{}", "ä".repeat(511), "€".repeat(1000));
    for (lines, body, retry_after, excerpt) in [
        (&["Retry-After: 120"][..], "busy", Some(120), "busy".to_owned()),
        (&["Retry-After: 999999"], "", Some(86_400), String::new()),
        (&["Retry-After: Thu, 01 Jan 1970 00:00:00 GMT"], "a\0b", Some(0), "a\u{fffd}b".to_owned()),
        (&["Retry-After: soon"], long.as_str(), None, "ä".repeat(511)),
        (&["Content-Encoding: gzip"], "\u{1f}not decompressed", None, String::new()),
        (&["Content-Encoding: br"], "\u{1}\u{2}", None, String::new()),
        (&["Content-Encoding: gzip"], "not\tcompressed\n", None, "not\tcompressed\n".to_owned()),
        (&["Content-Encoding: Identity"], "a\u{1f}b", None, "a\u{fffd}b".to_owned()),
    ] {
        let receiver = Receiver::always(Act::answer(503, lines, body)).await;
        let answer = scene.send(&receiver.url("/")).await.outcome.unwrap();
        assert_eq!(answer.retry_after, retry_after.map(Duration::from_secs), "{lines:?}");
        assert_eq!(answer.excerpt, excerpt, "{lines:?}");
    }
}

#[tokio::test]
async fn an_answer_may_come_in_any_form_that_http_has() {
    let scene = Scene::new().await;
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
    for acts in [
        vec![Act::send(chunked)],
        vec![Act::send("HTTP/1.0 200 OK\r\n\r\nabcde"), Act::Close],
        vec![
            Act::send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
            Act::send(chunked),
        ],
        vec![Act::Pause(Duration::from_millis(300)), Act::send(chunked)],
        chunked.bytes().map(|byte| Act::Send(vec![byte])).collect(),
    ] {
        let receiver = Receiver::always(acts.clone()).await;
        let answer = scene.send(&receiver.url("/")).await.outcome.unwrap_or_else(|error| panic!("{error}: {acts:?}"));
        assert_eq!((answer.status.as_u16(), answer.excerpt.as_str()), (200, "abcde"), "{acts:?}");
    }
}

#[tokio::test]
async fn a_receiver_may_speak_http_2_only() {
    let scene = Scene::new().await;
    let receiver = Receiver::http2(202).await;
    let answer = scene.send(&receiver.url("/x?y")).await.outcome.unwrap();
    assert_eq!((answer.status.as_u16(), answer.excerpt.as_str()), (202, "over HTTP/2"));
    let request = receiver.requests().remove(0);
    assert_eq!(request.line, format!("HTTP/2 {}", receiver.url("/x?y")));
    assert_eq!((&*request.body, request.headers["webhook-id"].to_str().unwrap()), (BODY.as_bytes(), ID));
}

#[tokio::test]
async fn a_cookie_is_not_sent_back() {
    let scene = Scene::new().await;
    let receiver = Receiver::always(Act::answer(200, &["Set-Cookie: session=1; Path=/"], "ok")).await;
    for _ in 0..2 {
        assert_eq!(scene.status(&receiver.url("/")).await, 200);
    }
    assert!(receiver.requests().iter().all(|request| !request.headers.contains_key("cookie")));
}
