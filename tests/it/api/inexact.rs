//! What could be read in two ways is refused: a parameter that is given twice, a number that many programs round.

use http::Method;
use serde_json::{Value, json};

use super::account::account;
use super::ignored::in_query;
use crate::support::answer::Answer;
use crate::support::description::API;
use crate::support::fixture::{Engine, on_both_databases};

fn faults(answer: &Answer) -> Vec<String> {
    let errors = answer.json()["errors"].clone();
    errors.as_object().into_iter().flat_map(|errors| errors.keys().cloned()).collect()
}

#[tokio::test]
async fn every_parameter_that_is_no_list_is_a_fault_when_it_is_given_twice() {
    let account = account(Engine::Sqlite, "");
    let mut seen = 0;
    for (path, item) in API.document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            let method: Method = method.to_uppercase().parse().unwrap();
            if method == Method::HEAD {
                continue;
            }
            for name in [in_query(item), in_query(operation)].concat() {
                if ["forms", "fields"].contains(&name) {
                    continue;
                }
                let path = format!("/api/v1{}", path.replace("{id}", "1"));
                let value = match name {
                    "status" => "failed",
                    "cursor" => "now",
                    "report" => "members",
                    "event" => "submission.created",
                    _ => "1",
                };
                // The same value, and the same name in another spelling.
                let first = name.as_bytes()[0];
                let required = if path.ends_with("/export") && name != "format" { "&format=ndjson" } else { "" };
                let query = format!("{name}={value}&%{first:02x}{}={value}{required}", &name[1..]);
                let request = account.client.method(method.clone(), &format!("{path}?{query}"));
                let answer = request.json(&json!({"name": "Group"})).send().await;
                assert_eq!(
                    (answer.status.as_u16(), faults(&answer)),
                    (422, vec![name.to_owned()]),
                    "{method} {path} {name}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 10, "{seen}");
}

on_both_databases! {
    async fn a_call_that_says_both_that_it_writes_and_that_it_does_not_writes_nothing(engine: Engine) {
        let account = account(engine, "");
        for query in ["dry_run=1&dry_run=0", "dry_run=0&dry_run=1", "dry_run=0&dry_run=0"] {
            let answer = account.client.put(&format!("/api/v1/group?{query}")).json(&json!({"name": "Staff"})).send().await;
            assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec!["dry_run".to_owned()]), "{query}");
        }
        let groups = account.client.get("/api/v1/group").send().await.json();
        assert_eq!(groups["meta"]["total"], 1, "{groups}");
    }

    async fn the_forms_of_the_feed_are_those_of_every_value(engine: Engine) {
        let mut lines = String::new();
        for form in 1..=3 {
            lines += &format!("{}\n", json!({"type": "form", "id": form, "name": "F"}));
        }
        for form in 1..=3 {
            let at = "2026-03-01T12:00:00Z";
            let line = json!({"type": "submission", "id": form, "form_id": form, "status": "pending", "created_at": at, "updated_at": at});
            lines += &format!("{line}\n");
        }
        let account = account(engine, &lines);
        let page = async |query: &str| account.client.get(&format!("/api/v1/submission/changes?{query}")).send().await;
        let ids = |answer: &Answer| -> Vec<String> {
            let data = answer.json()["data"].clone();
            let mut ids: Vec<_> = data.as_array().unwrap().iter().map(|change| change["id"].as_str().unwrap().to_owned()).collect();
            ids.sort();
            ids
        };
        let repeated = page("forms=1&forms=for_2").await;
        assert_eq!(ids(&repeated), ["sub_1", "sub_2"]);
        assert_eq!(ids(&page("forms=3&forms=1,2").await), ["sub_1", "sub_2", "sub_3"]);
        // Links keep them, and a cursor belongs to the forms however they are given.
        let next = repeated.json()["links"]["next"].as_str().unwrap().to_owned();
        assert!(next.contains("forms=1&forms=for_2&"), "{next}");
        let cursor = repeated.json()["meta"]["cursor"].as_str().unwrap().to_owned();
        for (query, status) in [("forms=1,2", 200), ("forms=2&forms=1", 200), ("forms=1", 422), ("forms=1&forms=", 422), ("forms=1&forms=x", 422)] {
            let answer = page(&format!("{query}&cursor={cursor}")).await;
            assert_eq!(answer.status.as_u16(), status, "{query}: {answer:?}");
        }
        let many: Vec<_> = (1..=101).map(|form| format!("forms={form}")).collect();
        assert_eq!(page(&many[..100].join("&")).await.status, 200);
        assert_eq!(faults(&page(&many.join("&")).await), ["forms"]);
    }

    async fn a_number_is_read_exactly_or_refused(engine: Engine) {
        const INEXACT: [&str; 10] = ["9007199254740993.0", "1e0", "1E2", "-0.0", "-0", "1.5", "4503599627370497.3", "9223372036854775808",
            "1.00000000000000000001", "0.99999999999999999999"];
        let user = json!({"type": "user", "id": 9_007_199_254_740_992_i64, "email": "ana@acme.example"});
        let account = account(engine, &user.to_string());
        let search = async |body: String| account.client.post("/api/v1/submission").body(body).send().await;
        for name in ["forms", "submitters", "pending", "participants", "labels", "sharedLabels", "flows"] {
            assert_eq!(search(format!("{{\"{name}\": [1, 9007199254740993, \"9007199254740993\"]}}")).await.status, 200);
            for number in INEXACT {
                // JSON has one number type: below 2^53, a whole number is exact however it is written.
                let is_exact = ["1e0", "1E2"].contains(&number);
                let texts = [format!("\"{number}\""), number.to_owned()];
                for text in texts.into_iter().take(if is_exact { 1 } else { 2 }) {
                    let answer = search(format!("{{\"{name}\": [1, {text}]}}")).await;
                    assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec![format!("{name}.1")]), "{name} {text}");
                }
            }
            for number in ["1e400", "-1e400"] {
                assert_eq!(search(format!("{{\"{name}\": [{number}]}}")).await.status, 422, "{name} {number}");
            }
        }
        for number in INEXACT.iter().chain(&["1e400", "%2B1", "0x1", "1%20", "%201"]) {
            for (path, name) in [("submission/changes?limit=", "limit"), ("submission/changes?wait=", "wait"), ("group?page=", "page"),
                ("subscribe/sample?form=", "form")] {
                // A page is no id: it may be beyond what an id can be.
                let number = if (name, *number) == ("page", "9223372036854775808") { "18446744073709551616" } else { number };
                let answer = account.client.get(&format!("/api/v1/{path}{number}")).send().await;
                assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec![name.to_owned()]), "{path}{number}");
            }
            let body = format!("{{\"target_url\": \"https://hooks.test\", \"form\": \"{number}\"}}");
            let answer = account.client.post("/api/v1/subscribe").body(body).send().await;
            assert_eq!((answer.status.as_u16(), faults(&answer)), (422, vec!["form".to_owned()]), "{number}");
        }
        let found: Value = search("{\"submitters\": [9007199254740993]}".to_owned()).await.json();
        assert_eq!(found["meta"]["total"], 0);
    }
}
