//! The search, held against a walk over everything in memory.

use serde_json::{Value, json};

use crate::api::account::account;
use crate::api::world::World;
use crate::support::fixture::{on_all_databases, on_both_databases};

fn ids(submissions: &[Value]) -> Vec<&str> {
    submissions.iter().map(|submission| submission["id"].as_str().expect("an id")).collect()
}

on_all_databases! {
    async fn every_search_returns_what_a_full_scan_finds(engine: Engine) {
        let mut world = World::new(7, 1000, 220);
        let account = account(engine, &world.ndjson());
        let mut hits = 0;
        for round in 0..350 {
            let filter = world.filter();
            let expected = world.search(&filter);
            hits += usize::from(!expected.is_empty());
            let last = expected.len().div_ceil(20).max(1);
            let page = 1 + round % last;
            let answer = account.search(&format!("?page={page}"), &filter).await;
            let on_page = expected.chunks(20).nth(page - 1).unwrap_or_default();
            assert_eq!(answer["meta"]["total"], expected.len(), "{filter}");
            let shown = answer["data"].as_array().unwrap();
            assert_eq!(ids(shown), ids(on_page), "{filter}");
            assert_eq!(shown, on_page, "{filter}");
        }
        assert!(hits > 100, "only {hits} of the searches found anything: they prove little");
    }
}

