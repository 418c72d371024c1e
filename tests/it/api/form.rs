//! `GET /form`, `GET /form/{id}`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::api::account::account;
use crate::api::world::World;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn the_list_contains_only_active_forms_and_no_sub_forms(engine: Engine) {
        let world = World::new(1, 0, 1);
        let account = account(engine, &world.ndjson());
        let answer = account.client.get("/api/v1/form").send().await.json();
        let ids: Vec<&str> = answer["data"].as_array().unwrap().iter().map(|form| form["id"].as_str().unwrap()).collect();
        assert_eq!(ids, world.listed_forms());
        assert_eq!(answer["data"][2], json!({"id": "for_8", "name": "Form 8", "anonymous": true}));
        assert_eq!(answer["meta"]["per_page"], 100);
    }

    async fn a_long_list_comes_in_pages_of_a_hundred_by_id(engine: Engine) {
        let mut lines = String::new();
        for id in (1..=205).rev() {
            writeln!(lines, "{}", json!({"type": "form", "id": id, "name": format!("Form {id}"), "elements": []})).unwrap();
        }
        let account = account(engine, &lines);
        let mut pulled = Vec::new();
        for page in 1..=4 {
            let answer = account.client.get(&format!("/api/v1/form?page={page}")).send().await.json();
            assert_eq!(answer["meta"]["total"], 205);
            assert_eq!(answer["links"]["next"].is_null(), page >= 3);
            pulled.extend(answer["data"].as_array().unwrap().iter().map(|form| form["id"].as_str().unwrap().to_owned()));
        }
        assert_eq!(pulled, (1..=205).map(|id| format!("for_{id}")).collect::<Vec<_>>());
        let faulty = account.client.get("/api/v1/form?page=x").send().await;
        assert_eq!((faulty.status.as_u16(), faulty.json()["errors"]["page"].is_array()), (422, true));
    }

    async fn a_form_reads_with_its_elements_in_form_order(engine: Engine) {
        let form = json!({"type": "form", "id": 3, "name": "Leave", "anonymous": false, "disabled": false, "parent_id": null, "graduated": false, "elements": [
            {"id": 302, "gid": "b", "name": "Second id first", "type": "text"}, {"id": 301, "gid": "a", "name": "Ünïcödé", "type": "my-own"}]});
        let account = account(engine, &form.to_string());
        for id in ["3", "for_3"] {
            let answer = account.client.get(&format!("/api/v1/form/{id}")).send().await.json();
            let elements = json!([{"id": 302, "gid": "b", "name": "Second id first", "type": "text"}, {"id": 301, "gid": "a", "name": "Ünïcödé", "type": "my-own"}]);
            assert_eq!(answer, json!({"data": {"id": "for_3", "name": "Leave", "anonymous": false, "elements": elements}}));
        }
    }

    async fn disabled_forms_and_sub_forms_are_read_by_id_and_others_are_not_found(engine: Engine) {
        let account = account(engine, &World::new(1, 0, 1).ndjson());
        for id in ["for_7", "2", "for_3"] {
            assert_eq!(account.client.get(&format!("/api/v1/form/{id}")).send().await.status, 200, "{id}");
        }
        for id in ["9", "for_9", "sub_1", "0", "x", "9223372036854775808"] {
            let answer = account.client.get(&format!("/api/v1/form/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (404, &Value::from("Form not found")), "{id}");
        }
    }
}
