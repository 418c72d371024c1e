//! The tables of endpoints are what the descriptions in OpenAPI say: every operation has an endpoint and every endpoint an
//! operation, with its query parameters and its body.

use std::collections::BTreeMap;

use formgate::endpoint::{BodyKind, Endpoint};
use formgate::{api, operator};
use serde_json::Value;

use crate::support::description::{API, Description, OPERATOR};

/// Query parameters, sorted, and whether there is a body; by method and path.
type Operations = BTreeMap<String, (Vec<String>, bool)>;

fn described(description: &Description) -> Operations {
    let document = &description.document;
    let in_query = |item: &Value| -> Vec<String> {
        let parameters = item["parameters"].as_array().into_iter().flatten();
        let followed = parameters.map(|parameter| match parameter["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).expect("it refers to what is there"),
            None => parameter,
        });
        followed.filter(|of| of["in"] == "query").map(|of| of["name"].as_str().expect("a name").to_owned()).collect()
    };
    let mut found = Operations::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let operations = item.as_object().expect("operations").iter();
        // A HEAD request is for the endpoint of GET.
        for (method, operation) in operations.filter(|(key, _)| !["parameters", "head"].contains(&key.as_str())) {
            let mut query = [in_query(item), in_query(operation)].concat();
            query.sort_unstable();
            let has_body = !operation["requestBody"].is_null();
            found.insert(format!("{} {path}", method.to_uppercase()), (query, has_body));
        }
    }
    found
}

fn listed<H: 'static>(endpoints: impl Iterator<Item = &'static Endpoint<H>>) -> Operations {
    let operation = |endpoint: &Endpoint<H>| {
        let mut query: Vec<_> = endpoint.query.iter().map(ToString::to_string).collect();
        query.sort_unstable();
        (endpoint.name.to_owned(), (query, endpoint.body != BodyKind::None))
    };
    endpoints.map(operation).collect()
}

#[test]
fn the_endpoints_of_the_api_are_the_described_operations() {
    let operations = described(&API);
    assert!(operations.len() > 20, "{operations:?}");
    assert_eq!(listed(api::ENDPOINTS.iter()), operations);
    for (path, item) in API.document["paths"].as_object().expect("paths") {
        assert_eq!(item["get"].is_null(), item["head"].is_null(), "{path}: HEAD works wherever GET does");
    }
}

/// The scopes that each operation needs, by method and path.
fn scopes_by_operation() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for (path, item) in API.document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations").iter().filter(|(key, _)| *key != "parameters")
        {
            let security = operation.get("security").unwrap_or(&API.document["security"]);
            let [alternative] = &security.as_array().expect("a list")[..] else {
                panic!("{method} {path}: {security}")
            };
            let scopes = alternative["token"].as_array().expect("the scheme of tokens").iter();
            let scopes = scopes.map(|scope| scope.as_str().expect("a name").to_owned()).collect();
            found.insert(format!("{} {path}", method.to_uppercase()), scopes);
        }
    }
    found
}

#[test]
fn each_operation_is_described_with_the_scopes_that_its_endpoint_needs() {
    let described = scopes_by_operation();
    for endpoint in api::ENDPOINTS.iter() {
        let scopes: Vec<_> = endpoint.handler.scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
        assert_eq!(described[endpoint.name], scopes, "{}", endpoint.name);
        if let Some(path) = endpoint.name.strip_prefix("GET ") {
            assert_eq!(described[&format!("HEAD {path}")], scopes, "HEAD {path}");
        }
        let has_refusal =
            API.document["paths"][endpoint.path][endpoint.method.as_str().to_lowercase()]["responses"].get("403");
        assert_eq!(has_refusal.is_some(), !scopes.is_empty(), "{}", endpoint.name);
    }
}

#[test]
fn the_endpoints_of_the_operator_api_are_the_described_operations() {
    let operations = described(&OPERATOR);
    assert!(operations.len() > 15, "{operations:?}");
    assert_eq!(listed(operator::ENDPOINTS.iter()), operations);
}
