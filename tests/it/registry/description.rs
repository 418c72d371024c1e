//! `deploy/operator-openapi.yaml`: its examples are valid, and no answer leaves it.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use crate::support::description::{Described, OPERATOR, escape, examples_of};

/// Every media type with an example, by its pointer.
fn media_types(pointer: &str, value: &Value, found: &mut Vec<String>) {
    let Value::Object(object) = value else { return };
    if object.contains_key("schema") && object.contains_key("example") {
        found.push(pointer.to_owned());
    }
    for (key, child) in object {
        media_types(&format!("{pointer}/{}", escape(key)), child, found);
    }
}

#[test]
fn the_examples_are_valid() {
    let mut found = Vec::new();
    media_types("", &OPERATOR.document, &mut found);
    assert_eq!(found.len(), 10, "{found:?}");
    for pointer in found {
        for (_, example) in examples_of(OPERATOR.document.pointer(&pointer).expect("it was found there")) {
            assert_eq!(OPERATOR.invalidity(&format!("{pointer}/schema"), example), None, "{pointer}");
        }
    }
}

#[test]
fn what_is_not_described_is_noticed() {
    let deviation = |method: Method, target: &str, status: StatusCode, body: Value| {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let described = Described { status, headers: &headers, body: &|| body.clone() };
        OPERATOR.deviation(&method, target, &described)
    };
    let node = json!({ "message": "There is no tenant `acme`" });
    assert_eq!(deviation(Method::GET, "/v1/tenants/acme", StatusCode::NOT_FOUND, node.clone()), None);
    for (method, target, status, body) in [
        (Method::GET, "/v1/tenants/acme", StatusCode::IM_A_TEAPOT, node.clone()),
        (Method::GET, "/v1/tenants/acme", StatusCode::NOT_FOUND, json!({ "message": "none", "more": 1 })),
        (Method::GET, "/v1/tenants/acme", StatusCode::NOT_FOUND, json!({})),
        (Method::GET, "/v1/tenants", StatusCode::SERVICE_UNAVAILABLE, node.clone()),
        (Method::GET, "/v1/nothing", StatusCode::CONFLICT, node),
    ] {
        assert!(deviation(method.clone(), target, status, body).is_some(), "{method} {target} {status}");
    }
}
