//! `X-Ignored-Parameters`: what was sent and is not known is named, wherever it stood.

use http::Method;
use serde_json::{Value, json};

use super::account::account;
use crate::support::answer::Answer;
use crate::support::description::API;
use crate::support::fixture::Engine;

fn named(answer: &Answer) -> Option<&str> {
    answer.header("x-ignored-parameters")
}

/// The query parameters of a path or of one of its methods.
pub(super) fn in_query(of: &Value) -> Vec<&'static str> {
    let parameters = of["parameters"].as_array().into_iter().flatten();
    let followed = parameters.map(|parameter| {
        let reference = parameter["$ref"].as_str().expect("parameters are components");
        API.document.pointer(reference.strip_prefix('#').expect("a local reference")).expect("the component exists")
    });
    followed
        .filter(|parameter| parameter["in"] == "query")
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn every_method_of_every_path_names_the_parameters_that_it_does_not_know() {
    let account = account(Engine::Sqlite, "");
    let (mut calls, mut statuses) = (0, Vec::new());
    for (path, item) in API.document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = format!("/api/v1{}", path.replace("{id}", "1"));
            let known = [in_query(item), in_query(operation)].concat().join("=1&");
            let query = format!("{known}&unknown=1&Page=2&unknown=3&page%5Bsize%5D=4");
            let answer = account.client.method(method.clone(), &format!("{path}?{query}")).send().await;
            assert_eq!(named(&answer), Some("unknown, Page, page%5Bsize%5D"), "{method} {path}: {answer:?}");
            let without = account.client.method(method.clone(), &format!("{path}?{known}")).send().await;
            assert_eq!(named(&without), None, "{method} {path}: {without:?}");
            statuses.push(answer.status.as_u16());
            calls += 1;
        }
    }
    assert!(calls > 20, "{calls}");
    for status in [200, 404, 422] {
        assert!(statuses.contains(&status), "{status} is among the answers");
    }
}

#[tokio::test]
async fn names_of_the_query_and_the_body_are_in_one_header_with_or_without_faults() {
    let account = account(Engine::Sqlite, "");
    let client = &account.client;
    let search =
        async |query: &str, body: Value| client.post(&format!("/api/v1/submission{query}")).json(&body).send().await;
    let answer = search("?per_page=100", json!({"status": "pending", "per_page": 5})).await;
    assert_eq!((answer.status.as_u16(), named(&answer)), (200, Some("per_page, status")));
    let answer = search("?page=0&per_page=5&offset=20", json!({})).await;
    assert_eq!((answer.status.as_u16(), named(&answer)), (422, Some("per_page, offset")));
    let body: Value = (0..500).map(|at| (format!("key{at}"), json!(at))).collect::<serde_json::Map<_, _>>().into();
    let answer = search(&format!("?{}=1&{}=2", "x".repeat(300), "ü".repeat(50)), body).await;
    let names = named(&answer).unwrap();
    let expected = format!("{}, {}, key0, key1, ", "x".repeat(64), "%C3%BC".repeat(10));
    assert!(names.starts_with(&expected) && names.len() <= 1024, "{names}");
    assert!(names.split(", ").all(|name| name.len() <= 64), "{names}");
}

#[tokio::test]
async fn unknown_keys_of_a_body_with_faults_are_named_on_every_endpoint_that_takes_one() {
    let account = account(Engine::Sqlite, "");
    for (method, path, body) in [
        (Method::POST, "submission", json!({"status": 1, "search": "x", "per_page": 5})),
        (Method::PUT, "group", json!({"status": 1, "name": "", "per_page": 5})),
        (Method::POST, "subscribe", json!({"status": 1, "target_url": "http://x.example", "per_page": 5})),
        (Method::POST, "subscribe", json!({"status": 1, "target_url": "https://x.example", "form": 7, "per_page": 5})),
        (Method::POST, "unsubscribe", json!({"status": 1, "per_page": 5})),
    ] {
        let answer = account.client.method(method, &format!("/api/v1/{path}?size=1")).json(&body).send().await;
        assert_eq!((answer.status.as_u16(), named(&answer)), (422, Some("size, status, per_page")), "{path} {body}");
    }
}

#[tokio::test]
async fn a_request_that_reaches_no_route_has_nothing_named() {
    let account = account(Engine::Sqlite, "");
    for (method, path, status) in [
        (Method::GET, "/api/v1/nowhere?a=1", 404),
        (Method::DELETE, "/api/v1/me?a=1", 405),
        (Method::GET, "/?a=1", 404),
    ] {
        let answer = account.client.method(method, path).send().await;
        assert_eq!((answer.status.as_u16(), named(&answer)), (status, None), "{path}");
    }
    let answer = account.client.with("fg_wrong").get("/api/v1/me?a=1").send().await;
    assert_eq!((answer.status.as_u16(), named(&answer)), (401, None));
}
