//! `GET /openapi.json`, and that what it says is true.
//!
//! That every answer is one that it tells of is asked by the client, of all tests; here are the examples, and what the
//! client would not notice.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::description::{API, deviation, escape, examples_of};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;

/// The address in the examples.
const ORIGIN: &str = "https://acme.example.com";

/// An account with the demo's data, which the examples are taken from.
struct Demo {
    client: Client,
    host: String,
    _node: Node,
    _site: Site,
}

fn demo(engine: Engine) -> Demo {
    let site = Site::new()
        .tenant_with("acme", engine, |tenant| tenant.set("timezone", "America/New_York").domain("forms.acme.test"))
        .requests_per_minute(100_000)
        .write();
    site.import("acme", include_str!("../../../src/cli/demo/acme.ndjson"));
    let token = site.token("acme", "Payroll sync");
    let node = site.start();
    let host = site.host("acme");
    Demo { client: node.client().to(&host).with(&token), host, _node: node, _site: site }
}

/// The example of an answer, as the account at a host gives it.
fn example(method: &str, path: &str, status: u16, name: &str, host: &str) -> Value {
    let media = format!("/paths/{}/{method}/responses/{status}/content/application~1json", escape(path));
    let examples = examples_of(API.document.pointer(&media).unwrap_or_else(|| panic!("{media} is missing")));
    let (_, example) = examples.into_iter().find(|(known, _)| *known == name).expect("the example is there");
    let text = example.to_string().replace(ORIGIN, &format!("https://{host}"));
    serde_json::from_str(&text).unwrap()
}

/// The example of a request's body.
fn asked(method: &str, path: &str, name: &str) -> &'static Value {
    let media = format!("/paths/{}/{method}/requestBody/content/application~1json", escape(path));
    let examples = examples_of(API.document.pointer(&media).unwrap_or_else(|| panic!("{media} is missing")));
    examples.into_iter().find(|(known, _)| *known == name).expect("the example is there").1
}

/// What differs from call to call: when something was made, and its secret.
fn without_chance(mut value: Value) -> Value {
    fn visit(value: &mut Value) {
        if let Value::Object(object) = value {
            object.remove("secret");
            if object.contains_key("target_url") {
                object.remove("created_at");
            }
            object.values_mut().for_each(visit);
        } else if let Value::Array(items) = value {
            items.iter_mut().for_each(visit);
        }
    }
    visit(&mut value);
    value
}

