//! Submissions that are too large to be read whole: they read as small ones do.

use serde_json::{Value, json};

use crate::api::account::{Account, account};
use crate::support::client::operator_count;
use crate::support::connection::Protocol;
use crate::support::fixture::on_both_databases;

/// `JSON` of an instant of the data.
const AT: &str = "2026-03-01T12:00:00Z";

fn submission(id: usize, form: usize, parent: Option<usize>, answers: &[Value]) -> Value {
    json!({"type": "submission", "id": id, "form_id": form, "parent_id": parent, "status": "pending",
        "created_at": AT, "updated_at": AT, "answers": answers})
}

fn answer(element: usize, value: &str) -> Value {
    json!({"element_id": element, "value": value})
}

/// A form of `fields` fields, whose ids begin with `first`.
fn form(id: usize, graduated: bool, first: usize, fields: usize) -> Value {
    let element = |at: usize| {
        json!({"id": first + at, "gid": format!("gid-{}", first + at), "name": format!("Field {at}"),
        "type": if at == 3 { "time" } else { "text" }})
    };
    json!({"type": "form", "id": id, "name": "F", "graduated": graduated, "elements": (0..fields).map(element).collect::<Vec<_>>()})
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// A text of many characters that JSON escapes, and some that it does not.
fn long(bytes: usize, seed: usize) -> String {
    let unit = format!("\"ä\\ {seed}\n");
    unit.repeat(bytes / unit.len())
}

/// The values of a submission, without those that are empty.
fn values(submission: &Value) -> Vec<&str> {
    let entries = submission["allElements"].as_array().unwrap();
    entries.iter().map(|entry| entry["value"].as_str().unwrap()).filter(|value| !value.is_empty()).collect()
}

/// A page, and whether it had a length.
async fn page(account: &Account, body: &Value) -> (Value, bool) {
    let answer = account.client.post("/api/v1/submission").json(body).send().await;
    assert_eq!(answer.status, 200, "{:?}", answer.headers);
    (answer.json(), answer.header("content-length").is_some())
}

on_both_databases! {
    async fn a_page_of_large_answers_is_streamed_and_reads_like_a_small_one(engine: Engine) {
        // Submission 5 has answers of 300 KB, 6 one of 2 MB, and the others little.
        let mut records = vec![form(1, false, 100, 12)];
        let text_of = |id: usize, field: usize| match id {
            5 if field < 9 => long(300_000, field),
            6 if field == 2 => long(2_000_000, 6),
            _ => format!("{id} {field}"),
        };
        for id in 1..=20 {
            let answers: Vec<Value> = (0..12).filter(|field| (id + field) % 7 != 0 && *field != 3).map(|field| answer(100 + field, &text_of(id, field))).collect();
            records.push(submission(id, 1, None, &answers));
        }
        let mut account = account(engine, &lines(&records));
        let (found, had_length) = page(&account, &json!({})).await;
        assert!(!had_length);
        assert_eq!((found["meta"]["total"].as_u64(), found["meta"]["to"].as_u64()), (Some(20), Some(20)));
        assert_eq!(found["links"]["next"], Value::Null);
        let shown = found["data"].as_array().unwrap();
        for (submission, id) in shown.iter().zip((1..=20).rev()) {
            assert_eq!(submission["id"], format!("sub_{id}"));
            assert_eq!(submission["allElements"].as_array().unwrap().len(), 12);
            let expected: Vec<String> = (0..12).filter(|field| (id + field) % 7 != 0 && *field != 3).map(|field| text_of(id, field)).collect();
            assert_eq!(values(submission), expected, "{id}");
            // Small ones are read whole, by id or on a short page.
            let single = account.client.get(&format!("/api/v1/submission/{id}")).send().await;
            assert_eq!(single.header("content-length").is_some(), id != 5 && id != 6, "{id}");
            assert_eq!(single.json()["data"], *submission);
        }
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for id in [4, 5, 6] {
                let head = account.client.head(&format!("/api/v1/submission/{id}")).over(protocol).send().await;
                assert_eq!((head.status.as_u16(), head.header("content-length").is_some()), (200, id == 4));
            }
        }
        // The other paths of a search: a later page, a keyword, a sorted set.
        for body in [json!({"search": "ä\\ 6"}), json!({"terms": {"100": ["6 0"]}}), json!({"forms": [1], "sortBy": "created_at"})] {
            let (found, had_length) = page(&account, &body).await;
            assert!(!had_length, "{body}");
            assert!(found["data"].as_array().unwrap().contains(&shown[14]), "{body}");
        }
        assert_eq!(operator_count(account.operator(), "formgate_memory_reserved_bytes").await, 0);
    }

    async fn a_submission_with_thousands_of_children_shows_all_of_them_in_order(engine: Engine) {
        let mut records = vec![form(1, true, 100, 2), form(2, false, 200, 3)];
        records.push(submission(1, 1, None, &[answer(100, "parent")]));
        for child in 0..3_000 {
            let value = if child == 1_234 { long(40_000, 1) } else { format!("child {child}") };
            records.push(submission(10 + child, 2, Some(1), &[answer(202, &value)]));
        }
        let account = account(engine, &lines(&records));
        let answer = account.client.get("/api/v1/submission/1").send().await;
        assert_eq!(answer.header("content-length"), None);
        let shown = answer.json()["data"].clone();
        let expected: Vec<String> = std::iter::once("parent".to_owned())
            .chain((0..3_000).map(|child| if child == 1_234 { long(40_000, 1) } else { format!("child {child}") }))
            .collect();
        assert_eq!(values(&shown), expected);
        assert_eq!(shown["allElements"].as_array().unwrap().len(), 2 + 3 * 3_000);
        let (found, had_length) = page(&account, &json!({})).await;
        assert!(!had_length);
        assert_eq!((&found["data"], &found["meta"]["total"]), (&json!([shown]), &json!(1)));
    }

    async fn many_empty_fields_make_an_answer_long_too(engine: Engine) {
        let mut records = vec![form(1, false, 1_000, 2_000)];
        records.extend((1..=20).map(|id| submission(id, 1, None, &[answer(1_000 + id, "only")])));
        let account = account(engine, &lines(&records));
        let (found, had_length) = page(&account, &json!({})).await;
        assert!(!had_length);
        for (submission, id) in found["data"].as_array().unwrap().iter().zip((1..=20).rev()) {
            let entries = submission["allElements"].as_array().unwrap();
            assert_eq!((entries.len(), &entries[id]["value"], values(submission)), (2_000, &json!("only"), vec!["only"]));
        }
    }
}