on_both_databases! {
    async fn two_characters_are_found_wherever_they_stand(engine: Engine) {
        let form = json!({"type": "form", "id": 1, "name": "F", "elements": [
            {"id": 11, "gid": "g", "name": "N", "type": "text"}, {"id": 12, "gid": "h", "name": "M", "type": "text"}]});
        // At the beginning, at the end, across a change of line, beyond what an index takes, and not across two answers.
        let values = ["xy begins", "ends in xy", "x\ny", "%_'\\\"", "京都", &format!("{} xy", "long ".repeat(30_000)), "ends in x"];
        let mut lines = form.to_string();
        for (id, value) in (1..).zip(values) {
            let at = "2024-05-01T00:00:00Z";
            let answers = json!([{"element_id": 11, "value": value}, {"element_id": 12, "value": "y"}]);
            let submission = json!({"type": "submission", "id": id, "form_id": 1, "status": "pending", "created_at": at, "updated_at": at, "answers": answers});
            lines.push_str(&format!("\n{submission}"));
        }
        let account = account(engine, &lines);
        for (keyword, expected) in [
            ("XY", vec!["sub_6", "sub_2", "sub_1"]),
            ("x\n", vec!["sub_3"]),
            ("\ny", vec!["sub_3"]),
            ("%_", vec!["sub_4"]),
            ("_'", vec!["sub_4"]),
            ("\\\"", vec!["sub_4"]),
            ("京都", vec!["sub_5"]),
            ("zq", vec![]),
            ("x\u{1f}", vec![]),
        ] {
            let found = account.search("", &json!({"search": keyword})).await;
            assert_eq!(ids(found["data"].as_array().unwrap()), expected, "{keyword:?}");
        }
    }

    async fn a_keyword_of_a_thousand_letters_is_found_where_the_text_repeats_it(engine: Engine) {
        let form = json!({"type": "form", "id": 1, "name": "F", "elements": [
            {"id": 11, "gid": "g", "name": "N", "type": "text"}]});
        // What an index compares grows with how often the parts of the keyword are in the text.
        let values = ["a".repeat(900_000), "ab".repeat(450_000), format!("{}b", "a".repeat(998)), "ÄÖ".repeat(600)];
        let mut lines = form.to_string();
        for (id, value) in (1..).zip(values) {
            let at = "2024-05-01T00:00:00Z";
            let answers = json!([{"element_id": 11, "value": value}]);
            let submission = json!({"type": "submission", "id": id, "form_id": 1, "status": "pending", "created_at": at, "updated_at": at, "answers": answers});
            lines.push_str(&format!("\n{submission}"));
        }
        let account = account(engine, &lines);
        for (keyword, expected) in [
            ("a".repeat(1000), vec!["sub_1"]),
            ("A".repeat(998), vec!["sub_3", "sub_1"]),
            (format!("{}b", "a".repeat(998)), vec!["sub_3"]),
            (format!("{}b", "a".repeat(999)), vec![]),
            (format!("{}!", "a".repeat(999)), vec![]),
            (format!("b{}", "a".repeat(999)), vec![]),
            ("ba".repeat(500), vec!["sub_2"]),
            (format!("{}bb", "ab".repeat(499)), vec![]),
            ("öä".repeat(500), vec!["sub_4"]),
            ("a".repeat(4), vec!["sub_3", "sub_1"]),
        ] {
            for others in [json!({}), json!({"forms": [1]})] {
                let mut filter = others;
                filter["search"] = keyword.as_str().into();
                let found = account.search("", &filter).await;
                assert_eq!(ids(found["data"].as_array().unwrap()), expected, "{keyword:?}");
            }
        }
    }

    async fn every_term_of_many_must_match_in_the_submission_or_its_children(engine: Engine) {
        let elements = |form: i64| -> Vec<Value> {
            (0..60).map(|at| json!({"id": form * 100 + at, "gid": "g", "name": "N", "type": "text"})).collect()
        };
        let mut lines = vec![
            json!({"type": "form", "id": 1, "name": "F", "graduated": true, "elements": elements(1)}),
            json!({"type": "form", "id": 2, "name": "G", "parent_id": 1, "elements": elements(2)}),
        ];
        let at = "2024-05-01T00:00:00Z";
        let mut submission = |id: i64, parent: Option<i64>, draft: bool, answers: Vec<Value>| {
            lines.push(json!({"type": "submission", "id": id, "form_id": if parent.is_some() { 2 } else { 1 }, "parent_id": parent,
                "status": "pending", "draft": draft, "created_at": at, "updated_at": at, "answers": answers}));
        };
        let answers = |form: i64, upto: i64| -> Vec<Value> {
            (0..upto).map(|at| json!({"element_id": form * 100 + at, "value": format!("Value {at}\nOther {at}")})).collect()
        };
        submission(1, None, false, answers(1, 60));
        submission(2, None, false, answers(1, 49));
        submission(3, None, false, answers(1, 1));
        submission(4, Some(3), false, answers(2, 30));
        submission(5, Some(3), false, answers(2, 60).split_off(30));
        submission(6, None, false, answers(1, 1));
        submission(7, Some(6), true, answers(2, 60));
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        let account = account(engine, &lines.join("\n"));
        let terms = |from: i64, to: i64, answers: Value| -> Value {
            (from..to).map(|element| (element.to_string(), answers.clone())).collect::<serde_json::Map<_, _>>().into()
        };
        let of = |form: i64, upto: i64| -> Value {
            (0..upto).map(|at| ((form * 100 + at).to_string(), json!([format!("OTHER {at}"), "none"]))).collect::<serde_json::Map<_, _>>().into()
        };
        let with = |mut terms: Value, key: &str, answers: Value| { terms[key] = answers; terms };
        for (terms, expected) in [
            (of(1, 1), vec!["sub_6", "sub_3", "sub_2", "sub_1"]),
            (of(1, 3), vec!["sub_2", "sub_1"]),
            (of(1, 49), vec!["sub_2", "sub_1"]),
            (of(1, 50), vec!["sub_1"]),
            // Half of them in one child, half in another; a draft child adds nothing.
            (of(2, 50), vec!["sub_3"]),
            (with(of(2, 49), "100", json!(["value 0\nother 0"])), vec!["sub_3"]),
            (with(of(1, 49), "149", json!(["absent"])), vec![]),
            (with(of(1, 49), "N", json!(["Other 1"])), vec![]),
            (terms(100, 103, json!(["other 0"])), vec![]),
            // Two keys that name one element are two terms.
            (with(of(1, 3), "0100", json!(["Value 0"])), vec!["sub_2", "sub_1"]),
            (with(of(1, 3), "0100", json!(["Value 1"])), vec![]),
        ] {
            let found = account.search("", &json!({"terms": terms})).await;
            assert_eq!(ids(found["data"].as_array().unwrap()), expected, "{terms}");
        }
    }

    async fn the_pages_hold_everything_once_in_a_total_order(engine: Engine) {
        let world = World::new(8, 0, 130);
        let account = account(engine, &world.ndjson());
        for (by, direction) in [("created_at", "asc"), ("created_at", "desc"), ("updated_at", "asc"), ("updated_at", "desc")] {
            let filter = json!({"sortBy": by, "sortDirection": direction});
            let expected = world.search(&filter);
            let mut pulled = Vec::new();
            let mut next = Some("/api/v1/submission?page=1".to_owned());
            while let Some(url) = next {
                let path = &url[url.find("/api").unwrap()..];
                let answer = account.client.post(path).json(&filter).send().await.json();
                pulled.extend(answer["data"].as_array().unwrap().clone());
                next = answer["links"]["next"].as_str().map(str::to_owned);
            }
            assert_eq!(ids(&pulled), ids(&expected), "{filter}");
        }
    }

    async fn bodies_that_ask_for_nothing_return_everything(engine: Engine) {
        let world = World::new(9, 0, 30);
        let account = account(engine, &world.ndjson());
        let everything = world.search(&json!({})).len();
        for body in ["", " ", "{}", "null", "[ ]", r#"{"forms": [], "search": null, "terms": {}}"#] {
            let answer = account.client.post("/api/v1/submission").body(body).send().await;
            assert_eq!(answer.json()["meta"]["total"], everything, "{body:?}");
        }
    }

    async fn an_unknown_parameter_is_ignored_and_named(engine: Engine) {
        let account = account(engine, &World::new(9, 0, 10).ndjson());
        let body = json!({"status": ["pending"], "statuses": null, "form": "for_1", "sörch": 1, "a, b": 2});
        let answer = account.client.post("/api/v1/submission").json(&body).send().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ignored-parameters"), Some("status, form, s%C3%B6rch, a%2C+b"));
        let answer = account.client.post("/api/v1/submission").json(&json!({"forms": [1]})).send().await;
        assert_eq!(answer.header("x-ignored-parameters"), None);
    }

    async fn faults_of_the_query_and_the_body_are_reported_together(engine: Engine) {
        let account = account(engine, "");
        let body = json!({"search": "x", "forms": ["for_1", "nonsense"], "start": "2024-02-02", "end": "2024-02-01"});
        let answer = account.client.post("/api/v1/submission?page=0").json(&body).send().await;
        assert_eq!(answer.status, 422);
        let errors = answer.json()["errors"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(errors, ["page", "search", "forms.1", "end"]);
    }

    async fn links_are_on_the_address_that_the_caller_used(engine: Engine) {
        let account = account(engine, &World::new(3, 0, 60).ndjson());
        let answer = account.client.post("/api/v1/submission/?page=2").host("ACME.example.test:4711").json(&json!({})).send().await.json();
        assert_eq!(answer["links"]["prev"], "https://acme.example.test:4711/api/v1/submission?page=1");
        assert_eq!(answer["meta"]["path"], "https://acme.example.test:4711/api/v1/submission");
    }
}
