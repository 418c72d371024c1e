//! `fields=` of an export: the keys of a line, and the columns of a table.

use serde_json::json;

use super::{PATH, export, filled, get};
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn fields_are_the_keys_of_a_line_and_the_columns_of_a_table(engine: Engine) {
        let (account, _) = filled(engine, 1..4, "text");
        let body = async |parameters: &str| {
            let answer = account.client.get(&format!("{PATH}?{parameters}")).send().await;
            assert_eq!(answer.status, 200, "{parameters}: {answer:?}");
            String::from_utf8(answer.body).expect("UTF-8")
        };
        let whole = export(&account.client, "").await.rows;
        let lines: Vec<_> = whole.iter().map(|row| json!({"id": row["id"], "allElements": [row["allElements"][0]]})).collect();
        assert_eq!(export(&account.client, "&fields=id,10,20").await.rows, lines);
        let ids = body("format=ndjson&fields=status,updated_at").await;
        let first = json!({"status": whole[0]["status"], "updated_at": whole[0]["updated_at"]});
        assert_eq!(ids.lines().next(), Some(&*first.to_string()));

        for (fields, heading) in [
            ("id,10", "id,Reason"),
            ("11,status", "status,Receipt"),
            ("id,status,created_at,updated_at", "id,status,created_at,updated_at"),
            ("allElements", "Reason,Receipt"),
            ("", "id,status,created_at,updated_at,Reason,Receipt"),
        ] {
            let table = body(&format!("format=csv&form=1&fields={fields}")).await;
            let lines: Vec<_> = table.split_terminator("\r\n").collect();
            assert_eq!((lines[0], lines.len()), (heading, 3), "{fields}: {table}");
            let columns = heading.split(',').count();
            assert!(lines.iter().all(|line| line.split(',').count() == columns), "{fields}: {table}");
        }
        let bytes = async |fields: &str| {
            let answer = account.client.get(&format!("{PATH}?format=parquet&form=1{fields}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.body[..4]), (200, &b"PAR1"[..]), "{answer:?}");
            answer.body.len()
        };
        assert!(bytes("&fields=id,10").await < bytes("").await);
    }

    async fn a_field_that_is_no_column_is_refused(engine: Engine) {
        let (account, _) = filled(engine, 1..4, "text");
        for (parameters, fault) in [("&fields=id,nothing", "fields.1"), ("&fields=id,status,77", "fields.2")] {
            let answer = get(&account.client, parameters).send().await;
            let faults = answer.json()["errors"].as_object().map(|faults| faults.keys().cloned().collect::<Vec<_>>());
            assert_eq!((answer.status.as_u16(), faults), (422, Some(vec![fault.to_owned()])), "{parameters}");
        }
        // It is one of another form.
        let answer = account.client.get(&format!("{PATH}?format=csv&form=1&fields=20")).send().await;
        assert_eq!((answer.status.as_u16(), answer.json()["errors"]["fields"].is_array()), (422, true), "{answer:?}");
    }
}
