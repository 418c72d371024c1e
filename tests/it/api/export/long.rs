//! Submissions that are too long to be read whole are lines like others.

use serde_json::{Value, json};

use super::{export, many};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_long_submission_is_a_line_as_it_is_by_id(engine: Engine) {
        // Answers of 300 KB and of 2 MB among short ones, a form of 2,000 fields, and 300 children.
        let mut records = many(1..60, "x");
        let fields: Vec<Value> =
            (0..2_000).map(|at| json!({"id": 1_000 + at, "gid": format!("w{at}"), "name": "N", "type": "text"})).collect();
        records += &format!("{}\n", json!({"type": "form", "id": 3, "name": "Wide", "elements": fields}));
        records += &format!("{}\n", json!({"type": "form", "id": 4, "name": "Order", "graduated": true,
        "elements": [{"id": 40, "gid": "p", "name": "N", "type": "text"}]}));
        let at = "2026-03-01T12:00:00Z";
        let mut add = |id: i64, form: i64, parent: Option<i64>, element: i64, value: String| {
            records += &format!(
                "{}\n",
                json!({"type": "submission", "id": id, "form_id": form, "parent_id": parent, "status": "info", "created_at": at,
                    "updated_at": at, "answers": [{"element_id": element, "value": value}]})
            );
        };
        for (id, bytes) in [(100, 300_000), (101, 2_000_000), (102, 10), (103, 900_000)] {
            add(id, 1, None, 10, "\"ä\n".repeat(bytes / 4));
        }
        for id in 200..215 {
            add(id, 3, None, 1_000 + id, "only".to_owned());
        }
        add(300, 4, None, 40, "parent".to_owned());
        for id in 301..600 {
            add(id, 1, Some(300), 10, "c".repeat(5_000));
        }
        let account = account(engine, &records);
        let found = export(&account.client, "").await;
        assert_eq!(found.rows.len(), 59 + 4 + 15 + 1);
        assert_eq!(found.snapshot, "range");
        for row in &found.rows {
            let path = format!("/api/v1/submission/{}", row["id"].as_str().unwrap());
            assert_eq!(account.client.get(&path).send().await.json()["data"], *row);
        }
        let filtered = super::export_matching(&account.client, "&form=1", &json!({"statuses": ["info"]})).await;
        assert_eq!(filtered.rows.len(), 4);
        assert_eq!(filtered.rows, found.rows[59..63]);
    }
}
