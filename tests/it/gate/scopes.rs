//! Scopes of tokens: each cell of the matrix of scopes and operations, and what a refusal costs.

use http::Method;
use serde_json::Value;

use crate::support::acme::Acme;
use crate::support::description::API;
use crate::support::fixture::{Site, on_both_databases};

const SCOPES: [&str; 6] = ["forms:read", "submissions:read", "groups:read", "groups:write", "webhooks:manage", "scim"];

/// Each operation of the description, with the scopes that it needs. Its path has ids that nothing has.
fn operations() -> Vec<(Method, String, Vec<String>)> {
    let mut operations = Vec::new();
    for (path, item) in API.document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations").iter().filter(|(key, _)| *key != "parameters")
        {
            let security = operation.get("security").unwrap_or(&API.document["security"]);
            let scopes = security[0]["token"].as_array().expect("the scheme of tokens");
            let scopes = scopes.iter().map(|scope| scope.as_str().expect("a name").to_owned()).collect();
            let path = format!("/api/v1{}", path.replace("{id}", "987654"));
            operations.push((method.to_uppercase().parse().expect("a method"), path, scopes));
        }
    }
    operations
}

on_both_databases! {
    async fn each_operation_is_open_to_tokens_with_its_scopes_and_to_no_others(engine: Engine) {
        let acme = Acme::of(Site::new().tenant("acme", engine).requests_per_minute(100_000));
        let mut sets: Vec<Vec<&str>> = SCOPES.iter().map(|scope| vec![*scope]).collect();
        // All but one, two that belong together, and everything.
        sets.extend(SCOPES.map(|left_out| SCOPES.into_iter().filter(|scope| *scope != left_out).collect()));
        sets.extend([vec!["webhooks:manage", "submissions:read"], SCOPES.to_vec(), vec!["*"]]);
        let operations = operations();
        assert!(operations.len() > 30, "{operations:?}");
        let (mut refused, mut open) = (0, 0);
        for set in sets {
            let caller = acme.stranger().with(&acme.site.limited_token("acme", "one", &["--scopes", &set.join(",")]));
            for (method, path, needed) in &operations {
                let missing = needed.iter().find(|scope| set != ["*"] && !set.contains(&scope.as_str()));
                let answer = caller.method(method.clone(), path).send().await;
                let case = format!("{method} {path} with {set:?}: {answer:?}");
                match missing {
                    None => {
                        open += 1;
                        assert!(![401, 403, 405, 429].contains(&answer.status.as_u16()), "{case}");
                    }
                    Some(missing) => {
                        refused += 1;
                        assert_eq!(answer.status, 403, "{case}");
                        if *method != Method::HEAD {
                            assert_eq!(answer.json()["required"], **missing, "{case}");
                            assert!(answer.json()["message"].as_str().is_some_and(|text| text.contains(missing)), "{case}");
                        }
                    }
                }
            }
        }
        assert!(refused > 100 && open > 100, "{refused} {open}");
        let me = acme.caller().get("/api/v1/me").send().await.json();
        assert_eq!(me["token"]["scopes"], serde_json::json!(["*"]), "a token without limits");
    }

    async fn a_missing_scope_spends_one_request_and_comes_after_the_route_and_before_all_else(engine: Engine) {
        let mut acme = Acme::of(Site::new().tenant("acme", engine).requests_per_minute(50));
        let caller = acme.stranger().with(&acme.site.limited_token("acme", "Reports", &["--scopes", "scim"]));
        let mut left = 50;
        for (method, path, body, status) in [
            ("GET", "/api/v1/form", "", 403),
            ("GET", "/api/v1/form/x", "", 403),
            ("GET", "/api/v1/form/for_1?page=0", "", 403),
            ("POST", "/api/v1/submission", "{", 403),
            ("PUT", "/api/v1/group", "no JSON", 403),
            ("DELETE", "/api/v1/group/0", "", 403),
            ("HEAD", "/api/v1/form", "", 403),
            ("GET", "/api/v1/nothing", "", 404),
            ("DELETE", "/api/v1/form", "", 405),
            ("GET", "/api/v1/me", "", 200),
            ("GET", "/api/v1/openapi.json", "", 200),
        ] {
            let answer = caller.method(method.parse().unwrap(), path).body(body).send().await;
            left -= 1;
            assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (status, Some(left)), "{method} {path}");
        }
        let series = r#"formgate_token_limit_refusals_total{limit="groups:write"}"#;
        assert_eq!(crate::support::client::operator_count(acme.node.operator_address(), series).await, 2);
    }

    async fn me_shows_a_token_what_it_is_limited_to(engine: Engine) {
        let acme = Acme::of(Site::new().tenant("acme", engine).requests_per_minute(50));
        let limits = ["--scopes", "groups:write,forms:read", "--requests-per-minute", "20", "--networks", "127.0.0.0/8"];
        let token = acme.site.limited_token("acme", "Sync", &limits);
        let me = acme.stranger().with(&token).get("/api/v1/me").send().await.json();
        let expected = r#"{"id": 2, "name": "Sync", "scopes": ["forms:read", "groups:write"], "forms": null, "requests_per_minute": 20}"#;
        assert_eq!(me["token"], serde_json::from_str::<Value>(expected).unwrap());
    }
}
