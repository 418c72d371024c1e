//! The search, held against a walk over everything in memory.

use serde_json::{Value, json};

use crate::api::account::account;
use crate::api::world::World;
use crate::support::fixture::on_both_databases;

fn ids(submissions: &[Value]) -> Vec<&str> {
    submissions.iter().map(|submission| submission["id"].as_str().expect("an id")).collect()
}

on_both_databases! {
    async fn every_search_returns_what_a_walk_over_everything_finds(engine: Engine) {
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
        for body in ["", " ", "{}", r#"{"forms": [], "search": null, "terms": {}}"#] {
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

    async fn faults_of_the_query_and_the_body_are_told_together(engine: Engine) {
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