on_both_databases! {
    async fn the_examples_match_the_responses_of_the_demo(engine: Engine) {
        let Demo { client, host, .. } = &demo(engine);
        // The method, the path, that of the example, the example's body and the status and name of the answer, in an
        // order in which each finds what it needs.
        let calls = [
            ("get", "/me", "/me", "", 200, ""),
            ("get", "/form", "/form", "", 200, ""),
            ("get", "/form/for_1", "/form/{id}", "", 200, ""),
            ("post", "/submission", "/submission", "keyword", 200, "keyword"),
            ("get", "/submission/sub_3010", "/submission/{id}", "", 200, ""),
            ("get", "/group", "/group", "", 200, ""),
            ("get", "/group/grp_2", "/group/{id}", "", 200, ""),
            ("post", "/group/grp_3/managed_by", "/group/{id}/managed_by", "directory", 200, ""),
            ("put", "/group", "/group", "staff", 201, "staff"),
            ("put", "/group", "/group", "rename", 200, "rename"),
            ("delete", "/group/grp_4", "/group/{id}", "", 200, "deleted"),
            ("delete", "/group/grp_2", "/group/{id}", "", 200, "used"),
            ("post", "/subscribe", "/subscribe", "oneForm", 201, "oneForm"),
            ("post", "/subscribe", "/subscribe", "oneForm", 200, "oneForm"),
            ("get", "/subscribe", "/subscribe", "", 200, ""),
            ("get", "/subscribe/hook_1", "/subscribe/{id}", "", 200, ""),
            ("post", "/subscribe/hook_1/pause", "/subscribe/{id}/pause", "", 200, ""),
            ("post", "/subscribe/hook_1/resume", "/subscribe/{id}/resume", "", 200, ""),
            ("post", "/subscribe/hook_1/rotate", "/subscribe/{id}/rotate", "hour", 200, ""),
            ("post", "/subscribe/hook_1/replay", "/subscribe/{id}/replay", "failed", 200, ""),
            ("post", "/unsubscribe", "/unsubscribe", "target", 200, "target"),
        ];
        for (method, path, template, body, status, name) in calls {
            let call = client.method(method.to_uppercase().parse().unwrap(), &format!("/api/v1{path}"));
            let call = if body.is_empty() { call } else { call.json(asked(method, template, body)) };
            let answer = call.send().await;
            assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
            let expected = example(method, template, status, name, host);
            assert_eq!(without_chance(answer.json()), without_chance(expected), "{method} {path}");
        }
        let again = client.post("/api/v1/subscribe").json(asked("post", "/subscribe", "oneForm")).send().await;
        let path = format!("/api/v1/subscribe/{}", again.json()["data"]["id"].as_str().unwrap());
        let deleted = client.delete(&path).send().await.json();
        assert_eq!(deleted, example("delete", "/subscribe/{id}", 200, "deleted", host));
    }

    async fn every_body_in_the_description_is_accepted(engine: Engine) {
        let demo = demo(engine);
        let hook = demo.client.post("/api/v1/subscribe").json(&json!({"target_url": "https://hooks.example.com/id"})).send().await;
        let hook = hook.json()["data"]["id"].as_str().unwrap().to_owned();
        let mut taken = 0;
        for (path, item) in API.document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let Some(media) = operation.pointer("/requestBody/content/application~1json") else { continue };
                for (name, body) in examples_of(media) {
                    let path = path.replace("/subscribe/{id}", &format!("/subscribe/{hook}"));
                    let path = path.replace("/group/{id}", "/group/grp_3");
                    let path = path.replace("/submission/export", "/submission/export?format=ndjson");
                    let call = demo.client.method(method.to_uppercase().parse().unwrap(), &format!("/api/v1{path}"));
                    let answer = call.json(body).send().await;
                    assert!(answer.status.is_success(), "{method} {path} {name}: {answer:?}");
                    taken += 1;
                }
            }
        }
        assert!(taken >= 10, "{taken}");
    }
}

#[tokio::test]
async fn an_account_reads_the_description_with_the_address_that_it_used() {
    let demo = demo(Engine::Sqlite);
    for host in [demo.host.as_str(), "forms.acme.test", "FORMS.acme.test:8443"] {
        let served = demo.client.to(host).get("/api/v1/openapi.json").send().await;
        assert_eq!(served.status, 200, "{host}");
        let url = format!("https://{}/api/v1", host.to_lowercase());
        let mut expected = API.document.clone();
        expected["servers"] = json!([{"url": url, "description": "Acme"}]);
        assert!(served.json() == expected, "{host}: another description than the source");
    }
    let head = demo.client.head("/api/v1/openapi.json").send().await;
    assert_eq!((head.status.as_u16(), head.number("content-length") > Some(10_000)), (200, true));
}

#[tokio::test]
async fn the_description_is_behind_the_token_and_spends_one_request() {
    let demo = demo(Engine::Sqlite);
    let left = |answer: &crate::support::answer::Answer| answer.number("x-ratelimit-remaining").unwrap();
    let before = left(&demo.client.get("/api/v1/me").send().await);
    let refused = demo.client.with("fg_wrong").get("/api/v1/openapi.json").send().await;
    assert_eq!((refused.status.as_u16(), left(&refused)), (401, before));
    assert_eq!(left(&demo.client.get("/api/v1/openapi.json").send().await), before - 1);
}

