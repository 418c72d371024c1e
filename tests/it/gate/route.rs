//! Which handler a path and a method reach.

use http::Method;
use serde_json::json;

use super::form;
use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::connection::Protocol;

#[tokio::test]
async fn an_unknown_path_is_not_found() {
    let acme = Acme::start();
    for path in [
        "/api/v1",
        "/api/v1/",
        "/api/v1/nowhere",
        "/api/v1/me/me",
        "/api/v1/ME",
        "/api/v1//me",
        "/api/v1/me//",
        "/api/v1/./me",
        "/api/v1/form/../me",
        "/api/v1/form/1/2",
        "/api/v1/%6de",
        "/api/v1/me%2F",
        "/api/v1/me;x=1",
        "/api/v1/%00",
        "/api/v1/%ff%fe",
        "/api/v1/%zz",
        "/api/v1/%",
    ] {
        for method in [Method::GET, Method::DELETE] {
            let answer = acme.caller().method(method.clone(), path).send().await;
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
            assert_eq!(answer.json(), json!({"message": "Not found"}), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn an_invalid_id_is_not_found_however_it_is_encoded() {
    let acme = Acme::start();
    for id in [
        "0",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "sub_",
        "sub_0",
        "for_",
        "for_x",
        "FOR_1",
        "for_for_1",
        "for_%31x",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999999",
        "for_99999999999999999999",
        "%00",
        "1%00",
        "%ff",
        "%F0%9F%92%A9",
        "%2e%2e",
        "%20",
        "1%201",
        "1'--",
        "*",
        "$1",
        "%zz",
        "%",
    ] {
        for (resource, message) in [("form", "Form not found"), ("submission", "Submission not found")] {
            let answer = acme.caller().get(&format!("/api/v1/{resource}/{id}")).send().await;
            assert_eq!(answer.status, 404, "{resource} {id}: {answer:?}");
            assert_eq!(answer.json(), json!({ "message": message }), "{resource} {id}");
        }
    }
}

#[tokio::test]
async fn an_unsupported_method_is_refused_with_the_allowed_ones() {
    let acme = Acme::start();
    let others = [Method::PATCH, Method::OPTIONS, Method::TRACE];
    for (path, allow) in [
        ("/api/v1/me", "GET, HEAD"),
        ("/api/v1/form", "GET, HEAD"),
        ("/api/v1/form/for_1", "GET, HEAD"),
        ("/api/v1/submission", "POST"),
        ("/api/v1/submission/sub_1", "GET, HEAD"),
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for method in &others {
                let answer = acme.caller().over(protocol).method(method.clone(), path).send().await;
                assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some(allow)), "{method} {path}");
                assert_eq!(answer.json(), json!({"message": "Method not allowed"}));
            }
        }
    }
    assert_eq!(acme.caller().head("/api/v1/submission").send().await.status, 405);
    assert_eq!(acme.caller().get("/api/v1/submission").send().await.status, 405);
    assert_eq!(acme.caller().post("/api/v1/me").send().await.status, 405);
}

#[tokio::test]
async fn a_trailing_slash_is_the_same_path() {
    let acme = Acme::start();
    for (path, status) in
        [("/api/v1/me/", 200), ("/api/v1/form/", 200), ("/api/v1/form/for_1/", 404), ("/api/v1/me/?page=1", 200)]
    {
        let with = acme.caller().get(path).send().await;
        let without = acme.caller().get(path.replacen("/?", "?", 1).trim_end_matches('/')).send().await;
        assert_eq!(
            (with.status.as_u16(), with.json()["message"].clone()),
            (status, without.json()["message"].clone()),
            "{path}"
        );
    }
    assert_eq!(acme.caller().post("/api/v1/submission/").json(&json!({})).send().await.status, 200);
}

/// What two answers to the same question have in common.
fn lasting(mut answer: Answer) -> Vec<(String, String)> {
    for passing in ["date", "x-request-id", "x-ratelimit-remaining"] {
        answer.headers.remove(passing);
    }
    let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.to_string(), value.to_str().expect("visible ASCII").to_owned())
    };
    let mut headers: Vec<_> = answer.headers.iter().map(text).collect();
    headers.sort();
    headers
}

#[tokio::test]
async fn head_is_answered_like_get_without_the_body() {
    let acme = Acme::start();
    acme.site.import("acme", &form(1, &"Leave ".repeat(400)));
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let caller = acme.caller().over(protocol);
        for (path, status) in [
            ("/api/v1/form", 200),
            ("/api/v1/form/for_1", 200),
            ("/api/v1/form/for_2", 404),
            ("/api/v1/nowhere", 404),
            ("/", 404),
        ] {
            for encoding in ["identity", "gzip"] {
                let [get, head] = [Method::GET, Method::HEAD]
                    .map(|method| caller.method(method, path).header("accept-encoding", encoding));
                let (get, head) = (get.send().await, head.send().await);
                assert_eq!((get.status.as_u16(), head.status.as_u16()), (status, status), "{path}");
                assert_eq!((get.number("content-length"), head.body.len()), (Some(get.body.len() as u64), 0));
                assert_eq!(lasting(head), lasting(get), "{protocol:?} {path} {encoding}");
            }
        }
    }
    let request =
        |method| format!("{method} /api/v1/me HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n");
    let answer = acme.raw(request("HEAD")).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (401, 0), "not a byte follows the head");
}