#[test]
fn every_example_fits_its_schema() {
    let mut checked = 0;
    visit(&API.document, "", &mut |pointer, value| {
        let mut check = |schema: String, example: &Value| {
            assert_eq!(API.invalidity(&schema, example), None, "{pointer}: {example}");
            checked += 1;
        };
        // A media type, a parameter or a header.
        if value.get("schema").is_some() {
            for (_, example) in examples_of(value) {
                check(format!("{pointer}/schema"), example);
            }
        }
        // A schema.
        for example in value["examples"].as_array().into_iter().flatten() {
            check(pointer.to_owned(), example);
        }
    });
    assert!(checked > 60, "{checked}");
}

fn visit(value: &'static Value, pointer: &str, see: &mut impl FnMut(&str, &'static Value)) {
    match value {
        Value::Object(object) => {
            see(pointer, value);
            for (key, value) in object.iter().filter(|(key, _)| !matches!(key.as_str(), "example" | "value")) {
                visit(value, &format!("{pointer}/{}", escape(key)), see);
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                visit(value, &format!("{pointer}/{at}"), see);
            }
        }
        _ => {}
    }
}

#[test]
fn no_comma_in_a_description_made_a_key_of_its_rest() {
    visit(&API.document, "", &mut |pointer, value| {
        let faulty = value.as_object().unwrap().keys().find(|key| key.contains(' '));
        assert_eq!(faulty, None, "{pointer}");
    });
}

#[test]
fn every_reference_resolves_and_every_component_is_used() {
    let mut references = Vec::new();
    visit(&API.document, "", &mut |_, value| references.extend(value["$ref"].as_str()));
    for reference in &references {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(API.document.pointer(pointer).is_some(), "{reference}");
    }
    // What the answers outside of the described paths and methods are; the text of the description names them.
    let named_in_text =
        ["PathNotFound", "MethodNotAllowed", "UnknownMethod"].map(|name| format!("#/components/responses/{name}"));
    for kind in ["parameters", "headers", "responses", "links", "schemas"] {
        for name in API.document["components"][kind].as_object().unwrap().keys() {
            let reference = format!("#/components/{kind}/{name}");
            let used = references.contains(&reference.as_str()) || named_in_text.contains(&reference);
            assert!(used, "{reference}");
        }
    }
}

#[tokio::test]
async fn a_response_missing_from_the_description_is_noticed() {
    let demo = demo(Engine::Sqlite);
    let (get, me) = (Method::GET, "/api/v1/me");
    let fresh = async || demo.client.get(me).send().await;
    assert_eq!(deviation(&get, me, &fresh().await), None);

    let with_body = async |body: Value| {
        let mut answer = fresh().await;
        answer.body = serde_json::to_vec(&body).unwrap();
        deviation(&get, me, &answer).is_some()
    };
    let mut body = fresh().await.json();
    assert!(!with_body(body.clone()).await);
    body["account"]["secret"] = json!(1);
    assert!(with_body(body.clone()).await, "a field that is not described");
    body["account"] = json!({"id": "acme", "name": "Acme"});
    assert!(with_body(body).await, "a field that is missing");

    for (name, value) in [
        ("x-request-id", None),
        ("cache-control", None),
        ("cache-control", Some("public")),
        ("x-ratelimit-limit", Some("many")),
        ("x-other", Some("1")),
        ("retry-after", Some("1")),
    ] {
        let mut answer = fresh().await;
        answer.headers.remove(name);
        if let Some(value) = value {
            answer.headers.insert(name, value.parse().unwrap());
        }
        assert!(deviation(&get, me, &answer).is_some(), "{name}: {value:?}");
    }
    for status in [204, 422, 501] {
        let mut answer = fresh().await;
        answer.status = status.try_into().unwrap();
        assert!(deviation(&get, me, &answer).is_some(), "{status}");
    }

    let mut refused = demo.client.with("fg_wrong").get(me).send().await;
    refused.body = br#"{"message": "Another text"}"#.to_vec();
    assert!(deviation(&get, me, &refused).is_some(), "a message that is not described");
    let mut method = demo.client.delete(me).send().await;
    assert_eq!(deviation(&Method::DELETE, me, &method), None);
    method.headers.insert("allow", "GET".parse().unwrap());
    assert!(deviation(&Method::DELETE, me, &method).is_some(), "HEAD is not allowed");
}
